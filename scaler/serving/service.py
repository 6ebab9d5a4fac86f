"""The scaler's gRPC service (contracts/scaler.proto): thin, over what the loop shows and what the book keeps."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import grpc

from contracts import scaler_pb2 as pb
from contracts import scaler_pb2_grpc as pb_grpc
from scaler.deciding.policy import ModelPolicy
from scaler.deciding.reservations import read_reservation
from scaler.errors import (
    AllPaused,
    NotLeader,
    NotManaged,
    OutOfRange,
    PolicyInvalid,
    ReservationOfPolicy,
    ReservationTaken,
    ReservationUnknown,
    RevisionMoved,
    ScaleError,
    StateUnwritable,
)
from scaler.looping.feed import Subscription
from scaler.looping.views import ModelView
from scaler.looping.wakes import Wakes
from scaler.serving import replies
from scaler.serving.book import Book, Listed

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

CODES: dict[type[ScaleError], grpc.StatusCode] = {
    PolicyInvalid: grpc.StatusCode.INVALID_ARGUMENT,
    OutOfRange: grpc.StatusCode.INVALID_ARGUMENT,
    NotManaged: grpc.StatusCode.NOT_FOUND,
    ReservationUnknown: grpc.StatusCode.NOT_FOUND,
    ReservationTaken: grpc.StatusCode.ALREADY_EXISTS,
    ReservationOfPolicy: grpc.StatusCode.FAILED_PRECONDITION,
    AllPaused: grpc.StatusCode.FAILED_PRECONDITION,
    NotLeader: grpc.StatusCode.FAILED_PRECONDITION,
    RevisionMoved: grpc.StatusCode.ABORTED,
    StateUnwritable: grpc.StatusCode.UNAVAILABLE,
}
"""Of each error that a call can meet; anything else is a defect, and INTERNAL."""


class Views(Protocol):
    """What the service needs of `scaler.looping.loop.Loop`."""

    tick_s: float

    @property
    def last_tick_s(self) -> float | None: ...
    def views(self) -> list[ModelView]: ...
    def nudge(self) -> None: ...
    def subscribe(self, max_items: int = 256) -> Subscription[ModelView]: ...


class ScalerService(pb_grpc.ScalerServicer):
    """`lead_s`: of a model with this policy, as measured. `problems`: what ails the scaler as a whole, in words."""

    def __init__(
        self,
        book: Book,
        loop: Views,
        *,
        clock: Callable[[], float],
        wakes: Wakes,
        target: str,
        lead_s: Callable[[str, ModelPolicy], float],
        problems: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._book = book
        self._loop = loop
        self._clock = clock
        self._wakes = wakes
        self._target = target
        self._lead_s = lead_s
        self._problems = problems

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.ScalerStatus:
        now, last_tick_s = self._clock(), self._loop.last_tick_s
        return pb.ScalerStatus(
            now_unix_s=now,
            policy_revision=self._book.revision,
            tick_age_s=-1.0 if last_tick_s is None else now - last_tick_s,
            tick_s=self._loop.tick_s,
            target=self._target,
            models=[
                replies.status_of(view, self._book, now)
                for view in self._loop.views()
                if not request.models or view.model in request.models
            ],
            problems=self._problems(),
        )

    async def WatchDecisions(
        self, request: pb.WatchDecisionsRequest, context: Context
    ) -> AsyncIterator[pb.Decision]:
        sent: dict[str, pb.Decision] = {}
        with self._loop.subscribe() as feed:  # before the first look, so that nothing is missed between
            for view in self._loop.views():
                if reply := _news(view, request.models, sent):
                    yield reply
            async for view in feed:
                if view.is_news and (reply := _news(view, request.models, sent)):
                    yield reply
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the scaler stops")

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.PolicyRevision:
        async with _refusals(context):
            self._book.set_policy(
                request.text,
                self._clock(),
                request.who,
                request.why,
                expected_revision=request.expected_revision,
            )
            return replies.revision_of(self._book.state.revisions[-1])

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> pb.Policy:
        history = [replies.revision_of(each) for each in self._book.state.revisions]
        found = self._book.policy_at(request.revision or self._book.revision)
        if found is None and request.revision:
            kept = f"{history[0].revision} to {history[-1].revision}" if history else "none"
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no policy revision {request.revision}; kept are {kept}"
            )
        if found is None:
            return pb.Policy()
        return pb.Policy(revision=replies.revision_of(found), text=found.text, history=history)

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        async with _refusals(context):
            self._book.pause(request.model or None, self._clock(), request.who, request.why)
            return pb.PauseResponse()

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        async with _refusals(context):
            self._book.resume(request.model or None, self._clock())
            return pb.ResumeResponse()

    async def ScaleTo(self, request: pb.ScaleToRequest, context: Context) -> pb.Override:
        async with _refusals(context):
            now = self._clock()
            until_s = now + request.duration_s
            override = self._book.override(
                request.model, request.num_instances, until_s, now, request.who, request.why
            )
            return replies.override_of(override)

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.Reservation:
        async with _refusals(context):
            given: dict[str, Any] = {"days": list(request.days)} if request.days else {}
            item = read_reservation(
                name=request.name,
                start=request.start,
                end=request.end,
                zone=request.zone or "UTC",
                min_instances=request.min_instances,
                **given,
            )
            now = self._clock()
            self._book.reserve(request.model, item, now, request.who, request.why)
            made = next(each for each in self._book.reservations(now) if each.item == item)
            return self._reservation(made)

    async def ListReservations(
        self, request: pb.ListReservationsRequest, context: Context
    ) -> pb.ListReservationsResponse:
        listed = self._book.reservations(self._clock())
        chosen = [each for each in listed if request.model in ("", each.model)]
        return pb.ListReservationsResponse(reservations=[self._reservation(each) for each in chosen])

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        async with _refusals(context):
            self._book.cancel(request.name, self._clock())
            return pb.CancelResponse()

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        async with _refusals(context):
            self._book.check_managed(request.model)
            if self._wakes.said(request.model, max(0, request.num_waiting)):
                self._loop.nudge()
            return pb.WakeResponse()

    def _reservation(self, listed: Listed) -> pb.Reservation:
        policy = self._book.policy.models.get(listed.model, ModelPolicy())
        return replies.reservation_of(listed, self._lead_s(listed.model, policy))


def _news(view: ModelView, models: Sequence[str], sent: dict[str, pb.Decision]) -> pb.Decision | None:
    """None: not asked for, or sent already."""
    if view.decision is None or (models and view.model not in models):
        return None
    reply = replies.decision_of(view.decision, view.last_error)
    if reply == sent.get(view.model):
        return None
    sent[view.model] = reply
    return reply


@contextlib.asynccontextmanager
async def _refusals(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except ScaleError as exc:
        code = CODES.get(type(exc), grpc.StatusCode.INTERNAL)
        text = "\n".join(exc.problems) if isinstance(exc, PolicyInvalid) else str(exc)
        await context.abort(code, text)
