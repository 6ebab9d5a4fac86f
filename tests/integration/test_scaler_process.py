"""The scaler as a process: what lasts through kills, who is let in, and what it does not start with."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from contracts import externalscaler_pb2, externalscaler_pb2_grpc
from contracts import scaler_pb2 as pb
from scaler.errors import ScalerRefused, ScalerUnreachable
from scaler.serving.service_client import ScalerClient
from scaler.serving.store import Store
from tests.integration.fake_kubernetes import CHAT, FakeKubernetes, serving
from tests.integration.scaler_process import READY_LINE, refused, running_scaler, started, wait_for
from tidegate import cli
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration

POLICY = "models: {chat: {min_instances: 1, max_instances: 6}}\n"
TOKEN = "a-token-of-some-length"  # noqa: S105 - of these tests
Answer = TypeVar("Answer")


def ask(
    address: str, call: Callable[[ScalerClient], Awaitable[Answer]], token: str = "", credentials: Any = None
) -> Answer:
    async def asking() -> Answer:
        client = ScalerClient(address, token=token, credentials=credentials)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asking())


def write_policy(folder: Path, text: str = POLICY) -> str:
    path = folder / "policy.yaml"
    path.write_text(text)
    return str(path)


# --- what lasts ---


def test_what_was_said_lasts_through_a_kill_and_a_stop_exits_zero(tmp_path: Path) -> None:
    """Policy, pause and reservation of a killed scaler are those of the next; the file is not read again."""
    path = write_policy(tmp_path)
    with running_scaler(tmp_path, policy_path=path) as scaler:
        cli_run = ["scaler", "--address", scaler.address]
        assert cli.run([*cli_run, "policy", "set", write_policy(tmp_path, POLICY.replace("6", "8"))]) == 0
        write_policy(tmp_path)
        assert cli.run([*cli_run, "pause", "chat", "--why", "debugging"]) == 0
        assert (
            cli.run([*cli_run, "reserve", "chat", "3", "--from", "09:00", "--to", "17:00", "--name", "day"])
            == 0
        )
        scaler.process.kill()
        scaler.process.wait()
    with running_scaler(tmp_path, policy_path=path) as scaler:
        found = ask(scaler.address, lambda client: client.status())
        (chat,) = found.models
        assert (found.policy_revision, chat.max_instances, chat.pause.why) == (2, 8, "debugging")
        (day,) = ask(scaler.address, lambda client: client.reservations())
        assert (day.name, day.min_instances) == ("day", 3)
        assert scaler.stop() == 0
        with pytest.raises(ScalerUnreachable, match="no answer from the scaler at"):
            ask(scaler.address, lambda client: client.status())


def test_a_change_that_was_answered_is_never_lost(tmp_path: Path) -> None:
    """Killed three times in the middle of a flood of policies: at least the last acknowledged one is there."""
    seed = random.Random(4)
    acknowledged = 0

    async def flood(address: str, kill: Callable[[], None]) -> int:
        client, last, kill_at_s = ScalerClient(address), 0, time.monotonic() + seed.uniform(0.05, 0.4)
        try:
            while True:
                if time.monotonic() > kill_at_s:
                    asyncio.get_running_loop().call_later(seed.uniform(0, 0.005), kill)
                    kill_at_s = float("inf")
                text = f"models: {{chat: {{max_instances: {last % 900 + 1}}}}}"
                last = (await client.set_policy(pb.SetPolicyRequest(text=text))).revision
        except ScalerUnreachable:
            return last
        finally:
            await client.close()

    for _ in range(3):
        with running_scaler(tmp_path) as scaler:
            found = ask(scaler.address, lambda client: client.policy())
            assert found.revision.revision >= acknowledged
            acknowledged = max(acknowledged, asyncio.run(flood(scaler.address, scaler.process.kill)))
    assert acknowledged > 20
    assert Store(tmp_path / "state").load().revisions[-1].number >= acknowledged


SAVE_FOR_EVER = """
import sys
from pathlib import Path
from scaler.serving.book_state import BookState, Revision, Said
from scaler.serving.store import Store

