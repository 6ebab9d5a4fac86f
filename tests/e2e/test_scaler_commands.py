"""What operators say to the scaler of a real stack, on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.node import node_status
from tests.models import CHAT, model_folder
from tidegate import cli
from tidegate.testing import RunningStack, running_stack

pytestmark = pytest.mark.e2e

POLICY = "models: {chat: {min_instances: 1, max_instances: 3, forecast: {enabled: false}}}"
LONG = {
    "model": "chat",
    "messages": [{"role": "user", "content": "count"}],
    "max_tokens": 200,
    "ignore_eos": True,
}


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def states(running: RunningStack) -> list[str]:
    return sorted(each.state for each in node_status(running.stack.node_socket).instances)


def test_instances_follow_what_is_said_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 → 2 by hand; scaling past the scaler is refused; status of the stack tells of it; a stop is a clean one."""
    model_folder(CHAT)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    options = ("--model", "chat", "--pool-bytes", "256MiB", "--policy", str(policy))
    with running_stack(*options) as running:
        monkeypatch.setenv("TIDEGATE_RUN_DIR", str(running.run_dir))

        def said(*args: str) -> Any:
            capsys.readouterr()
            assert cli.run([*args, "--json"]) == 0
            return json.loads(capsys.readouterr().out)

        said("scaler", "scale-to", "chat", "2", "--for", "10m", "--why", "test")
        until(lambda: states(running) == ["serving", "serving"])
        (chat,) = said("scaler", "status")["models"]
        assert (chat["wanted"], chat["override"]["num_instances"]) == (2, 2)
        assert "set by hand to 2" in chat["decision"]["reason"]
        assert cli.run(["scale", "chat", "1"]) == 1
        assert "follows the scaler's policy, which would undo this" in capsys.readouterr().err
        assert said("status")["scaler"]["policy_revision"] == 1
        assert said("scaler", "resume", "chat")["resumed"] == "chat"
        assert running.stop() == 0
        assert "did not stop within" not in running.log_path.read_text()
