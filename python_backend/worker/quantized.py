"""Linear layers over weights of 8 bits in the pool: one number per weight, one float32 scale per output row.

The stored tensors stay as they are, shared by all workers; nothing is packed or dequantised for keeps. Without a
kernel that pays, a call dequantises a tile of rows, small enough for the cache, uses it and forgets it.

Measured on a CPU with AMX, two threads, microseconds a call for [1536, 576] at 1 / 16 / 64 / 512 tokens: float32
84 / 404 / 821 / 4253, bfloat16 115 / 150 / 305 / 1823, int8 kernel 48 / 329 / 1278 / 9705, int8 dequantised to
bfloat16 213 / 306 / 922 / 1502, to float32 143 / 485 / 2180 / 7509. Without AVX-512 the kernel is up to 48 times
slower than float32, so there it is not used.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TILE_ELEMENTS = 1 << 20
"""Weights that are dequantised at once."""
_KERNEL_MAX_TOKENS = 16
"""Up to here the int8 kernel beats dequantising."""


class QuantizedLinear(nn.Module):
    """x [..., in] -> x @ (weight * weight_scale).T + bias, [..., out]; dequantises by tiles on any device.

    `weight`: int8 or float8_e4m3fn [out, in]; `weight_scale`: float32 [out].
    """

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        """In the place of `linear`, on its device; the tensors are assigned later."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", torch.empty_like(linear.weight, dtype=dtype))
        self.register_buffer("weight_scale", torch.empty_like(linear.weight[:, 0], dtype=torch.float32))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        out = self._matmul(rows).to(x.dtype)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def _matmul(self, rows: Tensor) -> Tensor:
        return self._by_tiles(rows)

    def _by_tiles(self, rows: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], in the type of `rows`."""
        tile = max(1, _TILE_ELEMENTS // self.in_features)
        parts = [F.linear(rows, weight.to(rows.dtype)) for weight in torch.split(self.weight, tile)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return out * self.weight_scale.to(rows.dtype)


class Int8Linear(QuantizedLinear):
    """As QuantizedLinear, by the kernels of a CPU that has them; these round the activations to bfloat16."""

    def _matmul(self, rows: Tensor) -> Tensor:
        if rows.device.type != "cpu" or rows.dtype == torch.float64 or not has_bfloat16_units():
            return self._by_tiles(rows)
        narrow = rows.to(torch.bfloat16)
        if rows.shape[0] > _KERNEL_MAX_TOKENS:
            return self._by_tiles(narrow)
        return torch._weight_int8pack_mm(narrow, self.weight, self.weight_scale.to(torch.bfloat16))


class Fp8Linear(QuantizedLinear):
    """float8_e4m3fn weights; the CUDA tier. The CPU computes the same, slowly."""


QUANTIZED = {torch.int8: Int8Linear, torch.float8_e4m3fn: Fp8Linear}


@cache
def has_bfloat16_units() -> bool:
    """AVX-512 with bfloat16, or AMX: then bfloat16 and torch's int8 kernel are faster than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
