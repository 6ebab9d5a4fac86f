"""How far a forward is, counted in modules called: so that the next batch is asked for shortly before the end.

Asked for earlier, it would be smaller than it could have become; later, the worker would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

NEARLY_DONE_SHARE = 0.75
"""Of a forward's module calls. The rest is to cover Triton's way to the next batch: 2 to 5 ms of 30 to 60."""


class Progress:
    """Calls `on_call` at every module's call, and `on_nearly_done` once in each batch.

    How many calls a forward makes is known from the one before; programs without submodules are never nearly done.
    """

    def __init__(self, module: nn.Module, on_call: Callable[[], None]) -> None:
        self._on_call = on_call
        self._on_nearly_done: Callable[[], None] | None = None
        self._num_calls = 0
        self._calls_per_forward = 0
        self._calls_left = 0
        for part in module.modules():
            if next(part.children(), None) is None:
                part.register_forward_pre_hook(self._count)

    def begin(self, num_forwards: int, on_nearly_done: Callable[[], None]) -> None:
        """A batch of so many forwards begins."""
        self._calls_left = int(self._calls_per_forward * (num_forwards - 1 + NEARLY_DONE_SHARE))
        self._on_nearly_done = on_nearly_done if self._calls_left else None
        self._num_calls = 0

    def end_forward(self) -> None:
        self._calls_per_forward, self._num_calls = self._num_calls, 0

    def _count(self, *_: object) -> None:
        self._on_call()
        self._num_calls += 1
        self._calls_left -= 1
        if self._calls_left <= 0 and self._on_nearly_done is not None:
            tell, self._on_nearly_done = self._on_nearly_done, None
            tell()
