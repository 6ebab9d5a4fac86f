"""Work that a cancel must not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """The work's result. A cancel is heeded when the work is done: Triton takes nothing back that it was sent."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
