"""A GPU's arena over a driver without a GPU: what is created, exported, filled, released, and what is refused."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from python_backend.cuda import (
    OUT_OF_MEMORY,
    CudaError,
    CudaUnavailable,
    find_gpu,
    refuse_expandable_segments,
    rounded_up,
)
from python_backend.cuda_sharing import LEGACY_GRANULARITY_BYTES, SharedPiece, can_export_fds, open_piece
from python_backend.cuda_testing import FAKE_UUID, GRANULARITY_BYTES, OTHER_UUID, FakeDriver
from python_backend.messages import TensorSpec
from python_backend.node.cuda_arena import CudaArena
from python_backend.node.cuda_loader import PinnedWriter
from python_backend.node.errors import (
    ArenaClosed,
    CheckpointTruncated,
    DeviceUnavailable,
    PoolTooLarge,
    WeightsTooLarge,
)

pytestmark = pytest.mark.integration

FAKE_LOADER = """
import sys
import msgspec
from python_backend.cuda_testing import FakeDriver
from python_backend.node.cuda_loader import LoadRequest, run

request = msgspec.json.decode(sys.argv[1], type=LoadRequest)
sys.exit(run(request, FakeDriver()))
"""
FAKE_LOADER_COMMAND = (sys.executable, "-c", FAKE_LOADER)


def write_model(folder: Path, *, cut_bytes: int = 0) -> np.ndarray:
    """One float32 tensor `a` [3, 100] in safetensors form."""
    values = np.arange(300, dtype="<f4").reshape(3, 100)
    header = b'{"a":{"dtype":"F32","shape":[3,100],"data_offsets":[0,1200]}}'
    data = len(header).to_bytes(8, "little") + header + values.tobytes()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(data[: len(data) - cut_bytes])
    return values


def read_floats(address: int, offset_bytes: int, count: int) -> np.ndarray:
    raw = ctypes.string_at(address + offset_bytes, count * 4)
    return np.frombuffer(raw, "<f4")


def test_a_gpu_is_found_by_its_uuid_wherever_it_stands_in_the_order() -> None:
    """CUDA_VISIBLE_DEVICES may give the same GPU another ordinal in every process."""
    assert find_gpu(FakeDriver(uuids=(FAKE_UUID, OTHER_UUID)), f"cuda:{OTHER_UUID}").ordinal == 1
    assert find_gpu(FakeDriver(uuids=(OTHER_UUID, FAKE_UUID)), f"cuda:{OTHER_UUID}").ordinal == 0
    assert find_gpu(FakeDriver(uuids=(OTHER_UUID,)), "cuda").uuid == OTHER_UUID


def test_a_gpu_that_is_not_visible_is_named_with_those_that_are() -> None:
    """Another GPU is never taken instead."""
    with pytest.raises(CudaUnavailable, match=f"{OTHER_UUID}.*visible: {FAKE_UUID}.*CUDA_VISIBLE_DEVICES"):
        find_gpu(FakeDriver(), f"cuda:{OTHER_UUID}")
    with pytest.raises(CudaUnavailable, match="visible: none"):
        find_gpu(FakeDriver(uuids=()), "cuda")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_refused(name: str) -> None:
    """Under both of torch's names for its options, among others, whatever the case."""
    with pytest.raises(DeviceUnavailable, match=f"{name} has expandable_segments:True.*take it out"):
        CudaArena(
            "cuda", FakeDriver(), environ={name: "max_split_size_mb:64, expandable_segments : true,x:1"}
        )
    refuse_expandable_segments({name: "expandable_segments:False,max_split_size_mb:64"})


def test_sizes_are_rounded_up_to_what_the_driver_hands_out() -> None:
    """An empty allocation still has one unit."""
    assert [rounded_up(size, 10) for size in (0, 1, 10, 11)] == [10, 10, 10, 20]