store = Store(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    revision = Revision(number=number, text="x" * 200_000, said=Said(at_unix_s=0.0))
    store.save(BookState(revisions=(revision,)))
    print(number, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    """Twelve kills of a process that writes 200 kB for ever: always readable, and what was saved is there."""
    seed, store = random.Random(5), Store(tmp_path)
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seed.uniform(0, 0.03))
        process.kill()
        saved = [1, *map(int, process.stdout.read().split())]
        process.wait()
        assert store.load().revisions[-1].number in (saved[-1], saved[-1] + 1)
        process.stdout.close()


def test_a_policy_file_that_was_broken_meanwhile_leaves_the_policy_in_force(tmp_path: Path) -> None:
    """The next start says so, and goes on with what there was."""
    path = write_policy(tmp_path)
    with running_scaler(tmp_path, policy_path=path):
        pass
    write_policy(tmp_path, "models: {chat: {max_instances: 0}}")
    with running_scaler(tmp_path, policy_path=path) as scaler:
        assert ask(scaler.address, lambda client: client.policy()).text == POLICY
        assert "policy revision 1 stays" in scaler.log
        assert "max_instances = 0, must be a whole number from 1 to 1000" in scaler.log


# --- what it does not start with ---


def test_what_makes_no_sense_is_exit_code_78_in_one_line(tmp_path: Path) -> None:
    """A restart would not help, and the launcher knows by the code; a foreign state file is left alone."""
    (tmp_path / "state").mkdir()
    foreign = tmp_path / "state" / "state.json"
    foreign.write_text("{}")
    policy_path = write_policy(tmp_path, "models: {chat: {max_instances: 0}}")
    for settings, words in (
        ({}, f"scaler: {foreign} is something else of version 0"),
        ({"state_dir": str(tmp_path / "new"), "policy_path": policy_path}, "chat.max_instances = 0, must be"),
    ):
        code, output = refused(tmp_path, **settings)
        assert code == 78
        assert words in output.splitlines()[-1]
        assert "Traceback" not in output
    assert foreign.read_text() == "{}"


def test_a_taken_port_and_a_state_that_is_in_use_are_exit_code_1(tmp_path: Path) -> None:
    """Both may be better in a moment."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, output = refused(tmp_path, port=port)
        assert code == 1
        assert f"can't listen on 127.0.0.1:{port}: is the port taken?" in output
    with running_scaler(tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        code, output = refused(other, state_dir=str(tmp_path / "state"), port=0)
        assert code == 1
        assert "another scaler keeps its state in" in output


def test_a_standby_takes_over_with_all_that_was_said(tmp_path: Path) -> None:
    """It waits without a port, begins when the other one was killed, and a SIGTERM while it waits ends it."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    state = {"state_dir": str(tmp_path / "state"), "is_standby": True}
    with running_scaler(first, policy_path=write_policy(tmp_path), **state) as leader:
        ask(leader.address, lambda client: client.pause(pb.PauseRequest(model="chat", why="before")))
        (port,) = free_ports(1)
        with started(second, port=port, **state) as (waiting, log_path):
            wait_for(lambda: "leads, not" in log_path.read_text())
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            waiting.terminate()
            assert waiting.wait(30) == 0
        with started(second, port=port, **state) as (waiting, log_path):
            wait_for(lambda: "leads, not" in log_path.read_text())
            leader.process.kill()
            leader.process.wait()
            wait_for(lambda: READY_LINE in log_path.read_text())
            (chat,) = ask(f"127.0.0.1:{port}", lambda client: client.status()).models
            assert chat.pause.why == "before"


# --- on Kubernetes ---


def test_of_two_scalers_with_a_lease_one_acts_and_the_other_takes_over(tmp_path: Path) -> None:
    """A count by hand becomes replicas; the follower refuses it by name, and leads when the leader stops."""
    fake = FakeKubernetes()
    fake.obeys = True
    fake.put(CHAT, fake.deployment(1))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with serving(fake, tmp_path) as kubeconfig:
        pods = {"workloads": {"chat": "deployment/chat"}, "kubeconfig": kubeconfig, "lease": "tidegate"}
        settings = {
            "policy_path": write_policy(tmp_path),
            "target": "kubernetes",
            "kubernetes": pods,
            "tick_s": 0.2,
        }
        with (
            running_scaler(folders[0], **settings) as leader,
            running_scaler(folders[1], **settings) as follower,
        ):
            wait_for(lambda: "leads, not" in follower.log)
            three = pb.ScaleToRequest(model="chat", num_instances=3, duration_s=600)
            with pytest.raises(ScalerRefused, match="leads; say it there, this scaler only watches"):
                ask(follower.address, lambda client: client.scale_to(three))
            ask(leader.address, lambda client: client.scale_to(three))
            wait_for(lambda: fake.objects[CHAT]["spec"]["replicas"] == 3)
            (problem, *_) = ask(follower.address, lambda client: client.status()).problems
            assert problem.endswith("leads, this scaler watches")
            assert leader.stop() == 0
            wait_for(lambda: "leads\n" in follower.log)
            two = pb.ScaleToRequest(model="chat", num_instances=2, duration_s=600)
            ask(follower.address, lambda client: client.scale_to(two))
            wait_for(lambda: fake.objects[CHAT]["spec"]["replicas"] == 2)


def test_keda_is_told_the_count_that_was_decided_and_nothing_is_written(tmp_path: Path) -> None:
    """What runs until something is decided, then 3; on a port of its own."""
    fake = FakeKubernetes()
    fake.put(CHAT, fake.deployment(1))
    (keda_port,) = free_ports(1)
    with serving(fake, tmp_path) as kubeconfig:
        pods = {"workloads": {"chat": "deployment/chat"}, "kubeconfig": kubeconfig, "by_keda": True}
        settings = {"target": "kubernetes", "kubernetes": pods, "keda_address": f"127.0.0.1:{keda_port}"}
        with (
            running_scaler(tmp_path, policy_path=write_policy(tmp_path), tick_s=0.2, **settings) as scaler,
            grpc.insecure_channel(f"127.0.0.1:{keda_port}") as channel,
        ):
            stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)
            ref = externalscaler_pb2.ScaledObjectRef(name="chat", scalerMetadata={"model": "chat"})
            (spec,) = stub.GetMetricSpec(ref).metricSpecs
            ask_keda = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=ref, metricName=spec.metricName)

            def told() -> float:
                return float(stub.GetMetrics(ask_keda).metricValues[0].metricValueFloat)

            assert told() == 1
            three = pb.ScaleToRequest(model="chat", num_instances=3, duration_s=600)
            ask(scaler.address, lambda client: client.scale_to(three))
            wait_for(lambda: told() == 3)
            assert not [path for method, path in fake.requests if method != "GET"]


