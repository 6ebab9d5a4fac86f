"""A GPU's attention plans, graphs and runner on the CPU: padded as it is, paged over a stand-in for the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from contracts.sampling import SamplingParams
from python_backend.worker import attention_cuda, skeleton
from python_backend.worker.attention_cpu import CpuPlan
from python_backend.worker.attention_cuda import CudaPlan, PaddedPlan, PagedPlan, page_table, stage
from python_backend.worker.cuda_backends import Backend, Installed, choose_backend
from python_backend.worker.cuda_graphs import MAX_PADDED_KEYS, GraphLadder, GraphShape, packed_decodes
from python_backend.worker.cuda_runner import CudaRunner
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.kv import KVCache, KVLayout, view_arena
from python_backend.worker.layer_attention import LayerAttention
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence

VARLEN = Backend("varlen", 16, "a test's")
PADDED = Backend("padded", 16, "a test's")


def varlen_reference(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    query_starts: Tensor,
    key_starts: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """What torch documents of varlen_attn over pages: causal from the lower right, (window - 1, 0) keys back."""
    assert {each.dtype for each in (query_starts, seqused_k, block_table)} == {torch.int32}
    assert key_starts is None or key_starts.diff().tolist() == seqused_k.tolist()
    assert max_q >= int(query_starts.diff().max())
    assert max_k >= int(seqused_k.max())
    out = torch.empty_like(query)
    for i, length in enumerate(seqused_k.tolist()):
        rows = slice(int(query_starts[i]), int(query_starts[i + 1]))
        pages = block_table[i].long()
        keys, values = (each[pages].flatten(0, 1)[:length] for each in (key_pages, value_pages))
        count = rows.stop - rows.start
        at = torch.arange(length - count, length)[:, None]
        seen = torch.arange(length)[None, :] <= at
        if window_size[0] >= 0:
            seen = seen & (torch.arange(length)[None, :] >= at - window_size[0])
        out[rows] = torch.nn.functional.scaled_dot_product_attention(
            query[rows].transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            attn_mask=seen,
            scale=scale,
            enable_gqa=enable_gqa,
        ).transpose(0, 1)
    return out


@pytest.fixture
def _varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cuda, "varlen", varlen_reference)


def random_cache(dtype: torch.dtype = torch.float32, block_tokens: int = 16) -> KVCache:
    layout = KVLayout(2, 2, 8, block_tokens, dtype)
    cache = view_arena(torch.zeros(64 * 16 // block_tokens * layout.block_bytes, dtype=torch.uint8), layout)
    if dtype != torch.int8:
        generator = torch.Generator().manual_seed(3)
        cache.rows.copy_(torch.randn(cache.rows.shape, generator=generator))
    return cache


def scheduled(start: int, count: int, blocks: list[int], block_tokens: int = 16) -> Scheduled:
    slots = (np.asarray(blocks)[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)
    return Scheduled(
        Sequence(start, list(range(start + count)), 1, SamplingParams(), slots=slots), start, count
    )


MIXED = [
    scheduled(5, 1, [9]),
    scheduled(40, 1, [3, 1, 7]),
    scheduled(16, 1, [12, 4]),
    scheduled(0, 20, [20, 21]),
    scheduled(30, 9, [30, 28, 29]),
]
"""Decodes, a first chunk, a later chunk, blocks out of order."""


def packed(batch: list[Scheduled]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    count = sum(entry.count for entry in batch)
    query = torch.randn(1, 6, count, 8, generator=generator)
    key, value = (torch.randn(1, 2, count, 8, generator=generator) for _ in range(2))
    return query, key, value


@pytest.mark.parametrize(
    "how",
    [
        LayerAttention(),
        LayerAttention(scaling=0.7),
        LayerAttention(sliding_window=7),
        LayerAttention(softcap=3.0),
    ],
    ids=["plain", "scaled", "window", "softcap"],
)
@pytest.mark.parametrize(
    "batch", [MIXED, MIXED[:3], MIXED[3:], MIXED[:1]], ids=["mixed", "decodes", "chunks", "one"]
)
@pytest.mark.usefixtures("_varlen")
def test_padded_and_paged_attention_are_what_the_cpu_computes(
    batch: list[Scheduled], how: LayerAttention
) -> None:
    """Every mixture of decodes and chunks, windows and softcaps; K and V written to the same places."""
    query, key, value = packed(batch)
    caches = [random_cache() for _ in range(3)]
    plans = [CpuPlan.of(caches[0], batch), PaddedPlan.of(caches[1], batch), PagedPlan.of(caches[2], batch)]
    expected, padded, paged = (plan.attend(1, query, key, value, how) for plan in plans)
    torch.testing.assert_close(padded, expected)
    torch.testing.assert_close(paged, expected)
    for cache in caches[1:]:
        assert torch.equal(cache.rows, caches[0].rows)


def test_padded_attention_reads_a_cache_of_lower_precision() -> None:
    """int8 rows are dequantized on the way, as on the CPU."""
    query, key, value = packed(MIXED[3:4])
    caches = [random_cache(torch.int8) for _ in range(2)]
    for plan_of, cache in zip((CpuPlan.of, PaddedPlan.of), caches, strict=True):
        plan_of(cache, MIXED[3:4]).attend(0, query, key, value, LayerAttention())
    decode = [scheduled(20, 1, [20, 21])]
    query, key, value = packed(decode)
    attended = [
        plan_of(cache, decode).attend(0, query, key, value, LayerAttention())
        for plan_of, cache in zip((CpuPlan.of, PaddedPlan.of), caches, strict=True)
    ]
    torch.testing.assert_close(attended[0], attended[1])


def test_many_long_decodes_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the longest contexts do not take the GPU's memory at once; the result is the same."""
    query, key, value = packed(MIXED[:3])
    whole = PaddedPlan.of(random_cache(), MIXED[:3]).attend(0, query, key, value, LayerAttention())
    monkeypatch.setattr(attention_cuda, "MAX_GATHERED_KEYS", 50)
    parts = PaddedPlan.of(random_cache(), MIXED[:3]).attend(0, query, key, value, LayerAttention())
    torch.testing.assert_close(parts, whole)


