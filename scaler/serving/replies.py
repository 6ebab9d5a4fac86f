"""The scaler's values as the messages of contracts/scaler.proto. No logic."""

from __future__ import annotations

from contracts import scaler_pb2 as pb
from scaler.deciding.decision import Decision, Floor, Override
from scaler.deciding.observation import Counts, Reading, Signals
from scaler.deciding.reservations import MARGIN_S
from scaler.looping.views import Change, ModelView
from scaler.serving.book import Book, Listed
from scaler.serving.book_state import Revision, Said


def counts_of(counts: Counts) -> pb.Counts:
    made = pb.Counts(ready=counts.ready, starting=counts.starting, draining=counts.draining)
    if counts.room is not None:
        made.room = counts.room
    return made


def reading_of(reading: Reading) -> pb.Reading:
    return pb.Reading(quality=reading.quality.value, value=reading.value, age_s=reading.age_s)


def signals_of(signals: Signals) -> pb.Signals:
    return pb.Signals(
        utilization=reading_of(signals.utilization),
        queue=reading_of(signals.queue),
        queue_time_s=reading_of(signals.queue_time_s),
        concurrency=reading_of(signals.concurrency),
        kv_occupancy=reading_of(signals.kv_occupancy),
        arrivals_per_s=reading_of(signals.arrivals_per_s),
        busy_s_per_request=reading_of(signals.busy_s_per_request),
        wakes=signals.wakes,
    )


def decision_of(decision: Decision, trouble: str = "") -> pb.Decision:
    return pb.Decision(
        model=decision.model,
        at_unix_s=decision.at_s,
        before=decision.before,
        wanted=decision.wanted,
        direction=decision.direction.value,
        cause=decision.cause.value,
        reason=decision.reason,
        is_saturated=decision.is_saturated,
        trouble=trouble,
    )


def status_of(view: ModelView, book: Book, now: float) -> pb.ModelStatus:
    """`book` for what was said since the last tick: an operator sees a pause at once."""
    made = pb.ModelStatus(
        model=view.model,
        is_managed=book.is_managed(view.model),
        signals=signals_of(view.observation.signals),
        forecast=view.forecast,
        last_error=view.last_error,
        last_error_unix_s=view.last_error_s,
    )
    if view.wanted is not None:
        made.wanted = view.wanted
    if view.observation.counts is not None:
        made.counts.CopyFrom(counts_of(view.observation.counts))
    if view.decision is not None:
        made.decision.CopyFrom(decision_of(view.decision, view.last_error))
        made.is_saturated = view.decision.is_saturated
    if view.spec is not None:
        made.lead_s = view.spec.lead_s
        made.floors.extend(floor_of(floor) for floor in view.spec.floors)
    if view.change is not None:
        made.change.CopyFrom(change_of(view.change))
    if made.is_managed:
        policy = book.policy.models[view.model]
        made.min_instances, made.max_instances = policy.min_instances, policy.max_instances
        if (said := book.pause_of(view.model)) is not None:
            made.pause.CopyFrom(pause_of(said, is_of_all=book.state.all_paused is not None))
        if (override := book.override_of(view.model, now)) is not None:
            made.override.CopyFrom(override_of(override))
    return made


def floor_of(floor: Floor) -> pb.Floor:
    return pb.Floor(num_instances=floor.num_instances, reason=floor.reason)


def change_of(change: Change) -> pb.Change:
    return pb.Change(
        num_before=change.num_before,
        num_wanted=change.num_wanted,
        since_unix_s=change.since_s,
        reason=change.reason,
        is_given_up=change.is_given_up,
    )


def pause_of(said: Said, is_of_all: bool) -> pb.Pause:
    return pb.Pause(who=said.who, why=said.why, since_unix_s=said.at_unix_s, is_of_all=is_of_all)


def override_of(override: Override) -> pb.Override:
    return pb.Override(
        num_instances=override.num_instances, until_unix_s=override.until_unix_s, reason=override.reason
    )


def revision_of(revision: Revision) -> pb.PolicyRevision:
    said = revision.said
    return pb.PolicyRevision(revision=revision.number, at_unix_s=said.at_unix_s, who=said.who, why=said.why)


def reservation_of(listed: Listed, lead_s: float) -> pb.Reservation:
    item, said, start_s = listed.item, listed.said, listed.window.start_unix_s
    return pb.Reservation(
        model=listed.model,
        name=item.name,
        start=item.start,
        end=item.end,
        zone=item.zone,
        days=item.days,
        min_instances=item.min_instances,
        is_of_policy=said is None,
        who=said.who if said else "",
        why=said.why if said else "",
        next_start_unix_s=start_s,
        next_end_unix_s=listed.window.end_unix_s,
        floor_rises_unix_s=start_s - lead_s - MARGIN_S,
    )
