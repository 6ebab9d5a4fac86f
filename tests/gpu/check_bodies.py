"""The checks themselves. `check_bodies.py NAME` runs one and prints its figures; `--child NAME JSON` helps one.

Each check runs in a process of its own, and whatever shares memory does so between fresh interpreters.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from gpu_platform import (
    IS_FAKE,
    MIB,
    Skip,
    answer,
    finish,
    first_gpu,
    make_driver,
    median,
    need,
    new_piece,
    say,
    start_child,
    start_gpu,
    synchronize,
    wait_for_parent,
)

OFFSET_BYTES = 3 * MIB + 512
PATTERN = 0xA7
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], list(range(10, 81)), [7] * 33, list(range(400, 500)))
NUM_NEW = 24
FP32_TIE = 1e-3
BF16_TIE = 0.4
"""In standard deviations of the logits: two candidates this close may change places between two ways of computing
them in bf16, in a network of large random weights. A wrong KV slot is off by whole ones, in most tokens."""
MIN_EQUAL_SHARE = 0.85


# --- memory ---


def check_environment() -> dict[str, Any]:
    """What this machine has: read this line first when another fails."""
    import importlib.util

    import torch

    from python_backend.cuda import POSIX_FD_SUPPORTED, VMM_SUPPORTED
    from python_backend.cuda_driver import free_bytes_by_management
    from python_backend.cuda_sharing import can_export_fds
    from python_backend.worker.cuda_backends import Installed, choose_backend

    driver = make_driver()
    gpu = first_gpu(driver)
    wanted = ("numpy", "transformers", "msgspec", "safetensors", "tokenizers", "grpc", "psutil")
    return {
        "torch": torch.__version__,
        "uuid": gpu.uuid,
        "vmm": driver.attribute(gpu.ordinal, VMM_SUPPORTED),
        "posix_fd": driver.attribute(gpu.ordinal, POSIX_FD_SUPPORTED),
        "exports_fds": can_export_fds(driver, gpu),
        "granularity": driver.granularity(gpu.ordinal),
        "total_mib": driver.total_bytes(gpu.ordinal) // MIB,
        "free_mib_by_nvml": (free_bytes_by_management(gpu.uuid) or 0) // MIB,
        "installed": {name: importlib.util.find_spec(name) is not None for name in wanted},
        "attention": str(choose_backend("bf16", "bf16", 64, Installed.look(), {})),
    }


def check_arena() -> dict[str, Any]:
    """Created without a context, written by one process at an offset, read by another, then reclaimed."""
    return _through_two_processes(is_legacy=False)


def check_legacy_ipc() -> dict[str, Any]:
    """The same by legacy handles, whose maker has a context."""
    return _through_two_processes(is_legacy=True)


def _through_two_processes(is_legacy: bool) -> dict[str, Any]:
    piece = new_piece(64 * MIB, is_legacy=is_legacy)
    opened_s = []
    for name in ("write", "read"):
        child = start_child(name, {"fd": piece.fd, "num_bytes": 64 * MIB}, [piece.fd])
        found = answer(child)
        opened_s.append(found["open_s"])
        if name == "read":
            assert found["pattern"] == [PATTERN] * 4, found
            assert found["beside"] == [0, 0], "the write went beyond its place, or memory was not zeroed"
        assert finish(child) == 0
    piece.release()
    return {"open_ms": [round(1000 * each, 2) for each in opened_s]}


def child_write(fd: int, num_bytes: int) -> None:
    gpu, tensor, open_s = _open(fd, num_bytes, writable=True)
    tensor.zero_()
    tensor[OFFSET_BYTES : OFFSET_BYTES + MIB] = PATTERN
    synchronize(gpu)()
    say(open_s=open_s)
    wait_for_parent()


def child_read(fd: int, num_bytes: int) -> None:
    gpu, tensor, open_s = _open(fd, num_bytes, writable=False)
    synchronize(gpu)()
    inside = tensor[OFFSET_BYTES : OFFSET_BYTES + MIB]
    ends = [inside[0], inside[1], inside[-2], inside[-1]]
    beside = [tensor[OFFSET_BYTES - 1], tensor[OFFSET_BYTES + MIB]]
    say(open_s=open_s, pattern=[int(each) for each in ends], beside=[int(each) for each in beside])
    wait_for_parent()


def _open(fd: int, num_bytes: int, writable: bool) -> tuple[Any, Any, float]:
    gpu = start_gpu()
    started_s = time.perf_counter()
    memory = gpu.open(fd, num_bytes, writable=writable)
    open_s = time.perf_counter() - started_s
    assert memory.tensor.numel() == num_bytes
    return gpu, memory.tensor, open_s


def check_read_only() -> dict[str, Any]:
    """A write to weights fails in the writer, and nowhere else."""
    piece = new_piece(8 * MIB)
    writer = start_child("write", {"fd": piece.fd, "num_bytes": 8 * MIB}, [piece.fd])
    answer(writer)
    assert finish(writer) == 0
    reader = start_child("read", {"fd": piece.fd, "num_bytes": 8 * MIB}, [piece.fd])
    answer(reader)
    intruder = start_child("intrude", {"fd": piece.fd, "num_bytes": 8 * MIB}, [piece.fd])
    status = finish(intruder)
    assert status != 0, "a write through a read-only mapping went through"
    assert finish(reader) == 0, "the intruder's fault reached another process"
    again = start_child("read", {"fd": piece.fd, "num_bytes": 8 * MIB}, [piece.fd])
    assert answer(again)["pattern"] == [PATTERN] * 4, "the write reached the memory"
    assert finish(again) == 0
    return {"intruder_status": status}


def child_intrude(fd: int, num_bytes: int) -> None:
    gpu, tensor, _ = _open(fd, num_bytes, writable=False)
    tensor[OFFSET_BYTES] = 1
    synchronize(gpu)()


def check_sharing() -> dict[str, Any]:
    """Further holders cost a context each, never a copy."""
    size = 256 * MIB if IS_FAKE else 8192 * MIB
    piece = new_piece(size)
    gpu = start_gpu()
    free = [gpu.driver.memory_info()[0]]
    children = []
    for _ in range(2):
        child = start_child("hold", {"fd": piece.fd, "num_bytes": size}, [piece.fd])
        answer(child)
        children.append(child)
        free.append(gpu.driver.memory_info()[0])
    for child in children:
        assert finish(child) == 0
    costs = [(before - after) // MIB for before, after in itertools.pairwise(free)]
    assert all(cost < size // MIB // 4 for cost in costs), f"a holder of {size // MIB} MiB cost {costs} MiB"
    return {"piece_mib": size // MIB, "cost_per_holder_mib": costs}


def child_hold(fd: int, num_bytes: int, keep_busy: bool = False) -> None:
    gpu, tensor, open_s = _open(fd, num_bytes, writable=True)
    tensor[:MIB].zero_()
    synchronize(gpu)()
    say(open_s=open_s)
    while keep_busy:
        tensor.add_(1)
    wait_for_parent()


def check_kill() -> dict[str, Any]:
    """SIGKILL in the middle of kernels: the process's end is the proof that its memory can be used again."""
    size = 512 * MIB
    piece = new_piece(size)
    gpu = start_gpu()
    tensor = gpu.open(piece.fd, size, writable=True).tensor
    free_before = gpu.driver.memory_info()[0]
    gone_ms = []
    for _ in range(3 if IS_FAKE else 5):
        child = start_child("hold", {"fd": piece.fd, "num_bytes": size, "keep_busy": True}, [piece.fd])
        answer(child)
        time.sleep(0.05)
        started_s = time.perf_counter()
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        gone_ms.append(1000 * (time.perf_counter() - started_s))
        tensor.fill_(9)
        synchronize(gpu)()
        time.sleep(0.02)
        assert bool((tensor == 9).all()), "a dead process still wrote to its memory"
    lost = (free_before - gpu.driver.memory_info()[0]) // MIB
    assert lost <= 64, f"{lost} MiB of the GPU are lost after the kills"
    return {"gone_ms": [round(each, 1) for each in gone_ms], "lost_mib": lost}