def test_weights_come_through_the_loader_as_they_were(tmp_path: Path) -> None:
    """A real child fills the allocation. The node itself creates and exports: it maps nothing and has no context,
    which would cost half a gigabyte that no worker gets."""
    driver = FakeDriver()
    arena = CudaArena("cuda", driver, FAKE_LOADER_COMMAND, {})
    values = write_model(tmp_path / "m")
    arena.create_kv(100_000)
    weights = arena.load_weights(tmp_path / "m", "fp32", tmp_path)
    assert not driver.contexts
    assert not {"map", "import_fd"} & set(driver.calls)
    assert arena.device == f"cuda:{FAKE_UUID}"
    spec = msgspec.json.decode(weights.table_path.read_bytes(), type=dict[str, TensorSpec])["a"]
    piece = open_piece(driver, find_gpu(driver, "cuda"), weights.fd, weights.num_bytes, writable=False)
    np.testing.assert_array_equal(read_floats(piece.address, spec.offset_bytes, 300).reshape(3, 100), values)
    piece.close()
    arena.release(weights)
    assert not weights.table_path.exists()
    arena.close()
    assert not driver.handles


def test_a_piece_outlives_its_release_as_long_as_somebody_has_it_open() -> None:
    """Evicting, or a node that ends, never pulls memory from under a worker."""
    driver = FakeDriver()
    gpu = find_gpu(driver, "cuda")
    shared = SharedPiece(driver, gpu, 1000, is_legacy=False)
    piece = open_piece(driver, gpu, shared.fd, 1000, writable=True)
    ctypes.memset(piece.address, 7, 1000)
    shared.release()
    assert ctypes.string_at(piece.address, 3) == b"\x07\x07\x07"
    piece.close()


def test_a_read_only_piece_kills_who_writes_to_it_and_nobody_else() -> None:
    """As a GPU's fault would: the driver's protection, here the kernel's."""
    driver = FakeDriver()
    gpu = find_gpu(driver, "cuda")
    shared = SharedPiece(driver, gpu, 1000, is_legacy=False)
    piece = open_piece(driver, gpu, shared.fd, 1000, writable=False)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        ctypes.memset(piece.address, 1, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV
    assert ctypes.string_at(piece.address, 1) == b"\0"
    piece.close()
    shared.release()


def test_a_driver_that_maps_nothing_read_only_still_serves(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning: the protection is gone, not the service."""
    driver = FakeDriver(maps_read_only=False)
    gpu = find_gpu(driver, "cuda")
    shared = SharedPiece(driver, gpu, 1000, is_legacy=False)
    open_piece(driver, gpu, shared.fd, 1000, writable=False).close()
    assert "not protected from writes" in caplog.text
    shared.release()


def test_a_failed_mapping_leaves_no_handle_behind() -> None:
    """A handle that nobody releases would keep the memory for good."""
    driver = FakeDriver()
    gpu = find_gpu(driver, "cuda")
    shared = SharedPiece(driver, gpu, GRANULARITY_BYTES, is_legacy=False)
    with pytest.raises(CudaError, match="cuMemMap: CUDA_ERROR_INVALID_VALUE"):
        open_piece(driver, gpu, shared.fd, 2 * GRANULARITY_BYTES, writable=True)
    shared.release()
    assert not driver.handles


def test_a_refused_export_falls_back_to_legacy_ipc(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried, since sandboxes promise by the attribute what they refuse."""
    driver = FakeDriver(export_fails=True)
    arena = CudaArena("cuda", driver, environ={})
    fd = arena.create_kv(1000)
    assert "legacy IPC" in caplog.text
    assert driver.contexts[0] == 1
    opener = FakeDriver()
    piece = open_piece(opener, find_gpu(opener, "cuda"), fd, 1000, writable=True)
    assert piece.is_legacy
    assert piece.num_bytes == LEGACY_GRANULARITY_BYTES
    ctypes.memset(piece.address, 7, 1000)
    piece.close()
    arena.close()
    assert driver.contexts[0] == 0
    assert not driver.handles


def test_a_legacy_offset_is_added_to_what_the_handle_opens() -> None:
    """A handle names the whole segment; who forgets the offset reads a stranger's memory."""

    class Offset(FakeDriver):
        def legacy_export(self, address: int) -> tuple[bytes, int]:
            return super().legacy_export(address)[0], 4096

    maker, opener = Offset(), FakeDriver()
    shared = SharedPiece(maker, find_gpu(maker, "cuda"), 1000, is_legacy=True)
    piece = open_piece(opener, find_gpu(opener, "cuda"), shared.fd, 1000, writable=True)
    assert piece.address == piece.mapped_at + 4096
    piece.close()
    shared.release()


def test_a_device_without_descriptors_is_seen_without_a_trial() -> None:
    """The attribute alone says so."""
    driver = FakeDriver(exports_fds=False)
    assert not can_export_fds(driver, find_gpu(driver, "cuda"))
    assert not driver.calls


def test_a_pool_that_the_gpu_does_not_give_is_refused_with_numbers() -> None:
    """Out of memory is an answer, with CUDA's name for it and a way out."""
    arena = CudaArena("cuda", FakeDriver(memory_bytes=1 << 20), environ={})
    with pytest.raises(
        PoolTooLarge, match=r"2097152 bytes.*CUDA_ERROR_OUT_OF_MEMORY \(2\).*lower pool_bytes"
    ):
        arena.create_kv(2 << 20)


def test_weights_that_the_gpu_does_not_give_leave_nothing_behind(tmp_path: Path) -> None:
    """No loader is started, no memory kept."""
    driver = FakeDriver(memory_bytes=GRANULARITY_BYTES)
    arena = CudaArena("cuda", driver, ("false",), {})
    arena.create_kv(1)
    write_model(tmp_path / "m")
    with pytest.raises(WeightsTooLarge, match=r"m needs 4096 bytes"):
        arena.load_weights(tmp_path / "m", "fp32", tmp_path)
    assert len(driver.handles) == 1
    arena.close()


def test_a_broken_checkpoint_reads_the_same_as_on_the_cpu(tmp_path: Path) -> None:
    """The loader's errors keep their class and text, and the allocation goes."""
    driver = FakeDriver()
    arena = CudaArena("cuda", driver, FAKE_LOADER_COMMAND, {})
    write_model(tmp_path / "m", cut_bytes=8)
    with pytest.raises(CheckpointTruncated, match="incomplete copy"):
        arena.load_weights(tmp_path / "m", "fp32", tmp_path)
    assert not driver.handles


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import sys; sys.exit(3)", "exited with status 3"),
        (
            """print('{"type":"Failed","error":"CudaError","text":"cuInit: X"}')""",
            "onto cuda:GPU-.*: cuInit: X",
        ),
    ],
)
def test_a_loader_that_fails_is_an_error_with_its_ending(tmp_path: Path, script: str, text: str) -> None:
    """Nothing stays allocated, and nobody waits for it."""
    driver = FakeDriver()
    arena = CudaArena("cuda", driver, (sys.executable, "-c", script), {})
    write_model(tmp_path / "m")
    with pytest.raises(DeviceUnavailable, match=text):
        arena.load_weights(tmp_path / "m", "fp32", tmp_path)
    assert not driver.handles


