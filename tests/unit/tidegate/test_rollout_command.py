"""`tidegate rollout`, on a ledger in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate import cli


@pytest.fixture(autouse=True)
def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path / "run"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.run(["rollout", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_rollout_from_start_to_rollback_is_all_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    """Four commands, four revisions; the last one says why, the others what was done."""
    assert "chat 95 %, v2 5 %" in run(capsys, "start", "chat", "--to", "v2")[1]
    assert "chat 50 %, v2 50 %" in run(capsys, "set-percent", "chat", "50")[1]
    assert "chat 0 %, v2 100 %" in run(capsys, "promote", "chat")[1]
    code, text, _ = run(capsys, "rollback", "chat", "--why", "slow answers", "--json")
    assert code == 0
    assert json.loads(text)["versions"] == {"chat": 100.0, "v2": 0.0}
    lines = run(capsys, "history")[1].splitlines()
    assert len(lines) == 4
    assert "slow answers" in lines[0]
    assert "chat: rollout to v2 at 5 %" in lines[3]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["rollback", "chat"], "`tidegate rollout start chat"),
        (["start", "chat", "--to", "chat"], "has all calls already"),
        (["start", "chat", "--to", "../x"], "services.chat.versions[1].name"),
    ],
)
def test_what_is_refused_leaves_no_revision(
    capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    """Exit code 1 and the way out."""
    code, _, said = run(capsys, *words)
    assert code == 1
    assert part in said
    assert "no revision yet" in run(capsys, "history")[1]
