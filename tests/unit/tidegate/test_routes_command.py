"""`tidegate routes`: a refused edit of routes.yaml is told to whoever asks, not only to the gateway's log."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from contracts.stack import STACK_NAME, ServedModel, Stack
from gateway.route_table import RoutesFile
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url
from tidegate.cli import run
from tidegate.rollout_pins import previous_models
from tidegate.routes_status import refused_edits

GOOD = "services: {chat: {versions: [{name: chat, percent: 100}]}}\n"
BAD = "services: {chat: {versions: [{name: nobody, percent: 100}]}}\n"


class Rig:
    """A run directory as a stack leaves it, with this process as the launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = sqlite_url(folder / "ledger.db")
        self.file = folder / "routes.yaml"
        self.file.write_text(GOOD)
        self.stack = Stack(
            pid=os.getpid(),
            run_dir=str(folder),
            node_socket="",
            triton_http="",
            triton_grpc="",
            triton_metrics="",
            gateway_http="127.0.0.1:9",
            gateway_grpc="",
            models=[ServedModel(name="chat", kind="generate", weights="tiny", path="/nowhere")],
            pids={},
            started_unix_s=0.0,
            ledger_url=self.url,
        )
        (folder / STACK_NAME).write_bytes(msgspec.json.encode(self.stack))
        config = {"triton_grpc": "x:1", "models": self.stack.models, "batch_models": ["echo"]}
        config |= {"ledger_url": self.url, "routes_path": str(self.file)}
        (folder / "gateway.json").write_bytes(msgspec.json.encode(config))

    def take(self) -> None:
        """As the gateway does once a second."""
        with contextlib.closing(Store.open(self.url)) as store:
            RoutesFile(self.file, {"chat", "echo"}, RevisionStore(store)).look()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def routes(*args: str) -> int:
    return run(["routes", *args])


def test_a_refused_edit_is_told_with_every_problem(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """The revision before stays in force, and that is said too; `tidegate status` has the same lines."""
    rig.take()
    assert routes("status", "--run-dir", str(rig.folder)) == 0
    assert "revision 1 by" in capsys.readouterr().out
    rig.file.write_text(BAD)
    assert routes("status", "--run-dir", str(rig.folder)) == 1
    told = capsys.readouterr().err
    assert "is not taken, revision 1 stays" in told
    assert "nobody" in told
    assert any("is not taken, revision 1 stays" in line for line in refused_edits(rig.stack))
    rig.file.write_text(GOOD)
    assert refused_edits(rig.stack) == []


def test_a_file_is_checked_before_it_is_put_there(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the running stack's models, those that have no tokenizer too."""
    other = rig.folder / "next.yaml"
    other.write_text("services: {chat: {versions: [{name: echo, percent: 100}]}}\n")
    assert routes("check", str(other), "--run-dir", str(rig.folder)) == 0
    other.write_text(BAD)
    assert routes("check", str(other), "--json", "--run-dir", str(rig.folder)) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert any("nobody" in problem for problem in found["problems"])
    assert routes("check", str(rig.folder / "none.yaml"), "--run-dir", str(rig.folder)) == 1


def test_without_a_file_the_ledger_is_all_there_is(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """No revision, no problem."""
    config = json.loads((rig.folder / "gateway.json").read_text()) | {"routes_path": ""}
    (rig.folder / "gateway.json").write_text(json.dumps(config))
    assert routes("status", "--run-dir", str(rig.folder)) == 0
    assert "no revision yet" in capsys.readouterr().out


def test_the_status_of_a_service_that_is_not_there_is_an_error(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "nope 100 %", as if there were one."""
    assert run(["rollout", "status", "nope", "--run-dir", str(rig.folder)]) == 1
    assert "no service 'nope'; there are: chat" in capsys.readouterr().err
    assert run(["rollout", "status", "chat", "--run-dir", str(rig.folder)]) == 0


def test_a_rollout_may_go_to_every_model_that_the_gateway_serves(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also to one that Triton serves alone; it was refused, though routes.yaml may name it."""
    start = ("rollout", "start", "chat", "--run-dir", str(rig.folder), "--to")
    assert run([*start, "nobody"]) == 1
    assert "there are chat, echo" in capsys.readouterr().err
    assert run([*start, "echo"]) == 0
    assert run(["rollout", "status", "echo", "--run-dir", str(rig.folder)]) == 0


def test_what_a_rollout_may_go_back_to_is_found_in_the_ledger(rig: Rig) -> None:
    """A node that starts again pins it, as `rollout start` did: a rollback must not wait for a load."""
    assert previous_models(rig.url) == set()
    assert run(["rollout", "start", "chat", "--to", "echo", "--ledger-url", rig.url]) == 0
    assert previous_models(rig.url) == {"chat"}
    assert run(["rollout", "promote", "chat", "--ledger-url", rig.url]) == 0
    assert previous_models(rig.url) == {"chat"}
