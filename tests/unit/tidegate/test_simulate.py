"""`tidegate simulate`: a trace and a policy in, a table, JSON or a picture out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate import cli


@pytest.fixture
def wave(tmp_path: Path) -> str:
    """Three hours in minutes: 20 a second, 120, 20."""
    rows = [f"{60 * minute},{60 * (120 if 60 <= minute < 120 else 20)}" for minute in range(180)]
    path = tmp_path / "wave<1>.csv"
    path.write_text("\n".join(["seconds,count", *rows]))
    return str(path)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text("models:\n  chat: {max_instances: 20}\n  embed: {max_instances: 4}\n")
    return str(path)


def test_the_table_has_a_row_for_the_policy_and_each_rival(
    wave: str, policy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Ours and two; progress goes to standard error; 80 columns hold it."""
    monkeypatch.setenv("COLUMNS", "80")
    rivals = ["-c", "hpa-like", "-c", "static-peak"]

    assert cli.run(["simulate", wave, "--policy", policy, "--model", "chat", *rivals]) == 0

    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["POLICY", "tidegate", "static-peak", "hpa-like"]
    assert "…" not in shown.out
    assert shown.err.count("replayed in") == 3


def test_json_has_every_figure(wave: str, capsys: pytest.CaptureFixture[str]):
    """The static peak costs 1 of itself."""
    assert cli.run(["simulate", wave, "--compare", "static-peak", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["num_requests"] == 60 * 60 * 160
    assert [item["policy"] for item in found["policies"]] == ["tidegate", "static-peak"]
    assert found["policies"][1]["cost_share"] == 1.0


def test_a_maximum_below_what_the_peak_needs_is_told(
    wave: str, policy: str, capsys: pytest.CaptureFixture[str]
):
    """At most 4, and the busiest minute needs 10."""
    assert cli.run(["simulate", wave, "--policy", policy, "--model", "embed", "-c", "none"]) == 0

    assert "max_instances = 4 is below the 10" in capsys.readouterr().err


def test_pictures_are_written(wave: str, tmp_path: Path):
    """A PNG, and a page that fetches nothing and shows names as they are."""
    png, page = tmp_path / "a.png", tmp_path / "a.html"

    assert cli.run(["simulate", wave, "-c", "hpa-like", "--plot", str(png)]) == 0
    assert cli.run(["simulate", wave, "-c", "hpa-like", "--plot", str(page), "--to-h", "2"]) == 0

    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "wave&lt;1&gt;, start-up 120 s" in text
    assert "<h1>wave<1>" not in text
    assert "src=" not in text
    assert "<link" not in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere.csv"], "no trace 'nowhere.csv'"),
        (["WAVE", "--policy", "nowhere.yaml"], "nowhere.yaml"),
        (["WAVE", "--policy", "POLICY"], "--model = None, must be one of those in"),
        (["WAVE", "-c", "hpa"], "--compare = hpa, must be one of static-peak"),
        (["WAVE", "--plot", "a.pdf"], "must end in .png or .html"),
        (["WAVE", "--from-h", "4"], "--from-h = 4, must be below 3.00 h"),
    ],
)
def test_what_is_wrong_is_one_line(
    args: list[str], words: str, wave: str, policy: str, capsys: pytest.CaptureFixture[str]
):
    """With the option, its value and what is allowed."""
    placed = [{"WAVE": wave, "POLICY": policy}.get(arg, arg) for arg in args]

    assert cli.run(["simulate", *placed]) in (1, 2)

    assert words in capsys.readouterr().err.splitlines()[-1]
