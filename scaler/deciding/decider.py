"""How many instances a model should have now. Pure: the same inputs, the same decision, and `now` is one of them.

Rules in the order in which they are asked: paused, override, bounds (minimum, reservations, forecast, maximum),
from zero, out, to zero, in. The first that has something to say decides. Counts are of ready and starting instances
together, so a start that takes minutes is not answered by another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scaler.deciding import patience
from scaler.deciding.decision import Cause, Decision, Direction, Spec, State
from scaler.deciding.demand import MAX_GAP_S, Demand, measure, queue_grows, remember
from scaler.deciding.easing import easing, is_quiet, unknown
from scaler.deciding.observation import Counts, Observation, Signals
from scaler.deciding.pressure import Crossed, crossed


def decide(spec: Spec, state: State, observation: Observation, now: float) -> Decision:
    """Never raises for what was observed. What is not known changes nothing, save that the bounds are kept."""
    counts = observation.counts
    if counts is None:
        return Decision(
            model=spec.model,
            at_s=now,
            before=0,
            wanted=0,
            direction=Direction.HOLD,
            cause=Cause.UNKNOWN,
            reason=f"{spec.model}: the number of instances is not known; nothing is changed",
            is_saturated=state.is_saturated,
            state=state,
        )
    demand = measure(observation)
    pressing = crossed(spec, counts, observation.signals, demand)
    state = remember(patience.forgotten(state, now), spec.policy, observation, now)
    moment = _Moment(spec, state, counts, observation.signals, demand, pressing, now)
    moment = replace(moment, state=_tracked(moment))
    rules: Sequence[Callable[[_Moment], Decision | None]] = (
        _paused,
        _override,
        _from_zero,
        _bounds,
        _out,
        _to_zero,
        _in,
    )
    for rule in rules:
        if (decision := rule(moment)) is not None:
            return decision
    return moment.hold(Cause.STEADY, "")


@dataclass(frozen=True)
class _Moment:
    """Everything a rule may look at."""

    spec: Spec
    state: State
    counts: Counts
    signals: Signals
    demand: Demand
    pressing: list[Crossed]
    now: float

    @property
    def high(self) -> int:
        room = self.counts.room
        limit = self.spec.policy.max_instances
        return limit if room is None else min(limit, self.counts.total + room)

    @property
    def limit_words(self) -> str:
        """ "max 6"; with "room for 1 more here" when that is less."""
        limit, room = self.spec.policy.max_instances, self.counts.room
        if room is not None and self.counts.total + room < limit:
            return f"max {limit}, room for {room} more here"
        return f"max {limit}"

    def hold(self, cause: Cause, words: str) -> Decision:
        return self.change(self.counts.total, cause, words)

    def change(self, wanted: int, cause: Cause, words: str) -> Decision:
        before = self.counts.total
        direction = Direction.OUT if wanted > before else Direction.IN if wanted < before else Direction.HOLD
        state = self.state
        if direction is Direction.OUT:
            if cause is Cause.PRESSURE:
                state = patience.after_scale_out(state, self.spec.policy, self.now)
            state = replace(
                state, last_out_s=self.now, over_since_s=None, busy_since_s=None, quiet_since_s=None
            )
        elif direction is Direction.IN:
            state = replace(
                state, last_in_s=self.now, over_since_s=None, busy_since_s=None, quiet_since_s=None
            )
        change = f"{before}→{wanted}" if wanted != before else f"stays {before}"
        parts = [f"{words}, {self._figures()}" if words else self._figures()]
        if self.counts.starting:
            parts.append(f"{self.counts.starting} pending counted")
        if self.counts.draining:
            parts.append(f"{self.counts.draining} draining")
        parts.append(self.limit_words)
        return Decision(
            model=self.spec.model,
            at_s=self.now,
            before=before,
            wanted=wanted,
            direction=direction,
            cause=cause,
            reason=f"{self.spec.model} {change}: {'; '.join(parts)}",
            is_saturated=state.is_saturated,
            state=state,
        )

    def _figures(self) -> str:
        util, queue = self.signals.utilization, self.signals.queue
        shown = [
            f"{name} {reading.value:.{digits}f}" if reading.is_usable else f"{name} {reading.quality.value}"
            for name, reading, digits in (("util", util, 2), ("queue", queue, 0))
        ]
        return ", ".join(shown)


def _tracked(moment: _Moment) -> State:
    """The state with its since-whens at `now`."""
    state, now, signals = moment.state, moment.now, moment.signals
    quiet_since_s = state.quiet_since_s
    if is_quiet(moment.spec, moment.counts, signals, moment.demand):
        quiet_since_s = now if quiet_since_s is None else quiet_since_s
    elif not unknown(moment.spec, signals, moment.demand) or _is_silent(state, now):
        quiet_since_s = None
    is_busy = any(item.is_utilization for item in moment.pressing)
    is_over = any(not item.is_utilization for item in moment.pressing)
    busy_since_s = (now if state.busy_since_s is None else state.busy_since_s) if is_busy else None
    over_since_s = (now if state.over_since_s is None else state.over_since_s) if is_over else None
    idle_since_s = (now if state.idle_since_s is None else state.idle_since_s) if _is_idle(moment) else None
    return replace(
        state,
        quiet_since_s=quiet_since_s,
        over_since_s=over_since_s,
        busy_since_s=busy_since_s,
        idle_since_s=idle_since_s,
        is_saturated=_is_saturated(moment),
    )


def _is_silent(state: State, now: float) -> bool:
    """One lost answer does not break a quiet of minutes; a silence does."""
    return not state.peaks or now - state.peaks[-1].at_s > MAX_GAP_S


def _is_idle(moment: _Moment) -> bool:
    signals = moment.signals
    return (
        moment.demand.busy == 0
        and signals.queue.is_usable
        and signals.queue.value == 0
        and signals.concurrency.value == 0
        and signals.wakes == 0
    )


def _is_saturated(moment: _Moment) -> bool:
    """Once it is, it stays so until nothing presses any more or there is room again."""
    if moment.counts.total < moment.high or not moment.pressing:
        return False
    if moment.state.is_saturated:
        return True
    is_long = (
        moment.signals.queue.is_usable and moment.signals.queue.value > moment.spec.policy.scale_in.queue
    )
    return is_long and queue_grows(moment.state, moment.now)


def _paused(moment: _Moment) -> Decision | None:
    return moment.hold(Cause.PAUSED, moment.spec.pause_words or "paused") if moment.spec.is_paused else None


def _override(moment: _Moment) -> Decision | None:
    override = moment.spec.override
    if override is None or override.until_unix_s <= moment.now:
        return None
    left_s = override.until_unix_s - moment.now
    words = f"set by hand to {override.num_instances} for {left_s:.0f} s more ({override.reason})"
    return moment.change(override.num_instances, Cause.OVERRIDE, words)


def _from_zero(moment: _Moment) -> Decision | None:
    if moment.counts.total or moment.spec.policy.min_instances or _floor(moment)[0]:
        return None
    waiting = moment.signals.wakes + (moment.signals.queue.value if moment.signals.queue.is_usable else 0)
    if waiting:
        return moment.change(1, Cause.WAKE, f"{waiting:g} requests wait and there is no instance")
    return moment.hold(Cause.ZERO, "nobody asks")


def _floor(moment: _Moment) -> tuple[int, str]:
    """The highest lower bound, and whose it is."""
    bounds = [(moment.spec.policy.min_instances, f"min {moment.spec.policy.min_instances}")]
    bounds += [(floor.num_instances, floor.reason) for floor in moment.spec.floors]
    return max(bounds, key=lambda bound: bound[0])


def _bounds(moment: _Moment) -> Decision | None:
    total, limit = moment.counts.total, moment.spec.policy.max_instances
    if total > limit:
        return moment.change(limit, Cause.CEILING, f"{total} are more than max {limit}")
    floor, words = _floor(moment)
    wanted = min(floor, moment.high)
    return moment.change(wanted, Cause.FLOOR, words) if total < wanted else None


def _out(moment: _Moment) -> Decision | None:
    if not moment.pressing:
        return None
    policy, state, total = moment.spec.policy, moment.state, moment.counts.total
    words = ", ".join(f"{item.words} for {_held_s(moment, item):.0f} s" for item in moment.pressing)
    needed = max(item.needed for item in moment.pressing)
    if total >= moment.high:
        return moment.hold(Cause.LIMIT, f"{words}, {needed} needed")
    wanted = min(needed if policy.step == "proportional" else total + 1, needed, moment.high)
    if wanted <= total:
        return moment.hold(Cause.STARTING, f"{words}, answered by what is starting")
    if not any(_held_s(moment, item) >= _hold_s(moment, item) for item in moment.pressing):
        holds = " or ".join(f"{_hold_s(moment, item):g} s" for item in moment.pressing)
        return moment.hold(Cause.HOLDING, f"{words} of {holds}")
    if state.last_out_s is not None and moment.now - state.last_out_s < policy.cooldown_out_s:
        left_s = policy.cooldown_out_s - (moment.now - state.last_out_s)
        return moment.hold(Cause.COOLDOWN, f"{words}, {needed} needed, cooldown {left_s:.0f} s more")
    return moment.change(wanted, Cause.PRESSURE, words)


def _held_s(moment: _Moment, item: Crossed) -> float:
    since_s = moment.state.busy_since_s if item.is_utilization else moment.state.over_since_s
    return 0.0 if since_s is None else moment.now - since_s


def _hold_s(moment: _Moment, item: Crossed) -> float:
    out = moment.spec.policy.scale_out
    return out.utilization_hold_s if item.is_utilization else out.hold_s


def _to_zero(moment: _Moment) -> Decision | None:
    policy, idle_since_s = moment.spec.policy, moment.state.idle_since_s
    if policy.min_instances or _floor(moment)[0] or idle_since_s is None:
        return None
    idle_s = moment.now - idle_since_s
    if idle_s < policy.zero_after_s:
        return None
    return moment.change(0, Cause.ZERO, f"no request for {idle_s:.0f} s; weights stay")


def _in(moment: _Moment) -> Decision | None:
    spec, state, counts = moment.spec, moment.state, moment.counts
    if names := unknown(spec, moment.signals, moment.demand):
        return moment.hold(Cause.UNKNOWN, f"no scale-in while {', '.join(names)}")
    ease = easing(spec, state, counts, moment.signals, moment.now)
    if ease is None:
        return None
    wanted = max(ease.needed, _floor(moment)[0], 1)
    if spec.policy.step == "one":
        wanted = max(wanted, counts.total - 1)
    if wanted >= counts.total:
        return None
    if (left_s := _cooldown_left_s(moment, ease.cause)) > 0:
        return moment.hold(Cause.COOLDOWN, f"{ease.words}, cooldown {left_s:.0f} s more")
    return moment.change(wanted, ease.cause, ease.words)


def _cooldown_left_s(moment: _Moment, cause: Cause) -> float:
    """After a scale-out the survivors' rule waits its whole window: what came back may go again, not at once."""
    policy, state = moment.spec.policy, moment.state
    quiet_s, window_s = patience.cooldown_in_s(state, policy), patience.window_s(state, policy)
    ends_s = [state.since_s + max(quiet_s, window_s)]
    if state.last_out_s is not None:
        ends_s.append(state.last_out_s + (window_s if cause is Cause.SURPLUS else quiet_s))
    if state.last_in_s is not None:
        ends_s.append(state.last_in_s + quiet_s)
    return max(ends_s) - moment.now
