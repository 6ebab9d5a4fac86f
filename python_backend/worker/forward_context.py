"""What the attention function needs of the forward that runs now, beside q, k and v.

Not a keyword argument of the model: some classes of transformers hand those down to their attention (Llama), some
do not (StableLM, Nemotron), and mask builders never see them. One forward runs at a time in a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_running: list[Any] = []


@contextmanager
def forward_with(context: Any) -> Iterator[None]:
    """For the length of one forward."""
    _running.append(context)
    try:
        yield
    finally:
        _running.pop()


def forward_context() -> Any:
    """Of the innermost running forward. Raises RuntimeError outside of one."""
    if not _running:
        raise RuntimeError(
            "attention over KV blocks runs only inside DecoderRunner.run, which gives it its plan"
        )
    return _running[-1]
