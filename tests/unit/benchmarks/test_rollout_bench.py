"""The rollout bench's figures from made-up calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import Figure
from benchmarks.rollout import NEW, OLD, Trial, figures_of, routes_text, write_version
from benchmarks.rollout_calls import Call
from benchmarks.rollout_figures import (
    Rollback,
    Window,
    bounds,
    is_within,
    seen_until_s,
    share,
    versions_of_sessions,
)
from gateway.routes import Routes


def calls(*versions: str, from_s: float = 0.0, session: str = "") -> list[Call]:
    """One a second."""
    return [Call(from_s + index, session, version) for index, version in enumerate(versions)]


def test_three_sigma_of_the_binomial_are_the_bounds_and_nothing_at_the_ends() -> None:
    """5 % of 10,000: 3 * sqrt(0.05 * 0.95 / 10,000) = 0.654 %. At 0 and 100 one call astray is too many."""
    assert bounds(5, 10_000) == pytest.approx((4.346, 5.654), abs=0.001)
    assert bounds(0, 10_000) == (0.0, 0.0)
    assert bounds(100, 10_000) == (100.0, 100.0)
    assert bounds(1, 100) == pytest.approx((0.0, 3.985), abs=0.001)


def test_a_share_counts_the_windows_first_calls_that_are_alone_and_were_answered() -> None:
    """Four are to be counted: of them one failed and one went to the new version. Sessions and what began before or
    after is left out."""
    given = [
        *calls(NEW, NEW, from_s=-2),
        *calls(OLD, NEW, "", OLD, NEW),
        *calls(NEW, NEW, from_s=0.5, session="a"),
        *calls(NEW, from_s=20),
    ]
    found = share(given, Window(50, 0, 10, 4), NEW)
    assert found is not None
    assert found.value == pytest.approx(100 / 3)
    assert (found.low, found.high) == pytest.approx(bounds(50, 3))
    assert share(calls("", ""), Window(50, 0, 10, 4), NEW) is None


def test_a_share_is_honoured_between_its_bounds_alone() -> None:
    """The bounds themselves are inside."""
    assert is_within(Figure(5.0, "%", 4.0, 5.0))
    assert not is_within(Figure(5.1, "%", 4.0, 5.0))
    assert not is_within(Figure(3.9, "%", 4.0, 5.0))
    assert not is_within(Figure(0.01, "%", 0.0, 0.0))


def test_a_session_that_two_versions_answered_has_switched() -> None:
    """Failed calls and calls without a session say nothing."""
    given = [*calls(OLD, "", OLD, session="a"), *calls(OLD, NEW, session="b"), *calls(OLD, NEW)]
    assert versions_of_sessions(given) == {"a": {OLD}, "b": {OLD, NEW}}


def test_a_rollback_is_seen_when_the_last_call_of_the_new_version_has_begun() -> None:
    """Returned at 1.5: the new version's call of 3 counts, that of 1 began before, that of 9 after the look."""
    given = [*calls(NEW, NEW, OLD, NEW, OLD), Call(9, "", NEW)]
    assert seen_until_s(given, NEW, 1.5, 8) == pytest.approx(1.5)
    assert seen_until_s(given, NEW, 3.5, 8) == 0.0


def test_the_report_counts_what_went_astray_and_what_failed() -> None:
    """At 0 % one call of four went to the new version; one session switched; a call failed; a rollback took 2 s."""
    windows = [Window(0, 0, 10, 10), Window(5, 20, 30, 10), Window(50, 30, 40, 10)]
    given = [
        *calls(OLD, OLD, NEW, OLD),
        *calls(OLD, OLD, from_s=20),
        *calls(OLD, NEW, from_s=30),
        *calls(OLD, NEW, from_s=29, session="a"),
        *calls(NEW, NEW, from_s=29, session="b"),
        *calls(NEW, NEW, OLD, "", from_s=51),
    ]
    found = figures_of(given, Trial(windows, [1.0, 0.5, 0.7], [Rollback(49, 49.5, 50, 60)]))
    values = {name: figure.value for name, figure in found.items()}
    assert (values["share_0"], values["share_50"]) == (25.0, 50.0)
    assert values["num_outside"] == 1
    assert (values["num_switched"], values["num_sessions"]) == (1, 2)
    assert [values[f"rollback_{name}_ms"] for name in ("seen", "from_written", "from_start")] == [
        2000,
        2500,
        3000,
    ]
    assert values["reload_ms"] == 700.0
    assert (values["num_failed"], values["num_calls"], values["num_reloads"]) == (1, 16, 3)


def test_both_versions_are_the_echo_model_under_names_that_the_routes_know(tmp_path: Path) -> None:
    """Triton refuses a config of another name than its folder, and the gateway routes to what is not served."""
    for name in (OLD, NEW):
        write_version(tmp_path / name)
        config = (tmp_path / name / "config.pbtxt").read_text()
        assert f'name: "{name}"' in config
        assert f'host_policy: "{name}-0"' in config
    texts = [routes_text(5, number) for number in range(2)]
    assert texts[0] != texts[1]
    versions = Routes.parse(texts[0], {OLD, NEW}).of(OLD).versions
    assert [(version.name, version.percent) for version in versions] == [(OLD, 95), (NEW, 5)]
