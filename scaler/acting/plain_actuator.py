"""One update of a model that is not of our node: sent once, watched, proved. Over gRPC alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import calm
from scaler.acting import instance_update as update
from scaler.acting.calm import Sample
from scaler.acting.plain_update import is_decoupled, num_instances
from scaler.errors import ConfigDrifted, DrainTimeout, NeverSafe, ScaleError

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


async def apply(triton: Triton, served: ModelConfig, wanted: ModelConfig) -> bool | None:
    """Returns when Triton has done it, however long it takes, and whether it was in place.

    In place is what left the model READY all the time and let its counters go on. None: no request had ever come,
    so nothing tells. Raises LoadRefused, ConfigRefused, ConfigDrifted.
    """
    model = served.name
    before = await sample(triton, model)
    call = asyncio.create_task(triton.load(model, update.override_json(served, wanted), FOR_EVER_S))
    last, was_in_place = before, True
    while was_in_place and not call.done():
        await asyncio.wait({call}, timeout=LOOK_S)
        with contextlib.suppress(ScaleError):  # one look less; the last one counts
            now = await sample(triton, model)
            was_in_place = await triton.is_ready(model) and not calm.is_reset(last, now)
            last = now
    await call
    was_in_place = was_in_place and not calm.is_reset(last, await sample(triton, model))
    await _check_served(triton, wanted)
    return None if was_in_place and before.num_requests == 0 else was_in_place


async def _check_served(triton: Triton, wanted: ModelConfig) -> None:
    served = await triton.config(wanted.name)
    changed = update.differences(served, wanted)
    if list(served.instance_group) != list(wanted.instance_group):
        changed.append("instance_group")
    if changed:
        raise ConfigDrifted(
            f"model {wanted.name!r}: after the update Triton serves another {', '.join(changed)} than was sent; "
            "somebody else changes it, or this Triton completes configs (reload the model from its repository)"
        )


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
