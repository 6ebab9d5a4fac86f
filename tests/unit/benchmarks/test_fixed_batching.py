"""Which fixed batch is chosen, and what is compared with what, on servers that are a line each."""

import math
from collections import Counter

import pytest

from benchmarks.fixed_batching import WaveScale, measure_waves
from benchmarks.wave import Outcome

SECONDS = 20.0
BEARS_PER_S = {"embed": 100.0, "fixed-8-5": 65.0, "fixed-32-5": 80.0}
LATENCY_S = {"embed": 0.02, "fixed-8-5": 0.03, "fixed-32-5": 0.06}


def send(name: str, times: list[float], bound_s: float) -> Outcome:
    """Bears what comes up to its rate in each third of the time, with the same latency always."""
    third_s = SECONDS / 3
    peak_per_s = max(Counter(int(at / third_s) for at in times).values()) / third_s
    has_held = math.isinf(bound_s) or peak_per_s <= BEARS_PER_S[name]
    return Outcome(len(times), 0, has_held, [LATENCY_S[name]] * len(times))


def test_fixed_is_the_best_in_hindsight_and_again_what_is_quickest_at_the_mean():
    """32 bears most, 8 answers first: 100 / 80 and 100 / 65; latencies are each side's own."""
    scale = WaveScale(2, (8, 32), (5,), search_s=SECONDS, search_steps=8, wave_s=SECONDS, wave_steps=8)
    figures = measure_waves(scale, "embed", 200.0, send, progress=lambda _: None)
    assert figures["fixed_best_size"].value == 32
    assert figures["mean_tuned_size"].value == 8
    assert figures["dynamic_over_fixed_throughput"].value == pytest.approx(100 / 80, rel=0.1)
    assert figures["dynamic_over_mean_tuned_throughput"].value == pytest.approx(100 / 65, rel=0.1)
    assert figures["dynamic_p50_ms"].value == pytest.approx(20)
    assert figures["fixed_p50_ms"].value == pytest.approx(60)


def test_what_does_not_hold_at_the_mean_is_not_chosen_for_its_latency(monkeypatch):
    """8 answers first but bears 25 a second, and the mean of what dynamic bears is 56."""
    monkeypatch.setitem(BEARS_PER_S, "fixed-8-5", 25.0)
    scale = WaveScale(1, (8, 32), (5,), search_s=SECONDS, search_steps=8, wave_s=SECONDS, wave_steps=8)
    figures = measure_waves(scale, "embed", 200.0, send, progress=lambda _: None)
    assert figures["mean_tuned_size"].value == 32
