"""What a child is to send, as it knows it by itself: times and calls, made anew in each from a few words."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.call import Call


@dataclass(frozen=True, slots=True)
class Hold:
    """A closed loop: a call per slot is open at any time, the next begins when one ends."""

    starts_s: Sequence[float]
    """When each slot opens, seconds after t0."""


class Work(Protocol):
    """`call` is deterministic: every process that makes it gets the same."""

    @property
    def t_intended_s(self) -> npt.NDArray[np.float64]:
        """Shape [n], ascending seconds after t0. Of a hold: empty."""

    @property
    def hold(self) -> Hold | None: ...

    @property
    def duration_s(self) -> float: ...

    def call(self, index: int) -> Call:
        """Any index below n; of a hold any from 0 on."""


def load_work(maker: str, argument: bytes) -> Work:
    """`maker`: "package.module:function", which is given the decoded JSON. Raises what that raises."""
    module, _, name = maker.partition(":")
    made: Work = getattr(importlib.import_module(module), name)(msgspec.json.decode(argument))
    return made


def digest_of(work: Work) -> int:
    """The same in two processes when they hold the same times."""
    return zlib.crc32(np.ascontiguousarray(work.t_intended_s).tobytes())
