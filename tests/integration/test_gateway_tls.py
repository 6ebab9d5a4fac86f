"""TLS and mutual TLS at both doors of the real gateway, with certificates that openssl makes for the test."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
import pytest_asyncio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.config import ConfigError
from gateway.testing import FakeTriton, RunningGateway, free_port, running_gateway
from gateway.tls import Tls, grpc_credentials, http_context

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True, timeout=30)


def authority(folder: Path) -> None:
    """ca.pem and its key."""
    folder.mkdir(exist_ok=True)
    openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority",
    )  # fmt: skip


def certificate(folder: Path, name: str) -> None:
    """NAME.pem for 127.0.0.1, signed by the authority, and NAME.key."""
    openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        "-addext", "subjectAltName=IP:127.0.0.1",
    )  # fmt: skip
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.pem",
    )  # fmt: skip


@dataclass
class Rig:
    gateway: RunningGateway
    grpc_address: str
    folder: Path

    def context(self, client: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context

    async def ask(self, client: str = "") -> httpx.Response:
        url = self.gateway.url.replace("http:", "https:")
        async with httpx.AsyncClient(base_url=url, verify=self.context(client), timeout=10) as http:
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            return await http.post("/v1/chat/completions", json=body)

    async def serial(self, address: str) -> str:
        """Of the certificate that the door there shows now."""
        host, port = address.removeprefix("http://").split(":")
        context = self.context("client")
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return str(found)

    async def is_live(self, client: str = "") -> bool:
        """Over gRPC."""
        parts = (
            [(self.folder / name).read_bytes() for name in (f"{client}.key", f"{client}.pem")]
            if client
            else []
        )
        ca = (self.folder / "ca.pem").read_bytes()
        credentials = grpc.ssl_channel_credentials(ca, *parts)
        async with grpc.aio.secure_channel(self.grpc_address, credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return bool((await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=10)).live)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority(folder)
    for name in ("server", "client"):
        certificate(folder, name)
    authority(folder / "other")
    certificate(folder / "other", "client")
    for kind in ("pem", "key"):
        shutil.copy(folder / "other" / f"client.{kind}", folder / f"stranger.{kind}")
    with free_port() as port:
        async with (
            FakeTriton() as triton,
            running_gateway(
                triton.address,
                grpc_port=port,
                tls_cert=str(folder / "server.pem"),
                tls_key=str(folder / "server.key"),
                tls_client_ca=str(folder / "ca.pem"),
            ) as gateway,
        ):
            yield Rig(gateway, f"127.0.0.1:{port}", folder)


async def test_both_doors_take_clients_whose_certificate_is_good(rig: Rig) -> None:
    """Over TLS 1.2 and later."""
    answer = await rig.ask("client")
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    assert await rig.is_live("client")


@pytest.mark.parametrize("client", ["", "stranger"])
async def test_both_doors_refuse_clients_without_a_good_certificate(rig: Rig, client: str) -> None:
    """None, and one that another authority signed; a plain connection gets nothing either."""
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        await rig.ask(client)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.is_live(client)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    async with httpx.AsyncClient(timeout=10) as http:
        with pytest.raises(httpx.TransportError):
            await http.get(f"{rig.gateway.url}/health/live")


async def test_a_renewed_certificate_is_shown_without_a_restart(rig: Rig) -> None:
    """By the second handshake after it at the latest."""
    doors = (rig.gateway.url, rig.grpc_address)
    before = [await rig.serial(door) for door in doors]
    certificate(rig.folder, "server")
    for door in doors:
        await rig.serial(door)
    after = [await rig.serial(door) for door in doors]
    assert before[0] == before[1] != after[0] == after[1]
    assert "certificate was read again" in rig.gateway.log_path.read_text()


async def test_a_certificate_that_can_not_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    """Not there, no PEM, of another key, an authority that is none."""
    authority(tmp_path)
    authority(tmp_path / "other")
    ca, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    (tmp_path / "text").write_text("no PEM")
    for tls in (
        Tls(tmp_path / "none", key),
        Tls(tmp_path / "text", key),
        Tls(ca, tmp_path / "other" / "ca.key"),
        Tls(ca, key, tmp_path / "text"),
    ):
        for make in (http_context, grpc_credentials):
            with pytest.raises(ConfigError, match=r"tls_"):
                make(tls)
