"""A loop over a target, a load and a clock that are made up; the book and the decider are the real ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scaler.deciding.decision import Decision
from scaler.looping.loop import Loop
from scaler.looping.model_loop import Signaller
from scaler.looping.views import ModelView
from scaler.measuring.collector import Collector
from scaler.serving.book import Book
from scaler.testing import FakeClock, FakeLoad, FakeNode, FakeTarget, FakeTriton, settle

POLICY = """
models:
  chat: {min_instances: 1, max_instances: 8, forecast: {enabled: false}, scale_out: {utilization_hold_s: 3}}
"""
EXECUTION_S = 0.1


@dataclass
class Rig:
    """A loop, ticked by hand once a second."""

    policy: str = POLICY
    options: dict[str, Any] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    load: FakeLoad = field(default_factory=FakeLoad)
    said: list[str] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    """Of `chat`, after each tick."""

    def __post_init__(self) -> None:
        self.target = FakeTarget(self.clock, {"chat": 1})
        self.book = Book()
        self.book.set_policy(self.policy, self.clock())
        self.restart()

    def restart(self) -> None:
        """A scaler that knows nothing but the book."""
        self.loop = Loop(
            self.book, self._collector(), self.target, clock=self.clock, say=self.said.append, **self.options
        )

    async def tick(self, times: int = 1, *, model: str = "chat", step_s: float = 1.0) -> Decision:
        for _ in range(times):
            self.clock.advance(step_s)
            await settle()
            self._work(step_s)
            decisions = await self.loop.tick(self.clock())
            await settle()
            self.ready.append(self.target.ready["chat"])
        return next(item for item in decisions if item.model == model)

    @property
    def view(self) -> ModelView:
        return self.loop.views()[0]

    def _collector(self) -> Signaller:
        return self.load

    def _work(self, seconds: float) -> None:
        """`FakeLoad` works when it is looked at."""


@dataclass
class MeasuredRig(Rig):
    """The same with the real collector, over a Triton and a node that work as many instances as are ready."""

    triton: FakeTriton = field(default_factory=FakeTriton)
    node: FakeNode = field(default_factory=FakeNode)
    is_generate: bool = False

    def __post_init__(self) -> None:
        self.triton.model("chat", decoupled=self.is_generate)
        if self.is_generate:
            self.node.serve("chat")
        super().__post_init__()

    def _collector(self) -> Signaller:
        return Collector(
            self.triton, clock=self.clock, metrics=self.triton, node=self.node, say=self.said.append
        )

    def _work(self, seconds: float) -> None:
        """What `load.busy` instances would do in that time, as far as there are so many."""
        model, ready, busy = self.triton.models["chat"], self.target.ready["chat"], self.load.busy["chat"]
        done = min(busy + model.pending * EXECUTION_S, ready)
        model.pending = max(0.0, model.pending + (busy - done) * seconds / EXECUTION_S)
        if self.is_generate:
            self._place(busy, ready)
        else:
            model.execute(1, EXECUTION_S, times=round(done * seconds / EXECUTION_S), queued_s=0.01)

    def _place(self, busy: float, ready: int) -> None:
        """Streams on the instances that are ready, of cap 64 each."""
        del self.node.reply.instances[:]
        for number in range(ready):
            num = min(64, round(64 * busy / ready))
            landed = round(self.clock() - self.clock.began_s) * 10
            self.node.attach("chat", f"chat-{number}", in_flight=num, num_running=num, landed=landed)