# --- attention ---


def check_attention() -> dict[str, Any]:
    """Padded and paged against dense attention in float64, in every type, with windows and chunks."""
    need("transformers")
    import torch
    from gpu_models import Entry, Tokens, slots_of

    from python_backend.worker.attention_cuda import PaddedPlan, PagedPlan
    from python_backend.worker.cuda_backends import Installed
    from python_backend.worker.kv import KVLayout, view_arena
    from python_backend.worker.layer_attention import LayerAttention

    gpu = start_gpu()
    installed = Installed.look()
    worst: dict[str, float] = {}
    for dtype, block_tokens in ((torch.float32, 16), (torch.bfloat16, 256)):
        layout = KVLayout(2, 2, 64, block_tokens, dtype)
        num_blocks = 3 * -(-1200 // block_tokens)
        cache = view_arena(
            torch.zeros(num_blocks * layout.block_bytes, dtype=torch.uint8, device=gpu.device), layout
        )
        generator = torch.Generator().manual_seed(2)
        cache.rows.copy_(torch.randn(cache.rows.shape, generator=generator))
        batch: list[Any] = [
            Entry(Tokens([1] * 1200, slots_of(number, 1200, layout, num_blocks)), start, count)
            for number, (start, count) in enumerate(((700, 1), (13, 1), (300, 77)))
        ]
        total = sum(entry.count for entry in batch)
        query, key, value = (
            torch.randn(1, heads, total, 64, generator=generator).to(gpu.device, dtype) for heads in (6, 2, 2)
        )
        plans: dict[str, Any] = {"padded": PaddedPlan.of(cache, batch)}
        if dtype == torch.bfloat16 and installed.has_paged_varlen and not IS_FAKE:
            plans["varlen"] = PagedPlan.of(cache, batch, installed.flash_version)
        for window in (None, 50):
            how = LayerAttention(sliding_window=window)
            for name, plan in plans.items():
                got = plan.attend(1, query, key, value, how)
                expected = _dense(cache, batch, query, window)
                error = float((got.double() - expected).abs().max())
                worst[f"{name} {dtype} window={window}".replace("torch.", "")] = round(error, 5)
                limit = 1e-4 if dtype == torch.float32 else 0.03
                assert error < limit, f"{name}, {dtype}, window {window}: off by {error}"
    return {"worst": worst, "paged_varlen": installed.has_paged_varlen}


def _dense(cache: Any, batch: list[Any], query: Any, window: int | None) -> Any:
    """[1, T, Hq, D] in float64; the cache holds the new K and V already."""
    import torch

    row, parts = 0, []
    for entry in batch:
        end = entry.start + entry.count
        slots = torch.from_numpy(entry.sequence.slots[:end]).to(query.device)
        cached = cache.rows[:, 1].index_select(0, slots).double()  # [L, 2, Hkv, D]
        heads = query.shape[1] // cached.shape[2]
        keys, values = (cached[:, at].repeat_interleave(heads, dim=1).transpose(0, 1) for at in (0, 1))
        scores = query[0, :, row : row + entry.count].double() @ keys.transpose(1, 2) / 8
        at = torch.arange(entry.start, end, device=query.device)[:, None]
        place = torch.arange(end, device=query.device)[None, :]
        hidden = (place > at) if window is None else (place > at) | (place <= at - window)
        parts.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values).transpose(0, 1))
        row += entry.count
    return torch.cat(parts).unsqueeze(0)


