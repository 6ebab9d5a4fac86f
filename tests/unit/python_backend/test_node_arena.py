"""Reading safetensors and putting weights into sealed shared memory."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from python_backend.messages import TensorSpec
from python_backend.node import arena as arena_module
from python_backend.node import loading
from python_backend.node.arena import CpuArena, create_kv_arena, load_weights
from python_backend.node.checkpoint import read_checkpoint
from python_backend.node.errors import (
    ArenaClosed,
    CheckpointError,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    PoolTooLarge,
    TensorTypeUnknown,
)
from python_backend.node.fingerprint import Fingerprint


def safetensors_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], **more: Any) -> Path:
    """Write the format by hand, so that no library corrects the mistakes the tests want."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header |= more
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def floats(*values: float) -> tuple[str, list[int], bytes]:
    return "F32", [len(values)], np.array(values, "<f4").tobytes()


def bound_tensors(folder: Path, run_dir: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Load and read back what a worker would see."""
    weights = load_weights(folder, "fp32", run_dir)
    table = msgspec.json.decode(weights.table_path.read_bytes(), type=dict[str, TensorSpec])
    with mmap.mmap(weights.fd, weights.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        os.close(weights.fd)
        tensors = {}
        for name, spec in table.items():
            count = int(np.prod(spec.shape, dtype=np.int64))
            flat = np.frombuffer(bytes(mapped), np.dtype(spec.dtype), count, spec.offset_bytes)
            assert spec.offset_bytes % 64 == 0
            tensors[name] = flat.reshape(spec.shape)
    return tensors


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    """Floats, integers, scalars and empty tensors."""
    safetensors_file(
        tmp_path / "model.safetensors",
        {
            "a": floats(1.5, -2.0, 3.25),
            "ids": ("I64", [2, 2], np.arange(4, dtype="<i8").tobytes()),
            "scalar": ("F64", [], np.float64(7.5).tobytes()),
            "empty": ("F32", [0, 4], b""),
        },
    )
    tensors = bound_tensors(tmp_path, tmp_path)
    assert tensors["a"].tolist() == [1.5, -2.0, 3.25]
    assert tensors["ids"].tolist() == [[0, 1], [2, 3]]
    assert tensors["scalar"].shape == ()
    assert float(tensors["scalar"]) == 7.5
    assert tensors["empty"].shape == (0, 4)


@pytest.mark.parametrize("chunk_bytes", [6, 8 << 20])
def test_sixteen_bit_floats_are_widened_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Every bf16 and fp16 value has its own float32, infinities included, across chunk borders."""
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    values = np.array([0.0, -0.0, 1.0, -2.5, np.inf, 2.0**-10, 240.0], "<f4")
    bf16 = (values.view("<u4") >> 16).astype("<u2").tobytes()
    fp16 = values.astype("<f2").tobytes()
    safetensors_file(tmp_path / "model.safetensors", {"b": ("BF16", [7], bf16), "h": ("F16", [7], fp16)})
    tensors = bound_tensors(tmp_path, tmp_path)
    for name in ("b", "h"):
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], values)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    """Large models come in several files."""
    safetensors_file(tmp_path / "one.safetensors", {"a": floats(1)})
    safetensors_file(tmp_path / "two.safetensors", {"b": floats(2)})
    index = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert {name: t.tolist() for name, t in bound_tensors(tmp_path, tmp_path).items()} == {"a": [1], "b": [2]}


