"""A model bound for a GPU without one: stand-ins in the fork server, weights after it, blocks waited for."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from contracts.sampling import SamplingParams
from python_backend.cuda import CudaUnavailable, find_gpu
from python_backend.cuda_sharing import SharedPiece
from python_backend.cuda_testing import FAKE_UUID, FakeDriver
from python_backend.messages import BindModel, TensorSpec
from python_backend.worker import cuda_memory, skeleton
from python_backend.worker.blocks import BlockPool
from python_backend.worker.cuda_backends import Backend
from python_backend.worker.cuda_binding import GpuWeights, stand_in
from python_backend.worker.cuda_memory import (
    GpuBlocks,
    GpuContext,
    refuse_cuda_before_fork,
    start_cuda,
    tensor_at,
)
from python_backend.worker.cuda_runner import CudaRunner
from python_backend.worker.cuda_worker import gpu_layout
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.kv import KVLayout, view_arena
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence


def view_on_cpu(address: int, num_bytes: int, _device: torch.device) -> torch.Tensor:
    """In the place of the array interface, which only a GPU's torch takes."""
    return torch.frombuffer((ctypes.c_ubyte * num_bytes).from_address(address), dtype=torch.uint8)


def fake_gpu(driver: FakeDriver) -> GpuContext:
    return GpuContext(torch.device("cpu", 0), driver, view_on_cpu)


def write_weights(folder: Path, driver: FakeDriver, is_int8: bool) -> tuple[BindModel, SharedPiece]:
    """A random Llama with a tied head, its table, and its bytes in the fake GPU's memory."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    config.save_pretrained(folder)
    table, chunks, end = {}, [], 0
    for name, parameter in skeleton.new_decoder(config).named_parameters():
        parts = {name: parameter.detach()}
        if is_int8 and name.endswith("_proj.weight"):
            scale = parameter.detach().abs().amax(dim=1) / 127
            parts = {
                name: (parameter.detach() / scale[:, None]).round().to(torch.int8),
                f"{name}_scale": scale,
            }
        for part, tensor in parts.items():
            raw = tensor.contiguous().numpy().tobytes()
            table[part] = TensorSpec(end, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            chunks.append(raw.ljust(-(-len(raw) // 64) * 64, b"\0"))
            end += len(chunks[-1])
    (folder / "table.json").write_bytes(msgspec.json.encode(table))
    gpu = find_gpu(driver, "cuda")
    piece = SharedPiece(driver, gpu, end, is_legacy=False)
    handle = driver.import_fd(piece.fd)
    address = driver.map(0, handle, piece.num_bytes, writable=True)
    ctypes.memmove(address, b"".join(chunks), end)
    driver.unmap(address, piece.num_bytes)
    driver.release(handle)
    bind = BindModel(
        model="chat",
        kind="generate",
        config_dir=str(folder),
        table_path=str(folder / "table.json"),
        weights_bytes=end,
        max_context_tokens=0,
        device=f"cuda:{FAKE_UUID}",
    )
    return bind, piece


@pytest.mark.parametrize("is_int8", [False, True], ids=["fp32", "int8"])
def test_a_model_moves_from_its_stand_ins_to_the_shared_weights(tmp_path: Path, is_int8: bool) -> None:
    """Tied and quantized tensors too; the same logits as the model bound at once, and not a byte copied."""
    driver = FakeDriver()
    bind, piece = write_weights(tmp_path, driver, is_int8)
    weights = GpuWeights(bind, piece.fd)
    model = skeleton.build_skeleton(bind, weights.stand_ins)
    layout = KVLayout.of(model)
    weights.move_in(model, fake_gpu(driver))
    (address, size), *_ = driver.mapped.items()
    for name, parameter in model.named_parameters():
        assert address <= parameter.data_ptr() < address + size, name
    at_once = skeleton.build_skeleton(bind, skeleton.map_views(bind, piece.fd))
    runs = []
    for bound, runner_of in ((model, CudaRunner), (at_once, DecoderRunner)):
        cache = view_arena(torch.zeros(8 * layout.block_bytes, dtype=torch.uint8), layout)
        more: Any = (
            (Backend("padded", 16, "a test's"), 64, lambda: None, None, ()) if runner_of is CudaRunner else ()
        )
        tokens = Sequence(0, [1, 5, 9, 30], 4, SamplingParams(), slots=np.arange(32))
        runs.append(runner_of(bound, cache, *more).run([Scheduled(tokens, 0, 4)]))
    torch.testing.assert_close(runs[0], runs[1])
    assert runs[0].abs().max() > 0.1


def test_stand_ins_have_shape_and_type_and_no_memory() -> None:
    """A model of any size is built in the fork server for nothing; each is known by its own storage."""
    tensors = [stand_in(TensorSpec(0, shape, "bfloat16")) for shape in ([70000, 8192], [3], [], [0, 4])]
    assert [list(each.shape) for each in tensors] == [[70000, 8192], [3], [], [0, 4]]
    assert all(each.untyped_storage().nbytes() == 2 for each in tensors)
    assert len({each.untyped_storage().data_ptr() for each in tensors}) == 4


def test_weights_that_are_missing_are_found_at_the_bind(tmp_path: Path) -> None:
    """In the fork server, not by one worker after another that dies in its warm-up."""
    driver = FakeDriver()
    bind, piece = write_weights(tmp_path, driver, is_int8=False)
    weights = GpuWeights(bind, piece.fd)
    del weights.stand_ins["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(skeleton.ModelRefused, match=r"lack 1 of the model's .*up_proj"):
        skeleton.build_skeleton(bind, weights.stand_ins)


def test_the_descriptor_goes_with_the_model(tmp_path: Path) -> None:
    """A fork server that has forgotten a model must not keep its weights in the GPU."""
    driver = FakeDriver()
    bind, piece = write_weights(tmp_path, driver, is_int8=False)
    before = len(cuda_memory._open_paths())
    weights = GpuWeights(bind, piece.fd)
    assert len(cuda_memory._open_paths()) == before + 1
    del weights
    assert len(cuda_memory._open_paths()) == before


def test_the_block_size_is_the_backends(tmp_path: Path) -> None:
    """Decided where CUDA must not be touched."""
    bind, _ = write_weights(tmp_path, FakeDriver(), is_int8=False)
    assert gpu_layout(bind, KVLayout(2, 2, 8)).block_tokens == 16
    bf16 = msgspec.structs.replace(bind, precision="bf16", kv_precision="bf16")
    assert gpu_layout(bf16, KVLayout(2, 2, 8)).block_tokens == 256


# --- blocks ---


class Diary:
    """A lessor and a GPU that write down what happened in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def synchronize(self) -> None:
        self.events.append("synchronize")

    def lease(self, num_blocks: int, tenant: str) -> range:
        return range(2, 2 + num_blocks)

    def release(self, blocks: range) -> None:
        self.events.append(f"release {blocks.start}..{blocks.stop - 1}")

    def drop(self, blocks: Any) -> None:
        self.events.append("drop")


