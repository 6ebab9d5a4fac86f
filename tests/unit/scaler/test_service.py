"""The gRPC service over a real book and a loop that shows what it is told: answers, refusals and their codes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
import pytest

from contracts import scaler_pb2 as pb
from scaler import errors
from scaler.deciding.decision import Cause, Decision, Direction, Floor, Spec, State
from scaler.deciding.observation import MISSING, Counts, Observation, Quality, Reading, Signals
from scaler.deciding.policy import ModelPolicy
from scaler.errors import StateUnwritable
from scaler.looping.feed import Feed, Subscription
from scaler.looping.views import Change, ModelView
from scaler.looping.wakes import VALID_S, Wakes
from scaler.serving.book import Book
from scaler.serving.service import CODES, ScalerService

NOON = 1_796_126_400.0
POLICY = "models: {chat: {max_instances: 6}}"


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code, self.text = code, text


class FakeContext:
    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise Aborted(code, text)


@dataclass
class FakeLoop:
    """Shows `shown`; `publish` is a tick."""

    shown: dict[str, ModelView] = field(default_factory=dict)
    tick_s: float = 1.0
    last_tick_s: float | None = None
    feed: Feed[ModelView] = field(default_factory=Feed)
    num_nudges: int = 0

    def nudge(self) -> None:
        self.num_nudges += 1

    def views(self) -> list[ModelView]:
        return list(self.shown.values())

    def subscribe(self, max_items: int = 256) -> Subscription[ModelView]:
        return self.feed.subscribe(max_items)

    def publish(self, view: ModelView) -> None:
        self.shown[view.model] = view
        self.feed.publish(view)


@dataclass
class Rig:
    book: Book
    loop: FakeLoop
    wakes: Wakes
    service: ScalerService
    now: float = NOON

    async def call(self, method: str, request: Any) -> Any:
        return await getattr(self.service, method)(request, FakeContext())

    async def refused(self, method: str, request: Any) -> Aborted:
        with pytest.raises(Aborted) as caught:
            await self.call(method, request)
        return caught.value


@pytest.fixture
def rig() -> Rig:
    book, loop = Book(), FakeLoop()
    book.set_policy(POLICY, NOON, who="ada")

    def clock() -> float:
        return made.now

    wakes = Wakes(clock)
    service = ScalerService(
        book,
        loop,
        clock=clock,
        wakes=wakes,
        target="triton 127.0.0.1:8001",
        lead_s=lambda model, policy: 120.0,
        problems=lambda: ["the node does not answer"],
    )
    made = Rig(book, loop, wakes, service)
    return made


def decision(before: int = 2, wanted: int = 4, cause: Cause = Cause.PRESSURE, at_s: float = NOON) -> Decision:
    direction = Direction.OUT if wanted > before else Direction.HOLD
    reason = f"chat {before}→{wanted}: queue 37 ≥ 20 for 3 s, util 0.91; max 6"
    return Decision("chat", at_s, before, wanted, direction, cause, reason, True, State.adopted(NOON))


def view(**changed: Any) -> ModelView:
    signals = Signals(utilization=Reading(Quality.GOOD, 0.91, 0.5), queue=Reading(Quality.STALE, 37, 12))
    spec = Spec("chat", ModelPolicy(), 8.5, floors=(Floor(2, "reservation day 2"),))
    made = ModelView(
        model="chat",
        at_s=NOON,
        observation=Observation(Counts(2, 1, 1, room=3), signals),
        spec=spec,
        decision=decision(),
        forecast="on",
    )
    return replace(made, **changed)


# --- status ---


async def test_status_tells_counts_figures_and_the_last_decision_with_its_reason(rig: Rig) -> None:
    """Each figure with its quality: 0.91 measured, a queue of 37 that is 12 s old, no KV figure at all."""
    rig.loop.publish(view())
    rig.loop.last_tick_s = NOON - 0.25
    found = await rig.call("GetStatus", pb.GetStatusRequest())
    assert (found.policy_revision, found.tick_age_s, found.tick_s) == (1, 0.25, 1.0)
    assert (found.target, list(found.problems)) == ("triton 127.0.0.1:8001", ["the node does not answer"])
    (chat,) = found.models
    assert (chat.is_managed, chat.wanted, chat.min_instances, chat.max_instances) == (True, 4, 1, 6)
    assert (chat.counts.ready, chat.counts.starting, chat.counts.draining, chat.counts.room) == (2, 1, 1, 3)
    assert (chat.signals.utilization.quality, chat.signals.utilization.value) == ("good", 0.91)
    assert (chat.signals.queue.quality, chat.signals.queue.age_s) == ("stale", 12)
    assert chat.signals.kv_occupancy.quality == MISSING.quality.value
    assert chat.decision.reason == "chat 2→4: queue 37 ≥ 20 for 3 s, util 0.91; max 6"
    assert (chat.decision.direction, chat.decision.cause, chat.is_saturated) == ("out", "pressure", True)
    assert (chat.lead_s, chat.forecast) == (8.5, "on")
    assert [(floor.num_instances, floor.reason) for floor in chat.floors] == [(2, "reservation day 2")]
    assert not any(chat.HasField(name) for name in ("pause", "override", "change"))


async def test_what_is_not_known_is_absent_and_not_zero(rig: Rig) -> None:
    """Before the first tick; and while the target can't say how many there are."""
    found = await rig.call("GetStatus", pb.GetStatusRequest())
    assert (found.tick_age_s, len(found.models)) == (-1, 0)
    rig.loop.publish(ModelView("chat", NOON))
    (chat,) = (await rig.call("GetStatus", pb.GetStatusRequest())).models
    assert not any(chat.HasField(name) for name in ("wanted", "counts", "decision"))
    rig.loop.publish(view(observation=Observation(Counts(2))))
    (chat,) = (await rig.call("GetStatus", pb.GetStatusRequest())).models
    assert not chat.counts.HasField("room")


