"""Which scaler the `tidegate scaler` commands talk to, and how: the stack's own, or one elsewhere by address."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.running import need_stack

if TYPE_CHECKING:
    import grpc

    from scaler.serving.service_client import ScalerClient

Answer = TypeVar("Answer")
TOKEN_VARIABLE = "TIDEGATE_SCALER_TOKEN"  # noqa: S105 - the variable's name

AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="A scaler that is not this machine's stack's.",
        envvar="TIDEGATE_SCALER_ADDRESS",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="Use TLS, and trust this certificate (PEM).",
        envvar="TIDEGATE_SCALER_CA",
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        metavar="FILE",
        help="Certificate of ours, where one is asked for (PEM).",
        envvar="TIDEGATE_SCALER_CERT",
    ),
]
KeyOption = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Its key (PEM).", envvar="TIDEGATE_SCALER_KEY")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"The token, where one is asked for; or in the variable {TOKEN_VARIABLE}.",
        envvar="TIDEGATE_SCALER_TOKEN_FILE",
    ),
]


@dataclass(frozen=True)
class Connection:
    """As the command line says it; `address` "" is the stack's own scaler."""

    address: str = ""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

    def client(self, run_dir: Path | None, environ: Mapping[str, str] = os.environ) -> ScalerClient:
        """Raises NotRunning, CommandError."""
        from scaler.serving.service_client import ScalerClient

        address = self.address or stack_scaler(run_dir)
        try:
            token = (
                self.token_file.read_text().strip() if self.token_file else environ.get(TOKEN_VARIABLE, "")
            )
            return ScalerClient(address, token=token, credentials=self._credentials())
        except OSError as exc:
            raise CommandError(f"{exc.filename} can't be read: {exc.strerror}") from exc

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.ca is None:
            return None
        import grpc

        key, cert = (path.read_bytes() if path else None for path in (self.key, self.cert))
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert)


def stack_scaler(run_dir: Path | None) -> str:
    """Raises NotRunning, and CommandError when the stack has none."""
    stack = need_stack(run_dir)
    if not stack.scaler_grpc:
        raise CommandError(
            f"the stack in {stack.run_dir} runs without a scaler; start it without --no-scaler, or name another "
            "scaler with --address"
        )
    return stack.scaler_grpc


def ask(
    connection: Connection, run_dir: Path | None, call: Callable[[ScalerClient], Awaitable[Answer]]
) -> Answer:
    """Raises NotRunning, CommandError."""
    from scaler.errors import ScaleError

    async def asking() -> Answer:
        client = connection.client(run_dir)
        try:
            return await call(client)
        finally:
            await client.close()

    try:
        import asyncio

        return asyncio.run(asking())
    except ScaleError as exc:
        raise CommandError(str(exc)) from exc


def who() -> str:
    """ "ada@laptop": shown beside what is said to the scaler."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
