"""Models that are not of our node as a target: any Triton in explicit mode, over gRPC alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import instance_update as update
from scaler.acting import plain_actuator, resting
from scaler.acting.challenge import Claim
from scaler.acting.draining import Say
from scaler.acting.model_lock import ModelLock
from scaler.acting.ownership import Watch, owner_id, with_mark
from scaler.acting.plain_actuator import FOR_EVER_S
from scaler.acting.plain_update import check_foreign, num_instances, with_count
from scaler.acting.resting import RestingConfigs
from scaler.acting.target import Limits, ScaleResult
from scaler.deciding.observation import Counts
from scaler.errors import Busy, ConfigRefused, ModelUnknown, ScaleError, TritonUnreachable
from scaler.finishing import to_its_end
from scaler.looping.outstanding import Outstanding

NOTHING_TO_PROVE = None
"""`in_place` where nothing stayed that an update could have restarted."""
MAX_RELOADS = 2
"""The first update of a model may be a full reload: Triton completed its config, or its stub wrote a file beside
model.py. Triton then has what we sent, so the next one can not, unless a file keeps changing."""


LOCK_S = 10.0
"""For an answer to another scaler that is being written."""


class Triton(plain_actuator.Triton, resting.Triton, Protocol):
    """What is needed of Triton; `TritonClient` is one."""

    async def load_from_repository(self, model: str, timeout_s: float) -> None: ...


class PlainTarget:
    """A `Target`. One per Triton."""

    def __init__(
        self,
        triton: Triton,
        run_dir: Path,
        *,
        limits: Callable[[str], Limits],
        say: Say,
        claim: Claim | None = None,
    ) -> None:
        self._triton = triton
        self._run_dir = run_dir
        self._limits = limits
        self._say = say
        self._claim = claim or Claim(triton, owner_id(run_dir), say)
        self._configs = RestingConfigs(run_dir / "resting")
        self._outstanding = Outstanding(say)
        self._watches: dict[str, Watch] = {}
        self._reloads: dict[str, int] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._changing: set[str] = set()

    async def counts(self, model: str) -> Counts | None:
        """Also answers another scaler that asks whether this one lives."""
        try:
            config = await self._served(model)
        except (TritonUnreachable, ModelUnknown):
            self._watch(model).lose_sight()
            return None
        if config is None:
            self._watch(model).lose_sight()
        elif not self.has_outstanding(model):
            self._look(config)
        return self._count(model, num_instances(config) if config else 0)

    def has_outstanding(self, model: str) -> bool:
        """Triton works on an update of it, given up or not."""
        return self._outstanding.get(model) is not None

    def _count(self, model: str, served: int) -> Counts:
        """A removal that was sent can't be taken back, so what it takes is counted as draining at once."""
        sent = self._outstanding.get(model)
        wanted = served if sent is None or sent.is_given_up else sent.wanted
        ready, starting = min(served, wanted), max(0, wanted - served)
        room = max(0, self._limits(model).max_instances - ready - starting)
        return Counts(ready, starting, draining=served - ready, room=room)

    async def _served(self, model: str) -> ModelConfig | None:
        """None: not loaded. Raises ModelUnknown when Triton has no such model at all."""
        try:
            return await self._triton.config(model)
        except ModelUnknown:
            if await resting.is_loaded(self._triton, model) is None:
                raise
            return None

    def _look(self, config: ModelConfig) -> None:
        model = config.name
        if intrusion := self._watch(model).find(config, time.monotonic()):
            self._say(
                f"{model}: {intrusion.before} -> {intrusion.after} instances, not by this scaler; adopted"
            )
        if self._claim.is_asked(config):
            task = asyncio.create_task(self._answer(model))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, model: str) -> None:
        try:
            async with ModelLock(self._run_dir, model, 0):
                await self._claim.answer(await self._triton.config(model))
        except Busy:
            pass  # a change of ours goes on, and writes the mark again
        except ScaleError as exc:
            self._say(f"{model}: the other scaler's question could not be answered: {exc}")

    def _watch(self, model: str) -> Watch:
        return self._watches.setdefault(model, Watch(self._claim.me))

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        """Raises also OwnedByOther, NeverSafe, and UpdateStuck while an earlier update has not ended."""
        self._outstanding.check_free(model)
        if model in self._changing:
            raise Busy(f"{model!r} is being changed already; one change at a time")
        self._changing.add(model)
        try:
            return await self._scale(model, wanted)
        finally:
            self._changing.discard(model)

    async def _scale(self, model: str, wanted: int) -> ScaleResult:
        started_s = time.monotonic()
        async with ModelLock(self._run_dir, model, LOCK_S):
            config = await self._served(model)
            before = num_instances(config) if config else 0
            if config is not None:
                check_foreign(config)
                self._configs.forget(model)
                self._watch(model).check(model, started_s)
                config = await self._claim.make(model, config)
                after, in_place = await self._change(config, wanted)
            elif wanted:
                after, in_place = await self._bring_back(model, wanted)
            else:
                after, in_place = 0, NOTHING_TO_PROVE
        return ScaleResult(model, before, after, time.monotonic() - started_s, in_place)

    async def _change(self, config: ModelConfig, wanted: int) -> tuple[int, bool | None]:
        model, limits = config.name, self._limits(config.name)
        if wanted == 0:
            await self._wait_safe(config, limits)
            self._configs.remember(config)
            await to_its_end(resting.unload(self._triton, model, limits.drain_timeout_s))
            return 0, NOTHING_TO_PROVE
        changed = with_mark(with_count(config, wanted), self._claim.mark)
        before, after = num_instances(config), num_instances(changed)
        if after == before:
            return after, NOTHING_TO_PROVE
        self._check_settled(model)
        if after < before:
            await self._wait_safe(config, limits)
        work = plain_actuator.apply(self._triton, config, changed)
        in_place = await self._outstanding.send(model, after, work, limits.start_deadline_s)
        self._watch(model).leave(changed)
        self._note(model, in_place)
        return after, in_place

    async def _wait_safe(self, config: ModelConfig, limits: Limits) -> None:
        await plain_actuator.wait_safe(
            self._triton,
            config,
            longest_stream_s=limits.longest_stream_s,
            timeout_s=limits.drain_timeout_s,
        )

    async def _bring_back(self, model: str, wanted: int) -> tuple[int, bool | None]:
        config, limits = self._configs.recall(model), self._limits(model)
        if config is None:
            load = self._triton.load_from_repository(model, FOR_EVER_S)
            await self._outstanding.send(model, wanted, load, limits.start_deadline_s)
            return await self._change(await self._triton.config(model), wanted)
        changed = with_mark(with_count(config, wanted), self._claim.mark)
        load = self._triton.load(model, update.override_json(config, changed), FOR_EVER_S)
        await self._outstanding.send(model, num_instances(changed), load, limits.start_deadline_s)
        self._watch(model).leave(changed)
        self._configs.forget(model)
        return num_instances(changed), NOTHING_TO_PROVE

    def _check_settled(self, model: str) -> None:
        if self._reloads.get(model, 0) >= MAX_RELOADS:
            raise ConfigRefused(
                f"model {model!r}: each of the last {MAX_RELOADS} updates was a full reload with a second copy of "
                "everything in memory; a file in its folder keeps changing; make the folder read-only and restart "
                "the scaler"
            )

    def _note(self, model: str, in_place: bool | None) -> None:
        if in_place is not False:
            self._reloads[model] = 0
            return
        self._reloads[model] = self._reloads.get(model, 0) + 1
        self._say(
            f"{model}: that was a full reload, not an update in place: its counters began again at 0. Usual for "
            "the first update of a config that Triton completed, or of a model.py that was never compiled; no "
            "request fails, and the next update is in place"
        )