async def test_a_pause_and_a_count_by_hand_show_before_the_next_tick(rig: Rig) -> None:
    """Who said it, and until when."""
    rig.loop.publish(view(change=Change(2, 4, NOON - 3, "because"), last_error="no room", last_error_s=NOON))
    await rig.call("Pause", pb.PauseRequest(model="chat", who="ada", why="debugging"))
    taken = await rig.call(
        "ScaleTo", pb.ScaleToRequest(model="chat", num_instances=3, duration_s=60, who="bob")
    )
    assert (taken.num_instances, taken.until_unix_s, taken.reason) == (3, NOON + 60, "set by bob")
    (chat,) = (await rig.call("GetStatus", pb.GetStatusRequest())).models
    assert (chat.pause.who, chat.pause.why, chat.pause.since_unix_s) == ("ada", "debugging", NOON)
    assert (chat.override.num_instances, chat.pause.is_of_all) == (3, False)
    assert (chat.change.num_wanted, chat.change.since_unix_s, chat.last_error) == (4, NOON - 3, "no room")
    await rig.call("Resume", pb.ResumeRequest(model="chat"))
    (chat,) = (await rig.call("GetStatus", pb.GetStatusRequest(models=["chat"]))).models
    assert not chat.HasField("pause")
    assert not chat.HasField("override")
    assert len((await rig.call("GetStatus", pb.GetStatusRequest(models=["other"]))).models) == 0


async def test_a_model_that_the_policy_does_not_name_is_told_as_observed(rig: Rig) -> None:
    """No bounds, no pause."""
    rig.loop.publish(view(model="embed"))
    await rig.call("Pause", pb.PauseRequest())
    (embed,) = (await rig.call("GetStatus", pb.GetStatusRequest())).models
    assert (embed.is_managed, embed.max_instances, embed.HasField("pause")) == (False, 0, False)


# --- watching ---


