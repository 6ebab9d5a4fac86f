"""Triton's own doors are shut to all but us: its key, on the real Triton, with and without API keys."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from contracts.stack import Stack
from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url
from scaler.triton_client import TritonClient
from tests.e2e.support import Up, echo_request, launched, write_model
from tidegate.status import gather
from tidegate.testing import free_ports

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Rig:
    up: Up
    stack: Stack
    requires_keys: bool
    admin: dict[str, str]
    """An administrator's header; empty while keys are off."""


@pytest.fixture(scope="module", params=[False, True], ids=["keys-off", "keys-on"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Triton with `echo`, and the gateway."""
    folder: Path = tmp_path_factory.mktemp("key")
    write_model(folder / "repository", "echo")
    url, admin = sqlite_url(folder / "ledger.db"), {}
    if request.param:
        with contextlib.closing(Store.open(url)) as store:
            _, key = KeyStore(store).create(tenant="ops", name="admin", roles=["admin", "infer"])
        admin = {"authorization": f"Bearer {key}"}
    http, door = free_ports(2)
    with launched(
        folder / "repository",
        "echo",
        with_gateway="1",
        gateway_port=str(http),
        gateway_grpc_port=str(door),
        ledger_url=url,
        requires_keys=str(int(request.param)),
    ) as up:
        yield Rig(up, up.wait_ready(), request.param, admin)


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as exc:
        code: grpc.StatusCode = exc.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


def test_past_the_gateway_nothing_is_managed_and_with_keys_nothing_is_asked(rig: Rig) -> None:
    """Loads are UNAVAILABLE and 403 always, inference only with keys on; health answers everybody."""
    stack = rig.stack
    shut = grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(stack.triton_grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for method, request in (
            ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="echo")),
            ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="echo")),
            ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
            ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
            ("TraceSetting", service_pb2.TraceSettingRequest()),
            ("LogSettings", service_pb2.LogSettingsRequest()),
        ):
            assert code_of(lambda m=method, r=request: getattr(stub, m)(r)) is shut, method  # type: ignore[misc]
        asked = code_of(lambda: stub.ModelInfer(echo_request("echo", 1.0, [1, 1])))
        assert asked is (shut if rig.requires_keys else grpc.StatusCode.OK)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
    base = f"http://{stack.triton_http}/v2"
    assert httpx.post(f"{base}/repository/models/echo/unload").status_code == 403
    assert httpx.get(f"{base}/models/echo/config").status_code == (403 if rig.requires_keys else 200)
    assert httpx.get(f"{base}/health/ready").status_code == 200


async def test_what_is_ours_still_manages(rig: Rig) -> None:
    """The scaler's client loads, `tidegate status` sees the model."""
    stack = rig.stack
    triton = TritonClient(stack.triton_grpc, stack.triton_key)
    await triton.load_from_repository("echo", 30)
    assert [entry.state for entry in await triton.index()] == ["READY"]
    await triton.close()
    found = gather(stack)
    assert found.problems == []
    assert [(model.name, model.state) for model in found.triton_models or []] == [("echo", "READY")]


def test_through_the_gateway_everything_is_as_before(rig: Rig) -> None:
    """Triton's own client with nothing but a header; managing needs an admin's key, so keys."""
    with contextlib.closing(InferenceServerClient(rig.stack.gateway_grpc)) as client:
        assert client.get_model_metadata("echo", headers=rig.admin).name == "echo"
        value = InferInput("IN", [1, 1], "FP32")
        value.set_data_from_numpy(np.float32([[7.0]]))
        assert client.infer("echo", [value], headers=rig.admin).as_numpy("OUT") == [[7.0]]
        if rig.requires_keys:
            client.load_model("echo", headers=rig.admin)
            assert client.get_model_repository_index(headers=rig.admin).models[0].state == "READY"
        else:
            with pytest.raises(InferenceServerException, match="admin"):
                client.get_model_repository_index()


def test_the_key_is_in_no_log_no_command_line_and_no_config(rig: Rig) -> None:
    """It stands in one file, which only its owner may read."""
    up, stack = rig.up, rig.stack
    key = stack.triton_key
    assert len(key) == 64
    holders = [path for path in up.run_dir.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert [path.name for path in holders] == ["triton.key"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert key not in up.output
    for pid in stack.pids.values():
        for name in ("cmdline", "environ"):
            assert key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
