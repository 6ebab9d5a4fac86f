"""Asks another scaler, through the mark that it left in Triton, whether it still lives; and answers when asked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import instance_update as update
from scaler.acting.draining import Say
from scaler.acting.ownership import Mark, read_mark, with_mark
from scaler.errors import LoadPending, OwnedByOther

LOOK_S = 0.1
ANSWER_S = 10.0
"""A living owner looks at every tick, which is a second by default."""
LOAD_S = 5.0
"""A change of a name takes milliseconds, unless Triton works on an update that does not end."""
REFUSED_S = 60.0
"""After an answer the owner is not asked again for so long."""


class Triton(Protocol):
    async def config(self, model: str) -> ModelConfig: ...
    async def load(self, model: str, config_json: str, timeout_s: float) -> None: ...


@dataclass
class Claim:
    """One scaler's part in it."""

    triton: Triton
    me: str
    say: Say
    answer_s: float = ANSWER_S
    _refused: dict[str, tuple[float, OwnedByOther]] = field(default_factory=dict)

    async def make(self, model: str, config: ModelConfig) -> ModelConfig:
        """The config as it is served now; from here on the model may be changed, with `mark` in what is sent.

        Raises OwnedByOther. Takes `answer_s` when another's mark is found, no time otherwise.
        """
        mark = read_mark(config)
        if mark is None or mark.owner == self.me:
            return config
        if model in self._refused and time.monotonic() - self._refused[model][0] < REFUSED_S:
            raise self._refused[model][1]
        try:
            return await self._challenge(model, config, mark.owner)
        except OwnedByOther as exc:
            self._refused[model] = (time.monotonic(), exc)
            raise

    async def _challenge(self, model: str, config: ModelConfig, owner: str) -> ModelConfig:
        self.say(
            f"{model}: scaler {owner} has left its mark; asking for {self.answer_s:g} s whether it lives"
        )
        asked = Mark(owner, self.me)
        started_s = time.monotonic()
        try:
            await self._write(config, asked, LOAD_S)
        except LoadPending as exc:
            raise OwnedByOther(
                f"model {model!r} bears the mark of scaler {owner}, and Triton works on an update of it"
            ) from exc
        passed_s = 0.0
        while passed_s <= self.answer_s:
            await asyncio.sleep(LOOK_S)
            config = await self.triton.config(model)
            passed_s = time.monotonic() - started_s
            if read_mark(config) != asked:
                raise OwnedByOther(
                    f"another scaler ({owner}) scales {model!r}: it answered after {passed_s:.1f} s; "
                    "two would undo each other's work: stop that one, or leave the model out of this one's policy"
                )
        self.say(f"{model}: scaler {owner} did not answer; {self.me} takes over")
        return config

    async def answer(self, config: ModelConfig) -> None:
        """Write our mark again where a challenge stands beside it."""
        if self.is_asked(config):
            self.say(f"{config.name}: another scaler asks whether this one ({self.me}) lives; it does")
            await self._write(config, self.mark, LOAD_S)

    def is_asked(self, config: ModelConfig) -> bool:
        mark = read_mark(config)
        return mark is not None and mark.owner == self.me and bool(mark.challenger)

    @property
    def mark(self) -> Mark:
        return Mark(self.me)

    async def _write(self, config: ModelConfig, mark: Mark, timeout_s: float) -> None:
        text = update.override_json(config, with_mark(config, mark))
        await self.triton.load(config.name, text, timeout_s)
