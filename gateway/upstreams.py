"""The Tritons behind the gateway: one, a list, or what a DNS name stands for; both doors choose through here."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Sequence

from gateway.balancing import Balance, Outcome
from gateway.errors import GatewayError, ModelNotLoaded, UpstreamUnavailable
from gateway.triton_client import TritonClient

logger = logging.getLogger("gateway")

DNS_PREFIX = "dns:///"
RESOLVE_EVERY_S = 5.0
"""A pod that came is used so much later at most; one that went is ejected before that."""
MAX_ATTEMPTS = 3

Make = Callable[[str], TritonClient]


class Lease:
    """One call's place at an endpoint. End it with `done`, once."""

    def __init__(self, upstreams: Upstreams, endpoint: str, triton: TritonClient, tokens: int) -> None:
        self.endpoint = endpoint
        self.triton = triton
        self._upstreams = upstreams
        self._tokens = tokens
        self._is_done = False

    def done(self, outcome: Outcome = Outcome.ANSWERED) -> None:
        """Harmless a second time: the first one counts."""
        if not self._is_done:
            self._is_done = True
            self._upstreams.end(self.endpoint, self._tokens, outcome)

    def failed(self, error: GatewayError) -> None:
        self.done(Outcome.UNREACHABLE if is_unreachable(error) else Outcome.ANSWERED)


class Upstreams:
    """Make it inside the event loop that uses it; `follow` keeps DNS names fresh. Close it."""

    def __init__(self, targets: Sequence[str], make: Make) -> None:
        """`targets`: host:port, or dns:///name:port, of which every address is an endpoint."""
        self._targets = targets
        self._make = make
        self._balance = Balance([target for target in targets if not target.startswith(DNS_PREFIX)])
        self._clients: dict[str, TritonClient] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def endpoints(self) -> list[str]:
        return self._balance.addresses

    def pick(
        self, *, session: str | None = None, tokens: int = 0, avoid: Collection[str] = frozenset()
    ) -> Lease:
        """Raises UpstreamUnavailable where DNS has named none yet."""
        if not self._balance.addresses:
            raise UpstreamUnavailable(f"no address of {', '.join(self._targets)} is known yet")
        endpoint = self._balance.choose(time.monotonic(), session=session, tokens=tokens, avoid=avoid)
        return Lease(self, endpoint, self.client(endpoint), tokens)

    def may_retry(self, error: GatewayError, tried: Collection[str]) -> bool:
        """Is there another endpoint, and can it know better? Only for calls of which nothing was answered."""
        return (
            isinstance(error, UpstreamUnavailable)
            and len(tried) < MAX_ATTEMPTS
            and any(endpoint not in tried for endpoint in self._balance.addresses)
        )

    def end(self, endpoint: str, tokens: int, outcome: Outcome) -> None:
        self._balance.end(endpoint, tokens, outcome, time.monotonic())

    def client(self, endpoint: str) -> TritonClient:
        if endpoint not in self._clients:
            self._clients[endpoint] = self._make(endpoint)
        return self._clients[endpoint]

    def ejected(self, now: float) -> list[str]:
        return self._balance.ejected(now)

    def load_of(self, endpoint: str) -> int:
        """Tokens of the calls in flight there."""
        return self._balance.load_of(endpoint)

    async def follow(self) -> None:
        """Until cancelled; returns at once when no target is a DNS name."""
        while any(target.startswith(DNS_PREFIX) for target in self._targets):
            await self.resolve()
            await asyncio.sleep(RESOLVE_EVERY_S)

    async def resolve(self) -> None:
        """Names that do not resolve now keep the addresses they had."""
        found: dict[str, None] = {}
        for target in self._targets:
            if not target.startswith(DNS_PREFIX):
                found[target] = None
                continue
            try:
                found.update(dict.fromkeys(await addresses_of(target)))
            except OSError as exc:
                logger.warning("%s does not resolve, its addresses stay: %s", target, exc)
                return
        self._balance.replace(list(found))
        for endpoint in [name for name in self._clients if name not in found]:
            task = asyncio.create_task(self._clients.pop(endpoint).close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._leaving)


def is_unreachable(error: GatewayError) -> bool:
    """The endpoint's fault, not the model's that has no instance there."""
    return isinstance(error, UpstreamUnavailable) and not isinstance(error, ModelNotLoaded)


async def addresses_of(target: str) -> list[str]:
    """host:port of each of a name's addresses, sorted. Raises OSError."""
    host, _, port = target.removeprefix(DNS_PREFIX).rpartition(":")
    infos = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    found = {str(info[4][0]) for info in infos}
    return sorted(f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in found)
