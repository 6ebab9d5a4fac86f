"""One update of a model that is not of our node: sent once, watched, proved. Over gRPC alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler import calm
from scaler import instance_update as update
from scaler.calm import Sample
from scaler.errors import ConfigDrifted, DrainTimeout, NeverSafe, ScaleError
from scaler.plain_update import is_decoupled, num_instances

LOOK_S = 0.05
"""Between two looks at the statistics: a reload is seen as long as fewer requests come in it than ever before."""
CALM_WINDOW_S = 0.5
FOR_EVER_S = 7 * 86400.0
"""An update is never left: what Triton does with it is known only while its call is open."""


class Triton(Protocol):
    """What is needed of Triton; `TritonClient` is one."""

    async def config(self, model: str) -> ModelConfig: ...
    async def load(self, model: str, config_json: str, timeout_s: float) -> None: ...
    async def is_ready(self, model: str) -> bool: ...
    async def statistics(self, model: str) -> Any: ...


@dataclass(frozen=True)
class Proof:
    """What was seen while Triton worked. `in_place` None: no request had ever come, so nothing can tell."""

    in_place: bool | None
    was_always_ready: bool


async def apply(triton: Triton, served: ModelConfig, wanted: ModelConfig) -> Proof:
    """Returns when Triton has done it, however long it takes. Raises LoadRefused, ConfigRefused, ConfigDrifted."""
    model = served.name
    before = await sample(triton, model)
    call = asyncio.create_task(triton.load(model, update.override_json(served, wanted), FOR_EVER_S))
    last, is_reset, was_always_ready = before, False, True
    while not is_reset and not call.done():
        await asyncio.wait({call}, timeout=LOOK_S)
        with contextlib.suppress(ScaleError):
            was_always_ready = was_always_ready and await triton.is_ready(model)
            now = await sample(triton, model)
            is_reset, last = calm.is_reset(last, now), now
    await call
    is_reset = is_reset or calm.is_reset(last, await sample(triton, model))
    now_served = await triton.config(model)
    changed = update.differences(now_served, wanted)
    if list(now_served.instance_group) != list(wanted.instance_group):
        changed.append("instance_group")
    if changed:
        raise ConfigDrifted(
            f"model {model!r}: after the update Triton serves another {', '.join(changed)} than was sent; "
            "somebody else changes it, or this Triton completes configs (reload the model from its repository)"
        )
    return Proof(False if is_reset else (None if before.num_requests == 0 else True), was_always_ready)


async def wait_safe(
    triton: Triton, config: ModelConfig, *, longest_stream_s: float | None, timeout_s: float
) -> None:
    """Returns when instances can be taken away. Raises NeverSafe and DrainTimeout; nothing was changed then."""
    if not is_decoupled(config):
        return await _wait_calm(triton, config, timeout_s)
    if longest_stream_s is None:
        raise NeverSafe(
            f"model {config.name!r} is decoupled and not of a tidegate node: Triton does not tell whether a stream "
            "is in flight, and one that is would hang for ever; say how long an answer takes at most "
            "(longest_stream_s), or serve it with tidegate"
        )
    await _wait_unused(triton, config.name, longest_stream_s, timeout_s)


async def _wait_calm(triton: Triton, config: ModelConfig, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    before = await sample(triton, config.name)
    while True:
        await asyncio.sleep(CALM_WINDOW_S)
        now = await sample(triton, config.name)
        if calm.is_calm(before, now, num_instances(config)):
            return
        if time.monotonic() > deadline_s:
            raise DrainTimeout(
                f"model {config.name!r}: {calm.mean_waiting(before, now):.0f} requests wait for "
                f"{num_instances(config)} instances, for {timeout_s:g} s now; a removal would wait behind them and "
                "block later updates; all instances serve on"
            )
        before = now


async def _wait_unused(triton: Triton, model: str, quiet_s: float, timeout_s: float) -> None:
    deadline_s = time.monotonic() + quiet_s + timeout_s
    before, since_s = await sample(triton, model), time.monotonic()
    while time.monotonic() - since_s < quiet_s:
        if time.monotonic() > deadline_s:
            raise DrainTimeout(
                f"model {model!r}: requests came in every {quiet_s:g} s (longest_stream_s) of the last "
                f"{quiet_s + timeout_s:g} s, so a stream may be in flight; all instances serve on"
            )
        await asyncio.sleep(LOOK_S)
        now = await sample(triton, model)
        if now.num_requests != before.num_requests:
            before, since_s = now, time.monotonic()


async def sample(triton: Triton, model: str) -> Sample:
    stats = (await triton.statistics(model)).inference_stats
    return Sample(
        at_s=time.monotonic(),
        num_requests=stats.success.count + stats.fail.count,
        queue_s=stats.queue.ns / 1e9,
    )