def test_closing_ends_a_load_that_is_at_work(tmp_path: Path) -> None:
    """The child is killed; the loading thread hears that the node stops."""
    driver = FakeDriver()
    arena = CudaArena("cuda", driver, (sys.executable, "-c", "import time; time.sleep(60)"), {})
    write_model(tmp_path / "m")
    raised: list[BaseException] = []

    def load() -> None:
        try:
            arena.load_weights(tmp_path / "m", "fp32", tmp_path)
        except ArenaClosed as exc:
            raised.append(exc)

    thread = threading.Thread(target=load)
    thread.start()
    while arena._loader is None:
        time.sleep(0.001)
    arena.close()
    thread.join(10)
    assert len(raised) == 1
    assert not driver.handles


def test_pieces_larger_than_the_pinned_buffers_arrive_whole() -> None:
    """Cut into buffers by turns; no buffer is overwritten before its copy is done."""
    driver = FakeDriver()
    target = np.zeros(100, np.uint8)
    writer = PinnedWriter(driver, target.ctypes.data, buffer_bytes=16)
    data = np.arange(90, dtype=np.uint8)
    writer.write(10, memoryview(data))
    writer.write(5, memoryview(b""))
    assert driver.calls.count("wait_for_stream") == 6
    writer.close()
    assert target[10:].tolist() == data.tolist()
    assert target[:10].tolist() == [0] * 10
    assert not driver.pinned


def test_errors_name_the_call_the_error_and_a_way_out() -> None:
    """What an operator needs; unknown codes stand alone."""
    error = CudaError("cuMemCreate", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "5 bytes")
    assert str(error).startswith("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2), 5 bytes; lower pool_bytes")
    assert str(CudaError("cuX", 12345, "NAME")) == "cuX: NAME (12345)"
