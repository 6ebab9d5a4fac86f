"""The book: what operators have said about each model, and what a decision has to follow. Pure; takes `now`.

Every change is made on a copy, kept (`keep` writes it to disk), and only then in force: a change that could not be
kept has not happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from scaler.deciding.decision import Floor, Override, Spec
from scaler.deciding.policy import MAX_SECONDS, ModelPolicy, Policy, Reservation
from scaler.deciding.reservations import Window, floors, next_window
from scaler.errors import (
    AllPaused,
    NotManaged,
    OutOfRange,
    PolicyInvalid,
    ReservationOfPolicy,
    ReservationTaken,
    ReservationUnknown,
    RevisionMoved,
    ScaleError,
)
from scaler.serving.book_state import BookState, Reserved, Revision, Said, ScaledTo, said_by

Value = TypeVar("Value")

MAX_REVISIONS = 20
"""Kept to look at and to go back to."""
MAX_POLICY_BYTES = 256 * 1024
MAX_RESERVATIONS = 1000
"""Over the API, of all models together."""


@dataclass(frozen=True)
class Listed:
    """One reservation as it is shown."""

    model: str
    item: Reservation
    window: Window
    """The open one, else the next."""
    said: Said | None
    """None: it stands in the policy, and is changed there."""


class Book:
    """`keep` is called with each new state before it is in force; what it raises leaves the old one."""

    def __init__(
        self,
        state: BookState | None = None,
        *,
        keep: Callable[[BookState], None] = lambda state: None,
    ) -> None:
        """Raises PolicyInvalid when the state's own policy does not pass (any more)."""
        self._state = state or BookState()
        self._keep = keep
        self._policy = Policy.parse(self._state.revisions[-1].text) if self._state.revisions else Policy()

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def revision(self) -> int:
        """0: there is no policy yet, and nothing is scaled."""
        return self._state.revisions[-1].number if self._state.revisions else 0

    @property
    def state(self) -> BookState:
        return self._state

    def is_managed(self, model: str) -> bool:
        return model in self._policy.models

    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec:
        """What a decision at `now` has to follow. Raises NotManaged."""
        policy, pause = self._model_policy(model), self.pause_of(model)
        reserved = floors(self._reservations_of(model), now, lead_s, policy.max_instances)
        return Spec(
            model=model,
            policy=policy,
            lead_s=lead_s,
            floors=tuple(floor for floor in (reserved, forecast) if floor is not None),
            override=self.override_of(model, now),
            is_paused=pause is not None,
            pause_words=f"paused by {pause.in_words()}" if pause else "",
        )

    # --- the policy ---

    def set_policy(
        self, text: str, now: float, who: str = "", why: str = "", *, expected_revision: int = 0
    ) -> int:
        """The new revision; the text of the one in force changes nothing. Raises PolicyInvalid with every problem,
        and RevisionMoved when `expected_revision` is given and another is in force."""
        if expected_revision and expected_revision != self.revision:
            raise RevisionMoved(
                f"revision {self.revision} is in force, not {expected_revision}: somebody has set another policy "
                "meanwhile; look at it and send yours again"
            )
        policy = _parsed(text)
        self._take(policy, self._with_policy(text, said_by(now, who, why)))
        return self.revision

    def follow_file(self, text: str, now: float, path: str) -> bool:
        """The policy file at a start of the process: taken when it says something new since it was last read.

        So neither a file that was edited while the scaler was away nor a policy set over the API is lost. Returns
        whether it was taken. Raises PolicyInvalid.
        """
        if text == self._state.file_text:
            return False
        policy = _parsed(text)
        state = self._with_policy(text, Said(at_unix_s=now, who=path))
        self._take(policy, msgspec.structs.replace(state, file_text=text))
        return True

    def policy_at(self, revision: int) -> Revision | None:
        """None: there is no such revision, or none that is kept any more."""
        return next((each for each in self._state.revisions if each.number == revision), None)

    def _with_policy(self, text: str, said: Said) -> BookState:
        revisions = self._state.revisions
        if revisions and revisions[-1].text == text:
            return self._state
        added = Revision(number=self.revision + 1, text=text, said=said)
        return msgspec.structs.replace(self._state, revisions=(*revisions, added)[-MAX_REVISIONS:])

    def _take(self, policy: Policy, state: BookState) -> None:
        self._commit(state)
        self._policy = policy

    # --- pauses and counts by hand ---

    def pause(self, model: str | None, now: float, who: str = "", why: str = "") -> None:
        """Nothing is changed until `resume`. None: all models, those of a later policy too. Raises NotManaged."""
        said = said_by(now, who, why)
        if model is None:
            return self._change(all_paused=said)
        self._model_policy(model)
        self._change(paused=self._state.paused | {model: said})

    def resume(self, model: str | None, now: float) -> None:
        """The policy decides again: ends a pause and a count by hand. None: of all models. Raises NotManaged, and
        AllPaused for one model while all are."""
        if model is None:
            return self._change(all_paused=None, paused={}, scaled_to={})
        self._model_policy(model)
        if self._state.all_paused is not None:
            raise AllPaused(f"all models are paused, {model!r} can't be resumed alone; resume all of them")
        self._change(
            paused=_without(self._state.paused, model), scaled_to=_without(self._state.scaled_to, model)
        )

    def override(
        self, model: str, num_instances: int, until_unix_s: float, now: float, who: str = "", why: str = ""
    ) -> Override:
        """Exactly so many until then, whatever load and reservations say. Raises NotManaged, OutOfRange."""
        policy = self._model_policy(model)
        if not policy.min_instances <= num_instances <= policy.max_instances:
            raise OutOfRange(
                f"num_instances = {num_instances}, must be from min_instances = {policy.min_instances} to "
                f"max_instances = {policy.max_instances} of {model!r}; change the policy to go beyond"
            )
        if not 0 < until_unix_s - now <= MAX_SECONDS:
            raise OutOfRange(
                f"duration_s = {until_unix_s - now:g}, must be above 0 and at most {MAX_SECONDS:g}"
            )
        entry = ScaledTo(
            num_instances=num_instances,
            until_unix_s=until_unix_s,
            said=said_by(now, who, why),
        )
        held = {name: each for name, each in self._state.scaled_to.items() if each.until_unix_s > now}
        self._change(scaled_to=held | {model: entry})
        return _override(entry, policy)

    def pause_of(self, model: str) -> Said | None:
        return self._state.all_paused or self._state.paused.get(model)

    def override_of(self, model: str, now: float) -> Override | None:
        entry = self._state.scaled_to.get(model)
        if entry is None or entry.until_unix_s <= now:
            return None
        return _override(entry, self._model_policy(model))

    # --- reservations ---

    def reserve(self, model: str, item: Reservation, now: float, who: str = "", why: str = "") -> None:
        """The same one twice is one. Raises NotManaged, OutOfRange, and ReservationTaken for a name in use."""
        policy = self._model_policy(model)
        if item.min_instances > policy.max_instances:
            raise OutOfRange(
                f"min_instances = {item.min_instances}, must be from 1 to max_instances = {policy.max_instances} "
                f"of {model!r}; change the policy to go beyond"
            )
        if next_window(item, now) is None:
            raise OutOfRange(f"end = {item.end} {item.zone}, must be in the future")
        held = tuple(each for each in self._state.reserved if next_window(_item(each), now) is not None)
        for each in held:
            if each.name == item.name:
                if each.model == model and _item(each) == item:
                    return
                raise ReservationTaken(
                    f"name = {item.name!r} is reserved for {each.model!r}; cancel it first"
                )
        if len(held) >= MAX_RESERVATIONS:
            raise OutOfRange(f"there are {len(held)} reservations, as many as are kept; cancel some")
        said = said_by(now, who, why)
        entry = Reserved(model=model, said=said, **item.model_dump())
        self._change(reserved=(*held, entry))

    def cancel(self, name: str, now: float) -> None:
        """Raises ReservationUnknown, and ReservationOfPolicy for one that stands there."""
        kept = tuple(each for each in self._state.reserved if each.name != name)
        if len(kept) == len(self._state.reserved):
            raise self._not_reserved(name)
        self._change(reserved=kept)

    def reservations(self, now: float) -> list[Listed]:
        """Of the policy and of the API, without those that are over, the next window first."""
        every = [
            (name, item, None) for name, policy in self._policy.models.items() for item in policy.reservations
        ] + [(each.model, _item(each), each.said) for each in self._state.reserved]
        listed = [
            Listed(model, item, window, said)
            for model, item, said in every
            if (window := next_window(item, now)) is not None
        ]
        return sorted(listed, key=lambda each: (each.window.start_unix_s, each.model, each.item.name))

    def _reservations_of(self, model: str) -> list[Reservation]:
        of_api = [_item(each) for each in self._state.reserved if each.model == model]
        return [*self._policy.models[model].reservations, *of_api]

    def _not_reserved(self, name: str) -> ScaleError:
        for model, policy in self._policy.models.items():
            if any(item.name == name for item in policy.reservations):
                return ReservationOfPolicy(
                    f"reservation {name!r} stands in the policy of {model!r}; set a policy without it"
                )
        there = ", ".join(each.name for each in self._state.reserved) or "none"
        return ReservationUnknown(f"no reservation {name!r}; there are: {there}")

    # --- all of it ---

    def check_managed(self, model: str) -> None:
        """Raises NotManaged."""
        self._model_policy(model)

    def _model_policy(self, model: str) -> ModelPolicy:
        try:
            return self._policy.models[model]
        except KeyError:
            named = ", ".join(self._policy.models) or "none"
            raise NotManaged(
                f"{model!r} is not scaled: the policy names {named}; add it under `models:` and set the policy"
            ) from None

    def _change(self, **values: object) -> None:
        self._commit(msgspec.structs.replace(self._state, **values))

    def _commit(self, state: BookState) -> None:
        if state != self._state:
            self._keep(state)
            self._state = state


def _override(entry: ScaledTo, policy: ModelPolicy) -> Override:
    """Within the policy's bounds, which may have become narrower since."""
    num = min(max(entry.num_instances, policy.min_instances), policy.max_instances)
    return Override(num, entry.until_unix_s, f"set by {entry.said.in_words()}")


def _parsed(text: str) -> Policy:
    size = len(text.encode())
    if size > MAX_POLICY_BYTES:
        raise PolicyInvalid([f"the policy has {size} bytes, must have at most {MAX_POLICY_BYTES}"])
    return Policy.parse(text)


def _item(entry: Reserved) -> Reservation:
    values = msgspec.structs.asdict(entry)
    return Reservation(**{key: values[key] for key in Reservation.model_fields})


def _without(mapping: dict[str, Value], key: str) -> dict[str, Value]:
    return {name: value for name, value in mapping.items() if name != key}
