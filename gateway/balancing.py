"""Which of several Tritons takes a call: the one with the least in flight, a session's own, never an ejected one.

Pure: the time comes in as `now`, and nothing here knows of channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

FAILURES_TO_EJECT = 3
"""One after the other. A single lost connection is a Triton that was started again."""
FIRST_EJECTION_S = 1.0
MAX_EJECTION_S = 60.0
FULLER_RATIO = 2.0
FULLER_CALLS = 4
"""A session leaves its endpoint when that has more than twice the least loaded one's load and four such calls: a
prefix found in the cache saves less than it then waits."""


class Outcome(Enum):
    ANSWERED = "answered"
    """By Triton, be it with an error of the request or the model."""
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """The client left first."""


@dataclass
class _Endpoint:
    load: int = 0
    """Tokens of the calls in flight; one that has none counts as 1."""
    num_failures: int = 0
    """Since the last answer."""
    num_ejections: int = 0
    ejected_until_s: float = 0.0
    last_chosen: int = 0


class Balance:
    """What is known of the endpoints. They are named by their addresses."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._endpoints = {address: _Endpoint() for address in addresses}
        self._num_chosen = 0

    @property
    def addresses(self) -> list[str]:
        return list(self._endpoints)

    def replace(self, addresses: Collection[str]) -> None:
        """Those that stay keep what is known of them. None at all changes nothing: a name that does not resolve."""
        if addresses:
            self._endpoints = {name: self._endpoints.get(name) or _Endpoint() for name in addresses}

    def choose(
        self, now: float, *, session: str | None = None, tokens: int = 0, avoid: Collection[str] = ()
    ) -> str:
        """An endpoint for a call of so many tokens, which must `end` later. `avoid`: tried already; taken only when
        there is no other."""
        free = [name for name in self._endpoints if name not in avoid] or list(self._endpoints)
        # When all that are left are ejected, one of them is still better than nobody.
        usable = [name for name in free if self._endpoints[name].ejected_until_s <= now] or free
        name = self._least(usable)
        if session is not None:
            name = self._home(usable, session, name, max(1, tokens))
        endpoint = self._endpoints[name]
        self._num_chosen += 1
        endpoint.load += max(1, tokens)
        endpoint.last_chosen = self._num_chosen
        return name

    def end(self, address: str, tokens: int, outcome: Outcome, now: float) -> None:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            return  # it went meanwhile
        endpoint.load = max(0, endpoint.load - max(1, tokens))
        if outcome is Outcome.ANSWERED:
            endpoint.num_failures = endpoint.num_ejections = 0
        elif outcome is Outcome.UNREACHABLE:
            endpoint.num_failures += 1
            if endpoint.num_failures >= FAILURES_TO_EJECT and endpoint.ejected_until_s <= now:
                self._eject(endpoint, now)

    def ejected(self, now: float) -> list[str]:
        return [name for name, endpoint in self._endpoints.items() if endpoint.ejected_until_s > now]

    def load_of(self, address: str) -> int:
        return self._endpoints[address].load

    def _eject(self, endpoint: _Endpoint, now: float) -> None:
        if len(self.ejected(now)) + 1 >= len(self._endpoints):
            return  # never all
        endpoint.ejected_until_s = now + min(MAX_EJECTION_S, FIRST_EJECTION_S * 2**endpoint.num_ejections)
        endpoint.num_ejections += 1

    def _least(self, names: Iterable[str]) -> str:
        """Of equals the one that was not chosen for longest."""
        return min(names, key=lambda name: (self._endpoints[name].load, self._endpoints[name].last_chosen))

    def _home(self, names: Iterable[str], session: str, least: str, tokens: int) -> str:
        """By rendezvous hash: an endpoint that comes or goes moves only its own share of the sessions."""
        home = max(names, key=lambda name: hashlib.blake2b(f"{session}\0{name}".encode()).digest())
        most = FULLER_RATIO * self._endpoints[least].load + FULLER_CALLS * tokens
        return home if self._endpoints[home].load <= most else least
