"""`tidegate calls` on a small ledger."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.call_query import ALL_CALLS
from ledger.calls import FIELDS
from ledger.errors import ExportFailed
from ledger.export import export
from ledger.store import FILE_NAME, Store, sqlite_url
from ledger.writer import CallWriter
from tests.unit.ledger.rows import NOON, call
from tidegate.cli import run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tidegate(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A ledger of four calls from noon on, UTC; `tidegate calls ARGS` -> exit code, output, errors."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("TIDEGATE_LEDGER_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    store = Store.open(sqlite_url(tmp_path / FILE_NAME))
    with CallWriter(store) as writer:
        writer.put(call(0, version="v1", tenant="acme", prompt_tokens=10, output_tokens=5, ttft_s=0.1))
        writer.put(call(1, version="v1", outcome="error", status=503, error_code="upstream", duration_s=9.0))
        writer.put(call(1, attempt=2, started_unix_s=NOON + 1.5, version="v2", prompt_tokens=20, ttft_s=0.3))
        writer.put(call(3, service="embed", version="v2", is_shadow=True, trace_id="ab" * 16))
    store.close()

    def tidegate(*args: str) -> tuple[int, str, str]:
        code = run(["calls", *args])
        return code, *capfd.readouterr()

    return tidegate


def test_calls_are_listed_newest_first_and_page_by_page(tidegate: Run) -> None:
    """4 calls, 3 on a page: the newest three, then the first."""
    code, text, _ = tidegate("query", "--limit", "3", "--json")
    page = json.loads(text)
    assert code == 0
    assert [row["started_unix_s"] - NOON for row in page["calls"]] == [3.0, 1.5, 1.0]
    _, text, _ = tidegate("query", "--limit", "3", "--json", "--after", page["next"])
    rest = json.loads(text)
    assert ([row["request_id"] for row in rest["calls"]], rest["next"]) == (["request-0"], None)


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--since", "2025-12-01T12:00:01Z", "--until", "2025-12-01T12:00:03Z"], [1.5, 1.0]),
        (["--since", "2h"], []),
        (["--errors"], [1.0]),
        (["--errors", "--service", "embed"], []),
        (["--outcome", "ok", "--no-shadow"], [1.5, 0.0]),
        (["--shadow"], [3.0]),
        (["--trace", "ab" * 16], [3.0]),
        (["--tenant", "acme"], [0.0]),
        (["--order", "slowest", "--limit", "1"], [1.0]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_filter_leaves_what_it_says(tidegate: Run, args: list[str], found: list[float]) -> None:
    """Seconds after noon of the calls that are left."""
    _, text, _ = tidegate("query", *args, "--json")
    assert [row["started_unix_s"] - NOON for row in json.loads(text)["calls"]] == found


def test_a_request_is_shown_attempt_by_attempt(tidegate: Run) -> None:
    """The first failed upstream, the second answered."""
    _, text, _ = tidegate("show", "request-1")
    assert text.index("attempt 1") < text.index("upstream") < text.index("attempt 2") < text.index("v2")
    assert tidegate("show", "nobody")[0] == 1


def test_the_summary_counts_per_group_without_shadow_copies(tidegate: Run) -> None:
    """chat v1: 2 calls, one of them an error; its only time to first token is every percentile."""
    _, text, _ = tidegate("summary", "--since", "2025-12-01", "--json")
    v1, v2 = json.loads(text)["groups"]
    assert v1 == {
        "group": {"service": "chat", "version": "v1"},
        "num_calls": 2,
        "num_errors": 1,
        "num_refused": 0,
        "num_cancelled": 0,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 5,
        "ttft": {"p50_s": 0.1, "p95_s": 0.1, "p99_s": 0.1},
        "duration": {"p50_s": 0.5, "p95_s": 9.0, "p99_s": 9.0},
    }
    assert (v2["num_calls"], v2["prompt_tokens"]) == (1, 20)
    code, _, error = tidegate("summary", "--by", "service,colour")
    assert (code, "can't be grouped by colour; use service, version" in error) == (1, True)


def test_the_tables_are_for_people(tidegate: Run) -> None:
    """Words, units, and the hour in UTC."""
    _, text, _ = tidegate("query", "--since", "2025-12-01T12:00:00Z")
    assert "request-1 #2" in text
    assert "error upstream" in text
    assert "9.00 s" in text
    _, text, _ = tidegate("summary", "--since", "2025-12-01", "--by", "hour")
    assert "2025-12-01 12:00Z" in text
    assert "1 (33.3%)" in text


def test_what_a_client_sent_does_not_reach_the_terminal_raw(tidegate: Run, tmp_path: Path) -> None:
    """An escape sequence as a request's id."""
    store = Store.open(sqlite_url(tmp_path / FILE_NAME))
    with CallWriter(store) as writer:
        writer.put(call(9, request_id="\x1b]0;owned\x07"))
    store.close()
    _, text, _ = tidegate("query")
    assert "\x1b]" not in text
    assert "\ufffd]0;owned\ufffd" in text


