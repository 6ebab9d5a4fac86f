"""The control port: who may come in, and over what. Knows nothing of scaling.

Loopback and no more, unless both are there: TLS, so that nobody reads along, and a token or client certificates, so
that not everybody commands. Health is open to all: a probe has no token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from scaler.errors import ConfigInvalid, NotListening

OPTIONS = [
    # Or two scalers would share the port, and each would get some of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 1024 * 1024),
]
HEALTH = "/grpc.health.v1.Health/"
MIN_TOKEN_CHARS = 16


@dataclass(frozen=True)
class Access:
    """How the port is guarded; checked by `server_of`."""

    host: str = "127.0.0.1"
    port: int = 9002
    cert_path: str = ""
    """PEM, with `key_path`: TLS."""
    key_path: str = ""
    client_ca_path: str = ""
    """PEM: clients have to show a certificate of this one."""
    token: str = field(default="", repr=False)
    allow_insecure: bool = False
    """Listen beyond loopback without TLS or without knowing who calls, where the network itself is trusted."""

    def check(self) -> None:
        """Raises ConfigInvalid."""
        if bool(self.cert_path) != bool(self.key_path):
            raise ConfigInvalid("tls_cert and tls_key go together; give both or none")
        if self.client_ca_path and not self.cert_path:
            raise ConfigInvalid("tls_client_ca needs tls_cert and tls_key")
        if self.token and len(self.token) < MIN_TOKEN_CHARS:
            raise ConfigInvalid(
                f"the token has {len(self.token)} characters, must have at least {MIN_TOKEN_CHARS}"
            )
        if self.allow_insecure or is_loopback(self.host):
            return
        if not self.cert_path or not (self.token or self.client_ca_path):
            raise ConfigInvalid(
                f"host = {self.host}: beyond loopback the control port needs TLS (tls_cert, tls_key) and a token "
                "or tls_client_ca; or set allow_insecure where the network itself is trusted"
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_of(access: Access) -> tuple[grpc.aio.Server, int]:
    """A server that is bound and not started, and its port. Raises ConfigInvalid, NotListening."""
    access.check()
    guards = [TokenGuard(access.token)] if access.token else []
    server = grpc.aio.server(interceptors=guards, options=OPTIONS)
    host = f"[{access.host}]" if ":" in access.host else access.host
    address = f"{host}:{access.port}"
    try:
        if access.cert_path:
            return server, server.add_secure_port(address, _credentials(access))
        return server, server.add_insecure_port(address)
    except RuntimeError as exc:
        raise NotListening(f"can't listen on {address}: is the port taken? ({exc})") from exc


def _credentials(access: Access) -> grpc.ServerCredentials:
    try:
        pair = (Path(access.key_path).read_bytes(), Path(access.cert_path).read_bytes())
        client_ca = Path(access.client_ca_path).read_bytes() if access.client_ca_path else None
    except OSError as exc:
        raise ConfigInvalid(f"{exc.filename} can't be read: {exc.strerror}") from exc
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


class TokenGuard(grpc.aio.ServerInterceptor):
    """Refuses calls without `authorization: Bearer TOKEN`, health excepted."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method.startswith(HEALTH) or self._knows(details.invocation_metadata):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)

    def _knows(self, metadata: Any) -> bool:
        given = dict(metadata or ()).get("authorization", "")
        given = given.encode() if isinstance(given, str) else given
        return hmac.compare_digest(given, self._expected)


async def _refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send `authorization: Bearer TOKEN` with the call")
