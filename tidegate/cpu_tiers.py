"""Which weight precisions this CPU only emulates: told from /proc/cpuinfo, so that nobody is slowed unawares.

Without bf16 instructions a CPU computes bf16 about 7 times slower than fp32 (Intel before Cooper Lake, AMD before
Zen 4); int8 weights without VNNI are widened in software. Both still halve or quarter the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from contracts.stack import Precision, ServedModel

CPUINFO = Path("/proc/cpuinfo")
FAST_FLAGS: dict[Precision, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp"),
}
"""Any of them will do: x86's names, then Arm's."""


def slow_tier_warnings(models: Iterable[ServedModel], flags: frozenset[str]) -> list[str]:
    """One text a model whose precision this CPU has no instructions for. No flags known: none."""
    return [
        f"model {model.name!r}: precision {model.precision} is slower than fp32 on this CPU, which has none of"
        f" {', '.join(FAST_FLAGS[model.precision])}; it saves memory only"
        for model in models
        if flags and model.precision in FAST_FLAGS and not flags & set(FAST_FLAGS[model.precision])
    ]


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The first processor's; x86 calls them flags, Arm Features."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def read_cpu_flags() -> frozenset[str]:
    """Empty where the system does not tell."""
    try:
        return cpu_flags(CPUINFO.read_text())
    except OSError:
        return frozenset()
