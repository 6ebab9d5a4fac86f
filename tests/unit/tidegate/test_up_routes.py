"""`tidegate up --routes` with a file that the gateway would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate import cli


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "services: {chat: {versions: [{name: chat, percent: 100}], degrade: {target: chat-small}}}",
            "services.chat.degrade.target = 'chat-small': no such model is served; there are chat, embed",
        ),
        ("services: {chat: {versions: [{name: chat}]}}", "services.chat.versions[0].percent is missing"),
        (None, "routes.yaml can't be read"),
    ],
)
def test_up_refuses_bad_routes_before_anything_starts(
    text: str | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after half a minute of loading weights, as the gateway starts last."""
    path = tmp_path / "routes.yaml"
    if text is not None:
        path.write_text(text)
    assert cli.run(["up", "--run-dir", str(tmp_path / "run"), "--routes", str(path)]) == 1
    said = capsys.readouterr().err
    assert problem in said
    assert "starting" not in said
    assert "stopping" not in said