@pytest.mark.parametrize("name", ["calls.csv", "calls.jsonl", "calls.parquet"])
def test_an_export_has_every_call_oldest_first(tidegate: Run, tmp_path: Path, name: str) -> None:
    """Four rows, readable by their owner alone, and no half file beside them."""
    file = tmp_path / "out" / name
    file.parent.mkdir()
    assert tidegate("export", str(file)) == (0, f"4 calls in {file}\n", "")
    assert [row["started_unix_s"] - NOON for row in _read(file)] == [0.0, 1.0, 1.5, 3.0]
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == [name]


def _read(file: Path) -> list[dict[str, float]]:
    if file.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(file.read_text(), newline=""))
        return [{"started_unix_s": float(row["started_unix_s"])} for row in rows]
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    from arro3.io import read_parquet

    table = read_parquet(file).read_all()
    assert tuple(table.column_names) == FIELDS
    return [{"started_unix_s": value.as_py()} for value in table["started_unix_s"]]


def test_an_export_goes_to_standard_output_too(tidegate: Run) -> None:
    """One line a call, for a pipe."""
    code, text, _ = tidegate("export", "-", "--format", "jsonl", "--tenant", "acme")
    assert (code, json.loads(text)["request_id"]) == (0, "request-0")


def test_without_the_library_parquet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """arro3 can't be imported."""
    monkeypatch.setitem(sys.modules, "arro3.io", None)
    store = Store.open(sqlite_url(tmp_path / FILE_NAME))
    with pytest.raises(ExportFailed, match=r"pip install 'tidegate\[parquet\]', or export csv"):
        export(store, ALL_CALLS, io.BytesIO(), "parquet")
    store.close()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (
            ["query", "--since", "yesterday"],
            2,
            "--since = 'yesterday' is no time; write 2h for two hours ago",
        ),
        (["query", "--errors", "--outcome", "ok"], 2, "--errors and --outcome ok exclude each other"),
        (["query", "--after", "page 2"], 1, "'page 2' is no place in the log"),
        (["export", "calls.xlsx"], 2, "Say --format csv, jsonl or parquet"),
        (["export", "-", "--format", "parquet"], 2, "Parquet goes to a file only"),
        (["export", "/proc/no/calls.csv"], 1, "can't be written"),
        (
            ["query", "--run-dir", "/nowhere"],
            1,
            "No stack with a gateway runs here, and /nowhere/ledger.db is none",
        ),
        (["query", "--ledger-url", "mysql://host/name"], 1, "a ledger lives in sqlite or postgresql"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_not_be_done_is_said_in_a_line(
    tidegate: Run, args: list[str], code: int, words: str
) -> None:
    """Exit 2 where the command line is wrong, else 1."""
    found, _, error = tidegate(*args)
    assert (found, words in error, error.count("\n")) == (code, True, 1), error


def test_a_narrow_terminal_cuts_nothing(tidegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 columns: the rows' cells are whole, and times stand below the counts."""
    monkeypatch.setenv("COLUMNS", "60")
    _, text, _ = tidegate("query", "--since", "2025-12-01T12:00:00Z")
    assert any("error upstream" in line and "request-1" in line for line in text.splitlines())
    _, text, _ = tidegate("summary", "--since", "2025-12-01")
    assert text.index("TOKENS IN") < text.index("TTFT P50")
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
