"""`tidegate keys`, on a ledger in a file."""

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
    code = cli.run(["keys", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_new_key_is_shown_once_and_never_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output has the text alone, for a script; the list has neither it nor a hash."""
    code, text, said = run(capsys, "create", "acme", "--name", "web", "--limit", "requests_per_min=60")
    assert code == 0
    assert text.startswith("tg_")
    assert "only time" in said
    _, listed, _ = run(capsys, "list", "--json")
    (key,) = json.loads(listed)["keys"]
    assert (key["tenant"], key["limits"], key["services"]) == ("acme", {"requests_per_min": 60.0}, None)
    assert text.strip().split("_", 2)[2] not in listed
    assert "hash" not in listed


def test_a_key_is_rotated_and_revoked_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    """Another text after the rotation; revoked it stays in the list."""
    _, made, _ = run(capsys, "create", "acme", "--json")
    key = json.loads(made)
    _, text, _ = run(capsys, "rotate", key["key_id"], "--overlap", "1h")
    assert text.strip() != key["key"]
    assert text.startswith(f"tg_{key['key_id']}_")
    assert run(capsys, "revoke", key["key_id"])[0] == 0
    assert "revoked" in run(capsys, "list")[1]


@pytest.mark.parametrize(
    ("words", "expected", "part"),
    [
        (["create", "acme", "--limit", "requests=5"], 2, "no limit 'requests'; there are requests_per_min"),
        (["create", "acme", "--limit", "concurrent=x"], 2, "must read like requests_per_min=600"),
        (["create", "acme", "--limit", "concurrent=0"], 2, "must be at least 1"),
        (["create", "acme", "--role", "root"], 1, "must be one or more of admin, infer, metrics"),
        (["create", "acme", "--expires-in", "soon"], 2, "--expires-in = 'soon'"),
        (["revoke", "nosuch"], 1, "no key has the id 'nosuch'"),
        (["list", "--ledger-url", "mysql://x/y"], 1, "mysql"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: int, part: str
) -> None:
    """With the way out; nothing is made."""
    code, _, said = run(capsys, *words)
    assert code == expected
    assert part in said


def test_without_a_ledger_it_asks_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stack runs, nothing is set."""
    monkeypatch.delenv("TIDEGATE_LEDGER_URL")
    code, _, said = run(capsys, "list")
    assert code == 1
    assert "--ledger-url" in said
