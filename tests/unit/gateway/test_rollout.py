"""Rollouts: as changes of the routes, and taken back by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import rollout
from gateway.rollback_watch import RollbackWatch
from gateway.rollout import RolloutRefused
from gateway.routes import Routes
from ledger.calls import CallRow

MODELS = ["chat", "chat-next"]


def percents(document: dict[str, Any]) -> dict[str, float]:
    """As the gateway reads it back."""
    route = Routes.parse(rollout.write(document), MODELS).of("chat")
    return {version.name: version.percent for version in route.versions}


def test_a_rollout_goes_from_five_percent_to_all_and_back_at_any_time() -> None:
    """Without routes before: the service is its model."""
    document = rollout.start({}, "chat", "chat-next", 5)
    assert percents(document) == {"chat": 95, "chat-next": 5}
    document = rollout.set_percent(document, "chat", 33.3)
    assert percents(document) == {"chat": 66.7, "chat-next": 33.3}
    document = rollout.promote(document, "chat")
    assert percents(document) == {"chat": 0, "chat-next": 100}
    assert percents(rollout.roll_back(document, "chat")) == {"chat": 100, "chat-next": 0}


def test_the_version_may_have_another_name_than_its_model() -> None:
    """v2 is the model chat-next."""
    document = rollout.start({}, "chat", "v2", 5, model="chat-next")
    route = Routes.parse(rollout.write(document), MODELS).of("chat")
    assert route.versions[1].model_name == "chat-next"


def test_what_else_the_routes_say_stays() -> None:
    """Another service, and this one's own keys."""
    before = {
        "services": {
            "chat": {"versions": [{"name": "chat", "percent": 100}], "queue": {"max_wait_s": 3}},
            "other": {"versions": [{"name": "chat-next", "percent": 100}]},
        }
    }
    after = rollout.start(before, "chat", "chat-next", 5)
    assert after["services"]["chat"]["queue"] == {"max_wait_s": 3}
    assert after["services"]["other"] == before["services"]["other"]
    assert before["services"]["chat"]["versions"] == [{"name": "chat", "percent": 100}], "a copy was changed"


def test_a_finished_rollout_leaves_the_versions_that_have_a_share() -> None:
    """Promoted and finished: chat need not be served any more."""
    document = rollout.promote(rollout.start({}, "chat", "chat-next", 5), "chat")
    document = rollout.finish(document, "chat")
    assert percents(document) == {"chat-next": 100}
    assert rollout.status(document, "chat")["next"] is None
    with pytest.raises(RolloutRefused, match="every version has a share"):
        rollout.finish(document, "chat")


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda d: rollout.start(d, "chat", "v3", 5), "is being rolled out at 5 %; promote it or roll it back"),
        (lambda d: rollout.start(rollout.promote(d, "chat"), "chat", "chat-next", 5), "has all calls already"),
        (lambda d: rollout.set_percent(d, "chat", 101), "must be from 0 to 100"),
        (lambda d: rollout.roll_back(d, "embed"), "`tidegate rollout start embed"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_the_way_out(work: Any, words: str) -> None:
    """The document is not changed."""
    with pytest.raises(RolloutRefused, match=r".*" + words.replace("(", r"\(")):
        work(rollout.start({}, "chat", "chat-next", 5))


def test_a_promoted_version_is_where_the_next_rollout_starts() -> None:
    """chat-next has all calls, and goes on to a third."""
    document = rollout.promote(rollout.start({}, "chat", "chat-next", 5), "chat")
    document = rollout.start(document, "chat", "chat", 10)
    assert rollout.status(document, "chat") == {
        "service": "chat",
        "previous": "chat-next",
        "next": "chat",
        "percent": 10.0,
    }


def row(
    version: str,
    *,
    outcome: Any = "ok",
    ttft_s: float | None = 0.1,
    at_s: float = 100.0,
    door: Any = "http",
    status: int = 500,
) -> CallRow:
    return CallRow(
        request_id="r",
        started_unix_s=at_s,
        door=door,
        status=status,
        operation="chat",
        service="chat",
        version=version,
        outcome=outcome,
        ttft_s=ttft_s,
        duration_s=1.0,
    )


AUTO = {"max_error_share": 0.05, "max_ttft_ratio": 2.0, "min_calls": 20, "window_s": 300}


def verdict(rows: list[CallRow], now: float = 110.0) -> str | None:
    document = rollout.start({}, "chat", "chat-next", 50)
    document["services"]["chat"]["auto_rollback"] = AUTO
    route = Routes.parse(rollout.write(document), MODELS).of("chat")
    watch = RollbackWatch()
    for each in rows:
        watch.note(each)
    return watch.verdict("chat", route, now)


def test_a_version_that_fails_is_taken_back_with_the_evidence() -> None:
    """3 of 25 calls against none of 25."""
    rows = [row("chat")] * 25 + [row("chat-next")] * 22 + [row("chat-next", outcome="error")] * 3
    assert verdict(rows) == "chat-next: 12.0% of 25 calls failed in 300 s (at most 5.0%); chat: 0.0% of 25"


def test_trouble_that_both_versions_have_is_no_reason() -> None:
    """Triton is down: 40 % of each fail."""
    rows = [row(name, outcome="error" if i % 5 < 2 else "ok") for i in range(50) for name in MODELS]
    assert verdict(rows) is None


def test_a_version_that_is_slow_to_begin_is_taken_back() -> None:
    """0.5 s against 0.1 s."""
    found = verdict([row("chat")] * 25 + [row("chat-next", ttft_s=0.5)] * 25)
    assert found is not None
    assert "0.500 s, chat: 0.100 s" in found


@pytest.mark.parametrize(
    "rows",
    [
        [row("chat")] * 25 + [row("chat-next", outcome="error")] * 19,
        [row("chat")] * 25 + [row("chat-next", outcome="refused")] * 50,
        [row("chat")] * 25 + [row("chat-next", outcome="error", status=400)] * 50,
        [row("chat")] * 25 + [row("chat-next", outcome="error", door="grpc", status=3)] * 50,
        [row("chat")] * 25 + [row("chat-next", outcome="error", at_s=-300.0)] * 50,
        [row("chat")] * 10 + [row("chat-next", ttft_s=5.0)] * 25,
    ],
    ids=[
        "too few calls",
        "refused calls",
        "bad requests",
        "bad gRPC requests",
        "long ago",
        "too few to compare with",
    ],
)
def test_what_proves_nothing_takes_nothing_back(rows: list[CallRow]) -> None:
    """Nineteen failures of nineteen are one too few to tell."""
    assert verdict(rows) is None