def test_one_wrong_page_changes_the_result() -> None:
    """The comparison above would see it."""
    query, key, value = packed(MIXED[1:2])
    right = PaddedPlan.of(random_cache(), MIXED[1:2]).attend(0, query, key, value, LayerAttention())
    wrong = PaddedPlan.of(random_cache(), [scheduled(40, 1, [3, 2, 7])]).attend(
        0, query, key, value, LayerAttention()
    )
    assert (right - wrong).abs().max() > 0.1


def test_attention_without_a_backend_is_the_one_that_runs_everywhere() -> None:
    """`plan_attention` names none."""
    assert isinstance(CudaPlan.of(random_cache(), MIXED), PaddedPlan)


def test_a_page_table_has_each_sequences_pages_and_repeats_its_first() -> None:
    """Padding must point at memory of the sequence itself: finite, and its own."""
    batch = [scheduled(40, 1, [3, 1, 7]), scheduled(15, 1, [9]), scheduled(16, 1, [12, 4])]
    assert page_table(batch, 16).tolist() == [[3, 1, 7], [9, 9, 9], [12, 4, 12]]
    assert page_table(batch[1:2], 16, width=2).tolist() == [[9, 9]]


def test_staged_arrays_keep_shapes_and_values() -> None:
    """One copy for all, empty ones included."""
    arrays = [np.arange(3), np.arange(6).reshape(2, 3), np.empty(0, dtype=np.int64)]
    for array, tensor in zip(arrays, stage(arrays, torch.device("cpu")), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


# --- which backend ---


FULL = Installed(has_paged_varlen=True)


def test_flash_pages_are_large_and_others_small() -> None:
    """256 for FlashAttention 2, 64 for 3, 16 where pages do not matter; with a reason each."""
    assert choose_backend("bf16", "bf16", 64, FULL, {}).block_tokens == 256
    newer = choose_backend("bf16", "bf16", 64, replace(FULL, flash_version=3), {})
    assert (newer.block_tokens, newer.flash_version) == (64, 3)
    none = choose_backend("bf16", "bf16", 64, Installed(has_paged_varlen=False), {})
    assert (none.name, none.block_tokens) == ("padded", 16)
    assert "no varlen_attn with block_table" in none.reason


@pytest.mark.parametrize(
    ("precision", "kv", "head_dim", "reason"),
    [
        ("fp32", "bf16", 64, "compute in bf16"),
        ("bf16", "int8", 64, "over a KV cache in int8"),
        ("bf16", "bf16", 260, "these have 260"),
        ("bf16", "bf16", 60, "these have 60"),
    ],
)
def test_what_no_flash_kernel_reads_is_padded(precision: Any, kv: Any, head_dim: int, reason: str) -> None:
    """Types and head sizes, whatever is installed or wished for."""
    chosen = choose_backend(precision, kv, head_dim, FULL, {"TIDEGATE_CUDA_ATTENTION": "varlen"})
    assert chosen.name == "padded"
    assert reason in chosen.reason


def test_the_wish_for_padded_attention_holds() -> None:
    """To tell a kernel's fault from ours."""
    assert choose_backend("bf16", "bf16", 64, FULL, {"TIDEGATE_CUDA_ATTENTION": "padded"}).name == "padded"


def test_what_is_installed_is_found_without_cuda() -> None:
    """By signatures; on this machine torch is new enough."""
    assert Installed.look().flash_version == 2
    assert not torch.cuda.is_initialized()


# --- graphs ---


def test_a_step_takes_the_smallest_graph_that_holds_it() -> None:
    """Sequences and keys both; what no graph holds runs without."""
    padded = GraphLadder(4096, is_paged=False)
    assert padded.lengths() == [512, 2048, 4096]
    assert padded.choose(3, 100) == GraphShape(4, 512)
    assert padded.choose(4, 513) == GraphShape(4, 2048)
    assert padded.choose(64, 2048) == GraphShape(64, 2048)
    assert padded.choose(64, 2049) is None
    assert padded.choose(65, 10) is None
    assert padded.choose(1, 4097) is None
    assert GraphLadder(8192, is_paged=True).choose(5, 1) == GraphShape(8, 8192)
    assert all(shape.num_seqs * shape.max_tokens <= MAX_PADDED_KEYS for shape in padded.shapes())


def test_rows_that_are_too_many_repeat_the_first() -> None:
    """Nothing outside of the batch's own blocks is read or written, and no null block has to be leased."""
    flat = packed_decodes(MIXED[1:3], GraphShape(4, 64), 16)
    ids, positions, writes, lengths = flat[:16].reshape(4, 4)
    assert ids.tolist() == [40, 16, 40, 40]
    assert positions.tolist() == [40, 16, 40, 40]
    assert writes.tolist() == [7 * 16 + 8, 4 * 16, 7 * 16 + 8, 7 * 16 + 8]
    assert lengths.tolist() == [41, 17, 41, 41]
    table = flat[16:].reshape(4, 4)
    assert table.tolist() == [[3, 1, 7, 3], [12, 4, 12, 12], [3, 1, 7, 3], [3, 1, 7, 3]]


# --- the runner ---


def rerun(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """In the place of a capture: the same code over the same memory, when it is replayed."""
    return step


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    return skeleton.new_decoder(config).eval().requires_grad_(False)


def decode_all(run: Callable[[list[Scheduled]], Tensor], prompts: list[list[int]], steps: int) -> list[Any]:
    """Greedy tokens of all prompts, prefilled together, then decoded together; one leaves after two steps."""
    sequences = []
    for number, prompt in enumerate(prompts):
        blocks = np.array([number + 1, number + 20, number + 40])
        slots = (blocks[:, None] * 16 + np.arange(16)).reshape(-1)
        sequences.append(Sequence(number, list(prompt), len(prompt), SamplingParams(), slots=slots))
    logits = [run([Scheduled(each, 0, each.num_tokens) for each in sequences]).clone()]
    for step in range(steps):
        for sequence, row in zip(sequences, logits[-1], strict=True):
            sequence.tokens.append(int(row.argmax()))
        if step == 2:
            sequences = sequences[1:]
            logits[-1] = logits[-1][1:]
        logits.append(run([Scheduled(each, each.num_tokens - 1, 1) for each in sequences]).clone())
    return [each.tolist() for each in logits]


@pytest.mark.parametrize("backend", [PADDED, VARLEN], ids=lambda backend: backend.name)
@pytest.mark.parametrize("num_seqs", [(), (1, 2, 4)], ids=["eager", "graphs"])
@pytest.mark.usefixtures("_varlen")
def test_the_gpu_runner_computes_what_the_cpu_runner_does(
    llama: Any, backend: Backend, num_seqs: tuple[int, ...]
) -> None:
    """Logits of prefill and decodes, a batch that shrinks, with and without graphs, on both backends."""
    layout = KVLayout.of(llama)
    prompts = [[5, 9, 2, 33, 7], [1, 2], list(range(3, 22))]
    raws = [torch.zeros(64 * layout.block_bytes, dtype=torch.uint8) for _ in range(2)]
    expected = decode_all(DecoderRunner(llama, view_arena(raws[0], layout)).run, prompts, 5)
    waits: list[None] = []
    runner = CudaRunner(
        llama, view_arena(raws[1], layout), backend, 48, lambda: waits.append(None), rerun, num_seqs
    )
    runner.warm_up()
    assert runner.backend.name == backend.name
    assert not raws[1].any(), "a spare writes nothing to the arena"
    assert runner.num_graphs == len(num_seqs)
    waits.clear()
    for got, wanted in zip(decode_all(runner.run, prompts, 5), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert len(waits) == 6, "every step ends before its blocks are published"


def test_paged_attention_that_does_not_work_is_replaced_in_the_warm_up(
    llama: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it raises or computes something else; the log says why."""
    layout = KVLayout.of(llama)
    for broken in (_raises, lambda query, *_, **__: torch.zeros_like(query)):
        monkeypatch.setattr(attention_cuda, "varlen", broken)
        cache = view_arena(torch.zeros(64 * layout.block_bytes, dtype=torch.uint8), layout)
        runner = CudaRunner(llama, cache, VARLEN, 48, lambda: None, rerun, (1,))
        runner.warm_up()
        assert runner.backend.name == "padded"
    assert "no kernel for this" in caplog.text
    assert "differs from padded attention by" in caplog.text


def _raises(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("no kernel for this")


def test_a_model_that_cannot_be_captured_runs_without_graphs(
    llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Slower, not refused."""

    def fail(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    layout = KVLayout.of(llama)
    cache = view_arena(torch.zeros(64 * layout.block_bytes, dtype=torch.uint8), layout)
    runner = CudaRunner(llama, cache, PADDED, 48, lambda: None, fail, (1, 2))
    runner.warm_up()
    assert runner.num_graphs == 0
    assert "decodes run without graphs" in caplog.text
    assert len(decode_all(runner.run, [[1, 2, 3], [4]], 1)) == 2
