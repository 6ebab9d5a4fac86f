"""What `tidegate top` draws of the gateway's document."""

import io
from typing import Any

import pytest
from rich.console import Console

from tidegate.commands.top_text import NUM_BARS, joined, screen, spark


def drawn(found, trouble=""):
    console = Console(file=io.StringIO(), width=160)
    console.print(screen(found, trouble))
    return console.file.getvalue()


@pytest.fixture
def found() -> dict[str, Any]:
    calls = {
        "num": 40, "failed": 2, "ttft_p50_s": 0.05, "ttft_p99_s": None, "latency_p50_s": 1.234,
        "latency_p99_s": 2.0, "tokens_per_s": 31.25,
    }  # fmt: skip
    scaler = {
        "ready": 2, "wanted": 3, "utilization": 0.8, "queue": 7.0, "is_saturated": True, "paused": "",
    }  # fmt: skip
    columns = {"arrivals": [1.0, 2.0], "in_flight": [3.0, 4.0], "queue": [None, 7.0], "ready": [2.0, 2.0],
               "wanted": [2.0, 3.0], "tokens": [10.0, 20.0]}  # fmt: skip
    return {
        "now_unix_s": 1_796_131_200.0,
        "window_s": 300.0,
        "sources": [
            {"name": "scaler", "state": "ok", "error": ""},
            {"name": "node", "state": "down", "error": "unavailable"},
        ],
        "history": {"t": [1.0, 2.0], "models": {"chat": columns}, "node": {}},
        "models": [{"model": "chat", "in_flight": 4, "pending": None, "calls": calls, "scaler": scaler}],
        "pool": None,
        "routes": {
            "services": [
                {
                    "service": "chat",
                    "versions": [{"name": "v1", "percent": 80}, {"name": "v2", "percent": 20}],
                }
            ]
        },
        "decisions": [
            {
                "at_unix_s": 1_796_131_100.0,
                "model": "chat",
                "before": 2,
                "wanted": 3,
                "reason": "queue 7 ≥ 4 [x]",
                "trouble": "",
            }
        ],
        "errors": [
            {"at_unix_s": 1.0, "service": "chat", "status": 500, "text": "boom [/]", "request_id": "r1"}
        ],
    }


def test_it_says_how_the_models_do_and_which_source_is_silent(found):
    """One line a model; brackets in others' texts are no markup."""
    text = drawn(found)
    line = next(line for line in text.splitlines() if line.startswith("chat saturated"))
    assert line.split()[2:8] == ["2/3", "80%", "7", "4", "40", "2"]
    assert "50 ms" in line
    assert "node down (unavailable)" in text
    assert "chat: v1 80 %, v2 20 %" in text
    assert "chat 2→3: queue 7 ≥ 4 [x]" in text
    assert "boom [/]" in text


def test_a_pool_is_a_bar_in_the_models_colours(found):
    """64 signs, of 128 cells."""
    kinds = [
        {"model": "chat", "state": "leased", "tenant": ""},
        {"model": "chat", "state": "cached", "tenant": ""},
    ]
    found["pool"] = {
        "total_bytes": 128, "held_bytes": 64, "cached_bytes": 32,
        "map": {"cells": [0] * 64 + [1] * 32 + [-1] * 32, "kinds": kinds},
        "models": [{"model": "chat", "held_bytes": 64, "cached_bytes": 32}],
    }  # fmt: skip
    text = drawn(found)
    assert "█" * 32 + "░" * 16 + "·" * 16 in text
    assert "64 B held (50%)" in text


def test_a_silent_gateway_is_told_above_the_last_figures(found):
    """They stay on the screen."""
    text = drawn(found, "no answer from the gateway")
    assert "no answer from the gateway" in text
    assert "chat saturated" in text


def test_what_is_not_known_is_a_blank_in_a_spark_line():
    """And the largest is the highest bar."""
    assert spark([0.0, None, 4.0, 8.0]) == "▁ ▅█"
    assert spark([]) == ""
    assert len(spark([1.0] * 500)) == NUM_BARS


def test_new_steps_are_put_behind_the_old_ones():
    """A model that comes later was unknown before; another gateway's history replaces this one."""
    before = {"t": [1.0, 2.0], "models": {"chat": {"queue": [1, 2]}}, "node": {"kv": [5, 6]}}
    after = {"t": [3.0], "models": {"embed": {"queue": [9]}}, "node": {"kv": [7]}}
    both = joined(before, after, 720)
    assert both["models"] == {"chat": {"queue": [1, 2, None]}, "embed": {"queue": [None, None, 9]}}
    assert both["node"] == {"kv": [5, 6, 7]}
    assert joined(before, after, 2)["t"] == [2.0, 3.0]
    assert joined(before, before, 720) == before
    assert joined(before, {"t": [], "models": {}, "node": {}}, 720) == before