@pytest.mark.parametrize(
    ("weight_map", "error", "text"),
    [
        ({"a": "one.safetensors", "b": "gone.safetensors"}, CheckpointMissing, "shard gone.safetensors"),
        ({"a": "one.safetensors", "z": "one.safetensors"}, CheckpointMalformed, "tensor 'z' is not in"),
        ({"a": "../one.safetensors"}, CheckpointMalformed, "outside the folder"),
        ({"a": "one.safetensors", "x": "two.safetensors"}, CheckpointMalformed, "tensor 'a' is also in"),
        ({"a": 5}, CheckpointMalformed, "index.json"),
    ],
)
def test_an_index_that_lies_is_refused(
    tmp_path: Path, weight_map: dict[str, Any], error: type[CheckpointError], text: str
) -> None:
    """Missing shards, tensors that are not there, paths out of the folder, two of one name."""
    for name in ("one", "two"):
        safetensors_file(tmp_path / f"{name}.safetensors", {"a": floats(1)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(error, match=text):
        read_checkpoint(tmp_path)


def test_a_folder_without_weights_says_what_it_looked_for(tmp_path: Path) -> None:
    """Both names that would do."""
    with pytest.raises(CheckpointMissing, match=r"neither model\.safetensors nor"):
        load_weights(tmp_path, "fp32", tmp_path)


@pytest.mark.parametrize(
    ("entry", "error", "text"),
    [
        (
            {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]},
            TensorTypeUnknown,
            "type 'F8_E4M3', known",
        ),
        (
            {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
            CheckpointMalformed,
            "starts at 4 inside 'a'",
        ),
        (
            {"dtype": "F32", "shape": [3], "data_offsets": [8, 16]},
            CheckpointMalformed,
            "takes 12 bytes, has 8",
        ),
        (
            {"dtype": "F32", "shape": [9], "data_offsets": [8, 44]},
            CheckpointTruncated,
            "ends at byte 44 of 16",
        ),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [8, 4]}, CheckpointMalformed, "at bytes 8 to 4"),
        ({"dtype": "F32", "shape": [2**62, 4], "data_offsets": [8, 16]}, CheckpointMalformed, "takes 7"),
        ({"dtype": "F32", "data_offsets": [8, 16]}, CheckpointMalformed, "shape"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8]}, CheckpointMalformed, "data_offsets"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    tmp_path: Path, entry: dict[str, Any], error: type[CheckpointError], text: str
) -> None:
    """Before a byte is copied, naming the tensor and the numbers."""
    safetensors_file(
        tmp_path / "model.safetensors", {"a": floats(1, 2), "pad": floats(0, 0)}, b=entry, pad=entry
    )
    with pytest.raises(error, match=text):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", CheckpointTruncated),
        (b"\x10\0\0", CheckpointTruncated),
        ((1 << 62).to_bytes(8, "little") + b"{}", CheckpointTruncated),
        ((2).to_bytes(8, "little") + b"[]", CheckpointMalformed),
        ((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc", CheckpointMalformed),
        ((2).to_bytes(8, "little") + b"{}", CheckpointMalformed),
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(
    tmp_path: Path, raw: bytes, error: type[CheckpointError]
) -> None:
    """Empty, cut off, absurd lengths, other JSON, no JSON, no tensor."""
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(error, match=r"safetensors|no tensor"):
        read_checkpoint(tmp_path)


def test_a_copy_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    """The header is whole, the data is not."""
    path = safetensors_file(tmp_path / "model.safetensors", {"a": floats(*range(100))})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointTruncated, match="ends at byte 400 of 396"):
        load_weights(tmp_path, "fp32", tmp_path)


def test_a_file_that_shrinks_while_it_is_read_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is the named one, and the memfd is closed."""
    path = safetensors_file(tmp_path / "model.safetensors", {"a": floats(*range(100))})
    checkpoint = read_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    monkeypatch.setattr(loading, "read_checkpoint", lambda folder: checkpoint)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointTruncated, match="ended while it was read"):
        load_weights(tmp_path, "fp32", tmp_path)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_nobody_can_write_or_resize_sealed_weights(tmp_path: Path) -> None:
    """A worker's stray write cannot change what the others compute."""
    safetensors_file(tmp_path / "model.safetensors", {"a": floats(1, 2)})
    weights = load_weights(tmp_path, "fp32", tmp_path)
    with pytest.raises(PermissionError):
        mmap.mmap(weights.fd, weights.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for act in (
        lambda: os.write(weights.fd, b"x"),
        lambda: os.ftruncate(weights.fd, 0),
        lambda: os.ftruncate(weights.fd, 1 << 20),
        lambda: fcntl.fcntl(weights.fd, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            act()
    os.close(weights.fd)


def fingerprint_of(folder: Path) -> Fingerprint:
    return loading.fill(loading.plan_load(folder, "fp32"), lambda *_: None, lambda *_: None)


def test_the_fingerprint_tells_other_weights_apart(tmp_path: Path) -> None:
    """Same folder name, another shape: another fingerprint; the same file: the same one."""
    safetensors_file(tmp_path / "model.safetensors", {"a": floats(1, 2)})
    first = fingerprint_of(tmp_path)
    assert fingerprint_of(tmp_path).digest() == first.digest()
    safetensors_file(tmp_path / "model.safetensors", {"a": ("F32", [1, 2], bytes(8))})
    second = fingerprint_of(tmp_path)
    assert second.digest() != first.digest()
    assert [text.split(":")[0] for text in second.differences(first)] == ["files.model.safetensors"]


@pytest.mark.parametrize("has_populate", [True, False])
def test_every_page_of_the_kv_arena_is_there(monkeypatch: pytest.MonkeyPatch, has_populate: bool) -> None:
    """No first-touch stall later; kernels before 5.14 are served by touching."""
    if not has_populate:
        monkeypatch.setattr(arena_module, "MADV_POPULATE_WRITE", 9999)
    fd = create_kv_arena(1 << 20)
    assert os.fstat(fd).st_blocks * 512 == 1 << 20
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_a_closed_arena_ends_what_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that shall stop does not read sixty gigabytes first; no descriptor stays open."""
    safetensors_file(tmp_path / "model.safetensors", {"a": floats(1), "b": floats(2)})
    arena = CpuArena()

    def close_at_once(what: str) -> loading.OnProgress:
        return lambda done, total: arena.close()

    monkeypatch.setattr(arena_module, "log_progress", close_at_once)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(ArenaClosed, match="the node stops"):
        arena.load_weights(tmp_path, "fp32", tmp_path)
    with pytest.raises(ArenaClosed, match="the node stops"):
        arena.create_kv(64 << 20)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_pool_larger_than_memory_names_the_way_out() -> None:
    """The text has the size and the setting."""
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(PoolTooLarge, match=r"4611686018427387904 bytes.*lower pool_bytes"):
        create_kv_arena(1 << 62)
    assert sorted(os.listdir("/proc/self/fd")) == before