# --- who is let in ---


def test_without_the_token_nothing_but_health_is_answered(tmp_path: Path) -> None:
    """Wrong, missing and right; the token is in no log."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    with running_scaler(tmp_path, token_file=str(tmp_path / "token")) as scaler:
        for token in ("", "wrong", TOKEN[:-1], f"{TOKEN}x"):
            with pytest.raises(ScalerRefused, match="asks for a token"):
                ask(scaler.address, lambda client: client.status(), token=token)
        with pytest.raises(ScalerRefused, match="asks for a token"):
            ask(scaler.address, first_decision)
        assert ask(scaler.address, lambda client: client.status(), token=TOKEN).policy_revision == 0
        with grpc.insecure_channel(scaler.address) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                services(channel)
        assert TOKEN not in scaler.log


async def first_decision(client: ScalerClient) -> pb.Decision:
    return await anext(client.watch())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_over_tls_with_client_certificates_strangers_do_not_get_in(tmp_path: Path) -> None:
    """The command line with its certificate is let in, one without it and one without TLS are not."""
    make_certificates(tmp_path)
    tls = {
        "tls_cert": str(tmp_path / "server.pem"),
        "tls_key": str(tmp_path / "server.key"),
        "tls_client_ca": str(tmp_path / "ca.pem"),
    }
    ca = (tmp_path / "ca.pem").read_bytes()
    with running_scaler(tmp_path, **tls) as scaler:
        known = ["--ca", str(tmp_path / "ca.pem"), "--cert", str(tmp_path / "client.pem")]
        known += ["--key", str(tmp_path / "client.key")]
        assert cli.run(["scaler", "--address", scaler.address, *known, "status"]) == 0
        for credentials in (None, grpc.ssl_channel_credentials(ca)):
            with pytest.raises(ScalerUnreachable):
                ask(scaler.address, lambda client: client.status(), credentials=credentials)


def make_certificates(folder: Path) -> None:
    """A certificate authority, a server's for 127.0.0.1 and a client's."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)