async def test_watching_begins_with_the_last_decision_and_goes_on_with_the_news(rig: Rig) -> None:
    """Ticks that say nothing new are left out; a change that fails afterwards is told; the stop ends it."""
    rig.loop.publish(view(decision=decision(at_s=NOON)))
    stream = rig.service.WatchDecisions(pb.WatchDecisionsRequest(), FakeContext())  # type: ignore[arg-type]
    assert (await anext(stream)).at_unix_s == NOON
    same = decision(4, 4, Cause.COOLDOWN, NOON + 1)
    rig.loop.publish(view(decision=same))
    rig.loop.publish(view(decision=decision(4, 4, Cause.COOLDOWN, NOON + 2), is_news=False))
    rig.loop.publish(view(decision=same, last_error="no room"))
    rig.loop.publish(view(decision=same, last_error="no room"))
    rig.loop.publish(view(model="embed", decision=replace(same, model="embed")))
    rig.loop.feed.close()
    news = [(item.model, item.at_unix_s, item.trouble) for item in [await anext(stream) for _ in range(3)]]
    with pytest.raises(Aborted) as caught:
        await anext(stream)
    assert news == [("chat", NOON + 1, ""), ("chat", NOON + 1, "no room"), ("embed", NOON + 1, "")]
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_watching_one_model_says_nothing_of_others(rig: Rig) -> None:
    """chat asked for, embed decided."""
    stream = rig.service.WatchDecisions(pb.WatchDecisionsRequest(models=["chat"]), FakeContext())  # type: ignore[arg-type]
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    rig.loop.publish(view(model="embed", decision=replace(decision(), model="embed")))
    rig.loop.publish(view())
    assert (await first).model == "chat"
    await stream.aclose()


# --- the policy ---


async def test_a_policy_is_set_numbered_and_shown_with_its_history(rig: Rig) -> None:
    """Revision 2 by bob; revision 1 is still there."""
    taken = await rig.call("SetPolicy", pb.SetPolicyRequest(text="models: {}", who="bob", why="night"))
    assert (taken.revision, taken.who, taken.why, taken.at_unix_s) == (2, "bob", "night", NOON)
    shown = await rig.call("GetPolicy", pb.GetPolicyRequest())
    assert (shown.revision.revision, shown.text) == (2, "models: {}")
    assert [each.revision for each in shown.history] == [1, 2]
    assert (await rig.call("GetPolicy", pb.GetPolicyRequest(revision=1))).text == POLICY
    refused = await rig.refused("GetPolicy", pb.GetPolicyRequest(revision=9))
    assert (refused.code, refused.text) == (
        grpc.StatusCode.NOT_FOUND,
        "no policy revision 9; kept are 1 to 2",
    )


async def test_a_bad_policy_is_invalid_argument_with_a_line_per_problem(rig: Rig) -> None:
    """And the one in force stays."""
    text = "models: {chat: {min_instances: 4, max_instances: 2}, embed: {cooldown_out_s: -1}}"
    refused = await rig.refused("SetPolicy", pb.SetPolicyRequest(text=text))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.text.splitlines() == [
        "models.chat: min_instances = 4, must be from 0 to max_instances = 2",
        "models.embed.cooldown_out_s = -1, must be from 0 to 604800",
    ]
    assert (await rig.call("GetPolicy", pb.GetPolicyRequest())).text == POLICY


async def test_a_scaler_without_a_policy_shows_an_empty_one(rig: Rig) -> None:
    """Revision 0, no error."""
    empty = ScalerService(
        Book(), rig.loop, clock=lambda: NOON, wakes=rig.wakes, target="t", lead_s=lambda model, policy: 1.0
    )
    shown = await empty.GetPolicy(pb.GetPolicyRequest(), FakeContext())  # type: ignore[arg-type]
    assert (shown.revision.revision, shown.text) == (0, "")


# --- reservations and wakes ---


async def test_a_reservation_is_made_listed_and_cancelled(rig: Rig) -> None:
    """13:00 to 14:00, known at noon: starts are due 150 s before."""
    request = pb.ReserveRequest(
        model="chat", name="launch", start="13:00", end="14:00", min_instances=3, who="ada", why="tv"
    )
    made = await rig.call("Reserve", request)
    assert (made.next_start_unix_s, made.next_end_unix_s) == (NOON + 3600, NOON + 7200)
    assert made.floor_rises_unix_s == NOON + 3600 - 120 - 30
    assert (made.zone, len(made.days), made.who, made.is_of_policy) == ("UTC", 7, "ada", False)
    listed = await rig.call("ListReservations", pb.ListReservationsRequest(model="chat"))
    assert list(listed.reservations) == [made]
    assert not (await rig.call("ListReservations", pb.ListReservationsRequest(model="embed"))).reservations
    await rig.call("Cancel", pb.CancelRequest(name="launch"))
    assert not (await rig.call("ListReservations", pb.ListReservationsRequest())).reservations


