"""`tidegate capacity`: what it refuses before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.loadtest.stacks import stack_in
from tidegate import cli

PLAN = """
name: p
load: {kind: open, shape: {kind: hold, rate_per_s: 1, duration_s: 30}}
users:
  - {name: a, kind: openai_chat, service: chat}
  - {name: b, kind: openai_embeddings, service: embed}
slo: [errors rate < 1%]
"""


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (PLAN, [], "the plan asks chat, embed; say with --model whose instances are changed"),
        (PLAN, ["--model", "chat", "--instances", "0,1"], "--instances = '0,1', must be counts from 1 on"),
        (PLAN, ["--model", "chat", "--instances", "1,1"], "each once"),
        (PLAN.replace("slo: [errors rate < 1%]", ""), [], "has no slo lines, so every rate would pass"),
        (
            PLAN.replace(
                "{kind: open, shape: {kind: hold, rate_per_s: 1, duration_s: 30}}",
                "{kind: closed, concurrency: 1, duration_s: 9}",
            ),
            [],
            "load.kind is closed; capacity is a rate, so it must be open",
        ),
    ],
)
def test_what_has_no_capacity_is_refused(
    plan: str,
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Before an instance is changed; the output folder is not made."""
    monkeypatch.setattr("tidegate.commands.capacity.need_stack", lambda run_dir: stack_in(tmp_path))
    (tmp_path / "plan.yaml").write_text(plan)

    assert cli.run(["capacity", str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "out"), *options]) != 0
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
