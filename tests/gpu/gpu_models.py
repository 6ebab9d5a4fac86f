"""A small random Llama over a shared piece of memory, and greedy decoding with nothing but a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_platform import IS_FAKE, synchronize
from torch import Tensor, nn

from python_backend.worker.cuda_backends import Backend, Installed, choose_backend
from python_backend.worker.cuda_runner import CudaRunner
from python_backend.worker.kv import KVCache, KVLayout, view_arena

DTYPES: dict[str, Any] = {"fp32": torch.float32, "bf16": torch.bfloat16}
ALIGNMENT_BYTES = 256
VOCABULARY = 512
MAX_CONTEXT = 2048


@dataclass
class Tokens:
    tokens: list[int]
    slots: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Entry:
    sequence: Tokens
    start: int
    count: int
    samples: bool = True

    @property
    def is_decode(self) -> bool:
        return self.start > 0 and self.count == 1


def new_llama(precision: str, attention: str, hidden: int = 256, layers: int = 4) -> Any:
    """The same weights whatever the attention: wide enough that one wrong KV slot changes the output."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from python_backend.worker import attention as ours

    ours.register()
    torch.manual_seed(1234)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64 * 2,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        max_position_embeddings=MAX_CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    name = ours.ATTENTION_NAME if attention == "ours" else attention
    model = AutoModelForCausalLM.from_config(config, attn_implementation=name)
    return model.to(DTYPES[precision]).eval().requires_grad_(False)


def weight_places(model: nn.Module) -> tuple[dict[str, int], int]:
    """Offset of each parameter, none at 0, and the bytes that all take."""
    places, end = {}, ALIGNMENT_BYTES
    for name, parameter in model.named_parameters():
        places[name] = end
        end += -(-parameter.numel() * parameter.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places, end


def put_weights(model: nn.Module, raw: Tensor) -> None:
    """Copy the parameters to where `use_weights` looks."""
    for name, offset in weight_places(model)[0].items():
        flat = model.get_parameter(name).detach().contiguous().view(-1).view(torch.uint8)
        raw[offset : offset + flat.numel()].copy_(flat)


def use_weights(model: nn.Module, raw: Tensor) -> None:
    """Make the parameters views of shared memory, and bring the buffers to its device."""
    for name, offset in weight_places(model)[0].items():
        parameter = model.get_parameter(name)
        size = parameter.numel() * parameter.itemsize
        view = raw[offset : offset + size].view(parameter.dtype).view(parameter.shape)
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._parameters[leaf] = nn.Parameter(view, requires_grad=False)
    for module in model.modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to(raw.device)
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                vars(module)[name] = value.to(raw.device)


def new_layout(model: Any, precision: Any) -> tuple[KVLayout, Backend]:
    backend = choose_backend(precision, precision, 64, Installed.look(), {})
    shape = model.config
    layout = KVLayout(
        shape.num_hidden_layers,
        shape.num_key_value_heads,
        shape.head_dim,
        backend.block_tokens,
        DTYPES[precision],
    )
    return layout, backend


def new_runner(
    model: Any, raw: Tensor, layout: KVLayout, backend: Backend, gpu: Any, num_seqs: tuple[int, ...] | None
) -> tuple[CudaRunner, KVCache]:
    """Warm."""
    cache = view_arena(raw, layout)
    capture: Any = (lambda step: step) if IS_FAKE else None
    runner = CudaRunner(model, cache, backend, MAX_CONTEXT, synchronize(gpu), capture, num_seqs)
    runner.warm_up()
    return runner, cache


def slots_of(number: int, num_tokens: int, layout: KVLayout, num_blocks: int) -> Any:
    """Blocks out of order, other ones for every number."""
    per_sequence = -(-num_tokens // layout.block_tokens)
    blocks = num_blocks - 1 - (number * per_sequence + np.arange(per_sequence))
    if blocks.min() < 0:
        raise AssertionError(f"{num_blocks} blocks are too few for sequence {number} of {num_tokens} tokens")
    return (blocks[:, None] * layout.block_tokens + np.arange(layout.block_tokens)).reshape(-1)


def greedy(runner: CudaRunner, sequences: list[Tokens], num_new: int) -> list[list[int]]:
    """Prefill all in two chunks, then decode together."""
    logits: list[Tensor] = []
    for sequence in sequences:
        half = len(sequence.tokens) // 2
        chunks: list[list[Any]] = [
            [Entry(sequence, 0, half, samples=False)],
            [Entry(sequence, half, len(sequence.tokens) - half)],
        ]
        logits.append([runner.run(chunk).clone() for chunk in chunks][1])
    step = torch.cat(logits)
    for _ in range(num_new - 1):
        for sequence, row in zip(sequences, step.argmax(dim=-1).tolist(), strict=True):
            sequence.tokens.append(row)
        step = runner.run([Entry(each, len(each.tokens) - 1, 1) for each in sequences])  # type: ignore[misc]
    for sequence, row in zip(sequences, step.argmax(dim=-1).tolist(), strict=True):
        sequence.tokens.append(row)
    return [each.tokens for each in sequences]