# --- beside the service ---


def services(channel: grpc.Channel) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    return {service.name for service in reply.list_services_response.service}


def test_reflection_lists_the_service_and_health_serves_once_the_loop_ticks(tmp_path: Path) -> None:
    """Also while no Triton answers: the scaler itself is well, and says what is not."""
    name = "tidegate.scaler.v1.Scaler"
    with running_scaler(tmp_path, models=["chat"], tick_s=0.1) as scaler:
        with grpc.insecure_channel(scaler.address) as channel:
            assert services(channel) >= {name, "grpc.health.v1.Health"}
            stub = health_pb2_grpc.HealthStub(channel)
            for reply in stub.Watch(health_pb2.HealthCheckRequest(service=name)):
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    break
        found = ask(scaler.address, lambda client: client.status())
        (chat,) = found.models
        assert (chat.is_managed, chat.HasField("counts"), chat.HasField("wanted")) == (False, False, False)
        assert found.tick_age_s >= 0
        assert any(problem.startswith("Triton") for problem in found.problems)
        assert (found.target.split(":")[0], found.tick_s) == ("triton 127.0.0.1", 0.1)


def test_a_stop_ends_the_streams_of_those_who_watch(tmp_path: Path) -> None:
    """At once, and in words: nobody waits for a scaler that is gone."""
    with running_scaler(tmp_path, policy_path=write_policy(tmp_path), tick_s=0.1) as scaler:

        async def watch_until_the_end(client: ScalerClient) -> pb.Decision:
            stream = client.watch(["chat"])
            first = await anext(stream)
            scaler.process.terminate()
            with pytest.raises(ScalerUnreachable, match="the scaler stops"):
                _ = [decision async for decision in stream]
            return first

        first = ask(scaler.address, watch_until_the_end)
        assert first.reason.startswith("chat: the number of instances is not known")
        assert scaler.process.wait(10) == 0


def test_the_command_line_reads_policies_from_standard_input_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`policy show --revision 1 | policy set -` is the way back; a bad one is refused with its problems."""
    with running_scaler(tmp_path, policy_path=write_policy(tmp_path)) as scaler:
        monkeypatch.setenv("TIDEGATE_SCALER_ADDRESS", scaler.address)
        bad = tmp_path / "bad.yaml"
        bad.write_text("models: {chat: {min_instances: 4, max_instances: 2}}")
        assert cli.run(["scaler", "policy", "set", str(bad)]) == 1
        assert "min_instances = 4, must be from 0 to max_instances = 2" in capsys.readouterr().err
        bad.write_text("models: {}")
        assert cli.run(["scaler", "policy", "set", str(bad), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["revision"] == 2
        assert cli.run(["scaler", "policy", "show", "--revision", "1"]) == 0
        shown = capsys.readouterr().out
        assert shown == POLICY
        again = subprocess.run(
            [sys.executable, "-m", "tidegate", "scaler", "policy", "set", "-", "--expect", "2"],
            input=shown.encode(),
            capture_output=True,
            check=False,
        )
        assert again.stdout == b"revision 3 is in force\n", again.stderr
        assert cli.run(["scaler", "policy", "set", str(bad), "--expect", "2"]) == 1
        assert "revision 3 is in force, not 2" in capsys.readouterr().err