async def test_a_wake_counts_while_it_is_repeated(rig: Rig) -> None:
    """3 requests wait; 5 s after the last word nobody does. The first word alone makes the loop look at once."""
    for _ in range(2):
        await rig.call("Wake", pb.WakeRequest(model="chat", num_waiting=3))
    assert rig.loop.num_nudges == 1
    assert rig.wakes.num_waiting("chat") == 3
    rig.now += VALID_S
    assert rig.wakes.num_waiting("chat") == 3
    rig.now += 0.1
    assert rig.wakes.num_waiting("chat") == 0
    assert (await rig.refused("Wake", pb.WakeRequest(model="embed"))).code is grpc.StatusCode.NOT_FOUND


# --- refusals ---


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("Pause", pb.PauseRequest(model="caht"), "NOT_FOUND"),
        ("Resume", pb.ResumeRequest(model="caht"), "NOT_FOUND"),
        ("ScaleTo", pb.ScaleToRequest(model="chat", num_instances=7, duration_s=9), "INVALID_ARGUMENT"),
        ("ScaleTo", pb.ScaleToRequest(model="chat", num_instances=2), "INVALID_ARGUMENT"),
        ("Reserve", pb.ReserveRequest(model="chat", name="x", start="1", end="2"), "INVALID_ARGUMENT"),
        ("Reserve", pb.ReserveRequest(model="chat", start="13:00", end="14:00"), "INVALID_ARGUMENT"),
        ("Cancel", pb.CancelRequest(name="x"), "NOT_FOUND"),
        ("SetPolicy", pb.SetPolicyRequest(text="models: {}", expected_revision=7), "ABORTED"),
        ("SetPolicy", pb.SetPolicyRequest(text="models: [chat"), "INVALID_ARGUMENT"),
    ],
)
async def test_a_refusal_has_its_code(rig: Rig, method: str, request_: Any, code: str) -> None:
    """And leaves the book as it was."""
    before = rig.book.state
    assert (await rig.refused(method, request_)).code.name == code
    assert rig.book.state is before


async def test_one_model_of_a_paused_whole_and_a_reservation_of_the_policy_are_preconditions(
    rig: Rig,
) -> None:
    """The call is well formed; the state forbids it."""
    text = 'models: {chat: {reservations: [{name: day, start: "08:00", end: "20:00", min_instances: 1}]}}'
    await rig.call("SetPolicy", pb.SetPolicyRequest(text=text))
    await rig.call("Pause", pb.PauseRequest())
    for refused in (
        await rig.refused("Resume", pb.ResumeRequest(model="chat")),
        await rig.refused("Cancel", pb.CancelRequest(name="day")),
    ):
        assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    await rig.call(
        "Reserve", pb.ReserveRequest(model="chat", name="x", start="13:00", end="14:00", min_instances=1)
    )
    taken = pb.ReserveRequest(model="chat", name="x", start="13:00", end="15:00", min_instances=1)
    assert (await rig.refused("Reserve", taken)).code is grpc.StatusCode.ALREADY_EXISTS


async def test_a_state_that_can_not_be_kept_is_unavailable(rig: Rig) -> None:
    """The disk is full: the caller may try again, and nothing has changed."""

    def full(state: object) -> None:
        raise StateUnwritable("disk full")

    rig.service._book = Book(rig.book.state, keep=full)
    refused = await rig.refused("Pause", pb.PauseRequest(model="chat"))
    assert (refused.code, refused.text) == (grpc.StatusCode.UNAVAILABLE, "disk full")


def test_every_error_of_the_book_has_a_code() -> None:
    """Those that operators meet; a new one must not end as INTERNAL."""
    import inspect

    from scaler.serving import book

    raised = {
        value
        for value in vars(book).values()
        if inspect.isclass(value) and issubclass(value, errors.ScaleError) and value is not errors.ScaleError
    }
    assert raised <= CODES.keys()
    assert len(raised) >= 8