def test_blocks_go_back_only_when_the_gpu_is_through_with_them() -> None:
    """Zeroing, at least, may still run: the next owner's numbers would be wiped out."""
    diary = Diary()
    memory = GpuBlocks(torch.ones(10 * 64, dtype=torch.uint8), 64, diary.synchronize)
    pool = BlockPool(diary, 16, extent_blocks=2, memory=memory)  # type: ignore[arg-type]
    assert pool.ensure_free(2)
    pool.give_back_unused()
    assert diary.events == ["synchronize", "release 2..3"]


def test_leased_blocks_are_zeroed_and_no_others() -> None:
    """What another request left there is gone, and masked keys stay finite."""
    memory = GpuBlocks(torch.ones(10 * 64, dtype=torch.uint8), 64, lambda: None)
    memory.open_private(range(2, 4))
    memory.open_shared(range(5, 6))
    assert memory.raw.view(10, 64).sum(dim=1).tolist() == [64, 64, 0, 0, 64, 64, 64, 64, 64, 64]


# --- before and after the fork ---


def test_a_fork_server_that_has_touched_cuda_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children could not use the GPU; the bind fails with that reason instead."""
    refuse_cuda_before_fork()
    monkeypatch.setattr(cuda_memory, "_open_paths", lambda: ["/dev/null", "/dev/nvidia-uvm"])
    with pytest.raises(RuntimeError, match="CUDA was initialised in the fork server"):
        refuse_cuda_before_fork()


def test_a_worker_refuses_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it touches the GPU."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(CudaUnavailable, match="take it out"):
        start_cuda(f"cuda:{FAKE_UUID}")


def test_shared_memory_that_torch_would_copy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent copy of the weights would undo the whole pool."""
    monkeypatch.setattr(torch, "as_tensor", lambda exported, device: torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="copied 4 bytes of shared memory"):
        tensor_at(4096, 4, torch.device("cpu"))
