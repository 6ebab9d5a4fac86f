"""Advice without deeds."""

from __future__ import annotations

import pytest

from scaler.acting.dry_run import DryRun
from scaler.deciding.observation import Counts
from scaler.errors import CountsUnknown
from tests.unit.scaler.test_handover import FakeTarget


async def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    """2 → 4 advised: the counts stay 2, what was imagined stands apart, and the result says so."""
    real, said = FakeTarget(Counts(2)), list[str]()
    dry = DryRun(real, say=said.append)
    result = await dry.scale("chat", 4, "chat 2→4: queue 37 ≥ 20 for 3 s")
    assert (result.before, result.after) == (2, 2)
    assert result.detail == "dry run: would be 4, nothing was changed"
    assert await dry.counts("chat") == Counts(2)
    assert dry.imagined == {"chat": 4}
    assert real.asked == []
    assert said == ["dry run: would scale chat 2→4: queue 37 ≥ 20 for 3 s"]


async def test_the_same_advice_is_said_once() -> None:
    """After each cooldown the decider comes to it again; another count is news."""
    said = list[str]()
    dry = DryRun(FakeTarget(Counts(2)), say=said.append)
    for wanted in (4, 4, 4, 5, 4):
        await dry.scale("chat", wanted, f"chat 2→{wanted}")
    assert [text[-1] for text in said] == ["4", "5", "4"]


async def test_models_that_are_not_named_are_scaled() -> None:
    """Advice for embed alone."""
    real = FakeTarget(Counts(2))
    dry = DryRun(real, say=print, models={"embed"})
    assert (await dry.scale("chat", 4, "")).after == 4
    assert (await dry.scale("embed", 8, "")).after == 4
    assert real.asked == [4]


async def test_no_advice_without_counts() -> None:
    """Nobody answers: that is said, not taken for 0."""
    with pytest.raises(CountsUnknown, match="'chat' cannot be counted now"):
        await DryRun(FakeTarget(None), say=print).scale("chat", 4, "")
