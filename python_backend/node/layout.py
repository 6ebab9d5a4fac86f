"""Where each tensor of a checkpoint goes and as what: decided from names, shapes and the precision alone.

Tensors that are the same bytes of the same file, or that `loading` found to be copies, are laid out once; the table
has all their names.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.stack import Precision
from python_backend.messages import TensorSpec
from python_backend.node.checkpoint import Checkpoint, StoredTensor

TENSOR_ALIGNMENT_BYTES = 64
"""A cache line: what BLAS kernels like best."""
PAGE_BYTES = mmap.PAGESIZE

FLOATING = frozenset(("F64", "F32", "F16", "BF16"))
QUANTIZED_DTYPE: dict[Precision, str] = {"int8": "int8", "fp8": "float8_e4m3fn"}
ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float8_e4m3fn": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

# A module's name that says that its 2-D weight is no linear layer [out, in], or one that must stay exact.
_KEPT_MODULE = re.compile(
    r".*embed.*"  # embed_tokens, word_embeddings, embed_in and _out, position_embeddings
    r"|wte|wpe|shared|relative_attention_bias"  # embeddings by other names
    r"|lm_head|decoder|score|classifier"  # what makes logits
    r"|.*norm.*|ln_.*"
    r"|gate|router"  # which expert: a small change chooses another
    r"|c_attn|c_proj|c_fc|q_attn"  # GPT-2's Conv1D, stored [in, out]
    r"|.*conv.*"
)


@dataclass(frozen=True)
class Placed:
    """One tensor's way: read as `tensor` says, kept as `dtype` (torch's name) at `offset_bytes`."""

    tensor: StoredTensor
    dtype: str
    offset_bytes: int
    scale_offset_bytes: int | None = None
    """Of the float32 scales of its rows; None: it is not quantized."""


@dataclass(frozen=True)
class Layout:
    placed: tuple[Placed, ...]
    """In the order in which they lie in the files, each stored tensor once."""
    table: dict[str, TensorSpec]
    num_bytes: int
    """Whole pages, at least one."""


def lay_out(
    checkpoint: Checkpoint, precision: Precision = "fp32", copies: Mapping[str, str] | None = None
) -> Layout:
    """`copies`: name -> name of the tensor whose bytes it has, too."""
    copy_of = dict(copies or {})
    table: dict[str, TensorSpec] = {}
    placed: list[Placed] = []
    first_at: dict[tuple[object, ...], str] = {}
    end = 0
    for tensor in checkpoint.tensors:
        place = (tensor.file, tensor.file_offset_bytes, tensor.dtype, tensor.shape)
        first = first_at.setdefault(place, tensor.name) if tensor.num_bytes else tensor.name
        if first != tensor.name:
            copy_of[tensor.name] = first
        if tensor.name in copy_of:
            continue
        dtype = kept_dtype(tensor, precision)
        offset = _aligned(end)
        table[tensor.name] = TensorSpec(offset, list(tensor.shape), dtype)
        end = offset + math.prod(tensor.shape) * ITEM_BYTES[dtype]
        scale_offset = None
        if dtype == QUANTIZED_DTYPE.get(precision) and tensor.dtype in FLOATING:
            scale_offset = _aligned(end)
            table[f"{tensor.name}_scale"] = TensorSpec(scale_offset, [tensor.shape[0]], "float32")
            end = scale_offset + 4 * tensor.shape[0]
        placed.append(Placed(tensor, dtype, offset, scale_offset))
    _add_copies(table, copy_of)
    return Layout(tuple(placed), table, max(1, -(-end // PAGE_BYTES)) * PAGE_BYTES)


def kept_dtype(tensor: StoredTensor, precision: Precision) -> str:
    """torch's name of the type that a tensor has in memory."""
    if tensor.dtype not in FLOATING:
        return tensor.bound_dtype
    if precision == "bf16":
        return "bfloat16"
    if precision in QUANTIZED_DTYPE and is_linear_weight(tensor.name, tensor.shape):
        return QUANTIZED_DTYPE[precision]
    return "float64" if tensor.dtype == "F64" and precision == "fp32" else "float32"


def is_linear_weight(name: str, shape: tuple[int, ...]) -> bool:
    """A weight [out, in] of a linear layer whose rows may be quantized, as far as a name can tell."""
    *modules, last = name.split(".")
    named = [module for module in modules if not module.isdecimal()]  # "embeds.3" is one of the embeds
    return bool(
        last == "weight" and len(shape) == 2 and named and not _KEPT_MODULE.fullmatch(named[-1].lower())
    )


def _add_copies(table: dict[str, TensorSpec], copy_of: Mapping[str, str]) -> None:
    for name in copy_of:
        first = copy_of[name]
        while first in copy_of:  # the same place in the file as a tensor that is a copy by content
            first = copy_of[first]
        table[name] = table[first]
        if (scale := table.get(f"{first}_scale")) is not None:
            table[f"{name}_scale"] = scale


def _aligned(offset_bytes: int) -> int:
    return -(-offset_bytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
