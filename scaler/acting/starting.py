"""One load call that adds instances, with a way back when they never start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from scaler.acting.draining import Say
from scaler.errors import LoadRefused, StartAbandoned

EndStubs = Callable[[str, Collection[str]], list[int]]
"""Of a model, these instances: kill their stubs, return the pids (`stub_processes.end_stubs`)."""


class Triton(Protocol):
    async def load(self, model: str, config_json: str, timeout_s: float) -> None: ...


async def load(
    triton: Triton,
    model: str,
    config_json: str,
    names: Collection[str],
    *,
    start_s: float,
    update_s: float,
    end_stubs: EndStubs | None,
    say: Say,
) -> None:
    """Send it, once. After `start_s` the stubs of `names` are ended, so that Triton drops the whole update.

    Raises StartAbandoned when it has dropped it; LoadPending after `update_s` when nothing could be ended (then
    Triton takes no other update of the model either); LoadRefused.
    """
    call = asyncio.create_task(triton.load(model, config_json, update_s))
    try:
        await asyncio.wait({call}, timeout=start_s)
        if call.done():
            return await call
        late = f"{', '.join(names)} not started after {start_s:g} s"
        ended = end_stubs(model, names) if end_stubs else []
        say(f"{model}: {late}; {f'ended {len(ended)} stubs' if ended else 'no stub of theirs can be ended'}")
        try:
            await call
        except LoadRefused as exc:
            if not ended:
                raise
            raise StartAbandoned(
                f"model {model!r}: {late}; given up, the others serve on; look at what initialize waits for "
                "(RUN_DIR/logs/tritonserver.log)"
            ) from exc
    finally:
        call.cancel()