# --- the model ---


def _shared_model(precision: str, gpu: Any) -> tuple[Any, Any]:
    """A model whose weights are views of a shared piece, opened read-only; the piece must be kept."""
    from gpu_models import new_llama, put_weights, use_weights, weight_places

    model = new_llama(precision, "ours")
    num_bytes = weight_places(model)[1]
    piece = new_piece(num_bytes)
    writer = gpu.open(piece.fd, num_bytes, writable=True)
    put_weights(model, writer.tensor)
    writer.close(synchronize(gpu))
    use_weights(model, gpu.open(piece.fd, num_bytes, writable=False).tensor)
    return model, piece


def check_generate_fp32() -> dict[str, Any]:
    """Token for token what transformers generates, over shared weights and a shared KV arena."""
    mismatches, figures = _generate("fp32", FP32_TIE)
    assert not mismatches, mismatches
    return figures


def check_generate_bf16() -> dict[str, Any]:
    """The same in bf16, where close candidates may change places."""
    mismatches, figures = _generate("bf16", BF16_TIE)
    assert not mismatches, mismatches
    assert figures["equal_share"] >= MIN_EQUAL_SHARE, figures
    return figures


def _generate(precision: str, tie: float) -> tuple[list[str], dict[str, Any]]:
    """Where a token differs from what transformers says on the same tokens before it, though it is no tie."""
    need("transformers")
    import torch
    from gpu_models import Tokens, greedy, new_layout, new_llama, new_runner, slots_of

    gpu = start_gpu()
    if not IS_FAKE:
        torch.backends.cuda.matmul.allow_tf32 = False
    model, weights = _shared_model(precision, gpu)
    layout, backend = new_layout(model, precision)
    num_blocks = len(PROMPTS) * -(-256 // layout.block_tokens)
    kv = new_piece(num_blocks * layout.block_bytes)
    raw = gpu.open(kv.fd, num_blocks * layout.block_bytes, writable=True).tensor
    raw.zero_()
    num_seqs = (1, 4) if IS_FAKE else None
    runner, _ = new_runner(model, raw, layout, backend, gpu, num_seqs)
    sequences = [
        Tokens(list(prompt), slots_of(number, 256, layout, num_blocks))
        for number, prompt in enumerate(PROMPTS)
    ]
    ours = greedy(runner, sequences, NUM_NEW)
    reference = new_llama(precision, "eager").to(gpu.device)
    mismatches, ties, worst = [], 0, 0.0
    for prompt, tokens in zip(PROMPTS, ours, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([tokens], device=gpu.device)).logits[0].float()
        for place in range(len(prompt), len(tokens)):
            row = logits[place - 1]
            gap = float((row.max() - row[tokens[place]]) / row.std())
            worst, ties = max(worst, gap), ties + (gap > 0)
            if gap > tie:
                mismatches.append(f"prompt of {len(prompt)}: token {place} is {gap:.3f} below the best")
    weights.release()
    kv.release()
    equal_share = round(1 - ties / (NUM_NEW * len(PROMPTS)), 3)
    return mismatches, {
        "backend": runner.backend.name,
        "graphs": runner.num_graphs,
        "equal_share": equal_share,
        "worst_gap": round(worst, 3),
    }


def check_prefix() -> dict[str, Any]:
    """A prompt's blocks, computed by one process, are used by another: the same logits, nothing recomputed."""
    need("transformers")
    import torch
    from gpu_models import (
        Entry,
        Tokens,
        new_layout,
        new_llama,
        new_runner,
        put_weights,
        slots_of,
        weight_places,
    )

    gpu = start_gpu()
    model = new_llama("fp32", "ours")
    num_bytes = weight_places(model)[1]
    weights = new_piece(num_bytes)
    put_weights(model, gpu.open(weights.fd, num_bytes, writable=True).tensor)
    layout, backend = new_layout(model, "fp32")
    num_blocks = -(-512 // layout.block_tokens)
    kv = new_piece(num_blocks * layout.block_bytes)
    raw = gpu.open(kv.fd, num_blocks * layout.block_bytes, writable=True).tensor
    raw.zero_()
    model = model.to(gpu.device)
    runner, _ = new_runner(model, raw, layout, backend, gpu, ())
    prompt = [(7 * i) % 500 for i in range(160)]
    sequence = Tokens(prompt, slots_of(0, 256, layout, num_blocks))
    expected = runner.run([Entry(sequence, 0, len(prompt))])[0]  # type: ignore[list-item]
    child = start_child(
        "continue",
        {
            "weights_fd": weights.fd,
            "weights_bytes": num_bytes,
            "kv_fd": kv.fd,
            "num_blocks": num_blocks,
            "prompt": prompt,
        },
        [weights.fd, kv.fd],
    )
    found = answer(child)
    assert finish(child) == 0
    error = float((torch.tensor(found["logits"]) - expected.cpu()).abs().max())
    assert error < 1e-3, f"logits over another process's blocks are off by {error}"
    assert float(expected.std()) > 0.1
    return {"error": error}


def child_continue(
    weights_fd: int, weights_bytes: int, kv_fd: int, num_blocks: int, prompt: list[int]
) -> None:
    """Computes only the last token: all others are in the blocks."""
    from gpu_models import Entry, Tokens, new_layout, new_llama, new_runner, slots_of, use_weights

    gpu = start_gpu()
    model = new_llama("fp32", "ours")
    use_weights(model, gpu.open(weights_fd, weights_bytes, writable=False).tensor)
    layout, backend = new_layout(model, "fp32")
    raw = gpu.open(kv_fd, num_blocks * layout.block_bytes, writable=True).tensor
    runner, _ = new_runner(model, raw, layout, backend, gpu, ())
    sequence = Tokens(prompt, slots_of(0, 256, layout, num_blocks))
    logits = runner.run([Entry(sequence, len(prompt) - 1, 1)])  # type: ignore[list-item]
    say(logits=logits[0].tolist())
    wait_for_parent()


def check_graphs() -> dict[str, Any]:
    """Tokens a second of decode steps with and without graphs, and that both say the same."""
    need("transformers")
    import torch
    from gpu_models import Entry, Tokens, new_layout, new_runner, slots_of

    gpu = start_gpu()
    precision = "fp32" if IS_FAKE else "bf16"
    model, weights = _shared_model(precision, gpu)
    layout, backend = new_layout(model, precision)
    sizes = (1, 4) if IS_FAKE else (1, 16, 64)
    num_blocks = max(sizes) * -(-256 // layout.block_tokens)
    raw = torch.zeros(num_blocks * layout.block_bytes, dtype=torch.uint8, device=gpu.device)
    runners = {
        name: new_runner(model, raw, layout, backend, gpu, num_seqs)[0]
        for name, num_seqs in (("eager", ()), ("graphs", sizes))
    }
    assert runners["graphs"].num_graphs, "nothing was captured; the log above says why"
    figures: dict[str, Any] = {
        "graphs": runners["graphs"].num_graphs,
        "backend": runners["graphs"].backend.name,
    }
    steps = 2 if IS_FAKE else 50
    for size in sizes:
        logits = {}
        for name, runner in runners.items():
            raw.zero_()
            sequences = [Tokens([5] * 200, slots_of(n, 256, layout, num_blocks)) for n in range(size)]
            batch: list[Any] = [Entry(each, 100, 1) for each in sequences]
            runner.run(batch)
            started_s = time.perf_counter()
            for step in range(steps):
                logits[name] = runner.run([Entry(each, 101 + step, 1) for each in sequences])  # type: ignore[misc]
            rate = size * steps / (time.perf_counter() - started_s)
            figures[f"tokens_s_{name}_{size}"] = round(rate, 1)
            logits[name] = logits[name].clone()
        error = float((logits["eager"] - logits["graphs"]).abs().max() / logits["eager"].std())
        assert error < (1e-3 if IS_FAKE else 0.5), f"graphs differ by {error} standard deviations at {size}"
    weights.release()
    return figures


def check_scaleout() -> dict[str, Any]:
    """From fork to ready in a worker of a CUDA-free fork server: context, weights, KV memory, warm-up, graphs."""
    need("transformers")
    from gpu_models import new_llama, put_weights, weight_places

    model = new_llama("fp32", "ours")
    num_bytes = weight_places(model)[1]
    # Another process makes the pieces, as the node does: this one must not even initialise CUDA before it forks.
    ours, theirs = socket.socketpair()
    maker = start_child(
        "make", {"sock_fd": theirs.fileno(), "sizes": [num_bytes, 64 * MIB]}, [theirs.fileno()]
    )
    _, (weights_fd, kv_fd), _, _ = socket.recv_fds(ours, 1, 2)
    filler = os.fork()
    if filler == 0:
        gpu = start_gpu()
        put_weights(model, gpu.open(weights_fd, num_bytes, writable=True).tensor)
        synchronize(gpu)()
        os._exit(0)
    assert os.waitpid(filler, 0)[1] == 0, "filling the weights after a fork failed"
    stages = [_fork_worker(model, weights_fd, num_bytes, kv_fd) for _ in range(2 if IS_FAKE else 5)]
    assert finish(maker) == 0
    names = ("context_s", "open_s", "warm_s")
    return {"p50_" + name: round(median([each[name] for each in stages]), 4) for name in names}


def child_make(sock_fd: int, sizes: list[int]) -> None:
    pieces = [new_piece(size) for size in sizes]
    with socket.socket(fileno=sock_fd) as sock:
        socket.send_fds(sock, [b"x"], [piece.fd for piece in pieces])
    wait_for_parent()


def _fork_worker(model: Any, weights_fd: int, weights_bytes: int, kv_fd: int) -> dict[str, float]:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, json.dumps(_worker(model, weights_fd, weights_bytes, kv_fd)).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as report:
        text = report.read()
    os.waitpid(pid, 0)
    assert text, "a forked worker died before it was ready"
    stages: dict[str, float] = json.loads(text)
    return stages


def _worker(model: Any, weights_fd: int, weights_bytes: int, kv_fd: int) -> dict[str, float]:
    from gpu_models import new_layout, new_runner, use_weights

    marks = [time.perf_counter()]
    gpu = start_gpu()
    marks.append(time.perf_counter())
    use_weights(model, gpu.open(weights_fd, weights_bytes, writable=False).tensor)
    raw = gpu.open(kv_fd, 64 * MIB, writable=True).tensor
    marks.append(time.perf_counter())
    layout, backend = new_layout(model, "fp32")
    new_runner(model, raw, layout, backend, gpu, (1, 4) if IS_FAKE else None)
    marks.append(time.perf_counter())
    return dict(
        zip(
            ("context_s", "open_s", "warm_s"),
            (b - a for a, b in itertools.pairwise(marks)),
            strict=True,
        )
    )


# --- without kernels ---


def check_fragmentation() -> dict[str, Any]:
    """A day of churn over the pool's allocator with a GPU's sizes: how much of what is free is usable as blocks."""
    from python_backend.node.allocator import Allocator

    rng = random.Random(5)
    total, block_sizes = 64 << 30, (2 * MIB, 8 * MIB, 32 * MIB)
    allocator, held, worst = Allocator(total), [], 1.0
    for step in range(20_000):
        if held and (rng.random() < 0.5 or allocator.free_bytes < total // 10):
            allocator.free(held.pop(rng.randrange(len(held))))
        else:
            size = rng.choice(block_sizes)
            offset = allocator.alloc(size * rng.randint(1, 4), alignment=size)
            if offset is not None:
                held.append(offset)
        if step % 500 == 499 and allocator.free_bytes:
            usable = allocator.aligned_free_bytes(block_sizes[-1]) / allocator.free_bytes
            worst = min(worst, usable)
    for offset in held:
        allocator.free(offset)
    assert allocator.free_bytes == total
    assert allocator.largest_free_bytes == total, "it did not coalesce into one hole"
    return {"worst_usable_share_for_32_mib_blocks": round(worst, 3)}


def check_loader() -> dict[str, Any]:
    """The node's arena and its loader child: a safetensors file ends up in shared memory, byte for byte."""
    need("msgspec", "safetensors", "psutil")
    import tempfile
    from pathlib import Path

    import msgspec
    import torch
    from safetensors.torch import save_file

    from python_backend.messages import TensorSpec
    from python_backend.node.cuda_arena import CudaArena

    fake: dict[str, Any] = {}
    if IS_FAKE:
        script = (
            "import sys, msgspec\n"
            "from python_backend.cuda_testing import FakeDriver\n"
            "from python_backend.node.cuda_loader import LoadRequest, run\n"
            "sys.exit(run(msgspec.json.decode(sys.argv[1], type=LoadRequest), FakeDriver()))"
        )
        fake = {"driver": make_driver(), "loader_command": (sys.executable, "-c", script)}
    with tempfile.TemporaryDirectory() as folder:
        count = 1 << (20 if IS_FAKE else 28)
        tensors = {"a": torch.randn(count // 1024, 1024), "b": torch.arange(7).to(torch.bfloat16)}
        save_file(tensors, Path(folder, "model.safetensors"))
        arena = CudaArena("cuda", **fake)
        started_s = time.perf_counter()
        weights = arena.load_weights(Path(folder), "fp32", Path(folder))
        seconds = time.perf_counter() - started_s
        table = msgspec.json.decode(weights.table_path.read_bytes(), type=dict[str, TensorSpec])
        gpu = start_gpu()
        raw = gpu.open(weights.fd, weights.num_bytes, writable=False).tensor
        for name, tensor in tensors.items():
            spec = table[name]
            size = tensor.numel() * 4
            got = raw[spec.offset_bytes : spec.offset_bytes + size].view(torch.float32).view(tensor.shape)
            assert torch.equal(got.cpu(), tensor.float()), name
        arena.close()
    return {"mib": weights.num_bytes // MIB, "gib_s": round(weights.num_bytes / seconds / 2**30, 2)}


def main() -> int:
    if sys.argv[1] == "--child":
        function: Callable[..., None] = globals()[f"child_{sys.argv[2]}"]
        function(**json.loads(sys.argv[3]))
        sys.stdout.flush()
        os._exit(0)  # as a worker ends: nothing is taken down in an order that could be wrong
    try:
        figures = globals()[f"check_{sys.argv[1]}"]()
    except Skip as exc:
        say(reason=str(exc))
        return 77
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a check that is killed leaves no child
    sys.exit(main())
