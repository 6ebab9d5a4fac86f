"""Reading recorded load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scaler.simulation import traces
from scaler.simulation.trace import Trace, TraceError, TraceMissing, of_arrivals, of_counts


def _written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def _real(name: str) -> Trace:
    try:
        return traces.load(name)
    except TraceMissing as exc:
        pytest.skip(str(exc))


def test_the_first_bin_of_azure_2024_is_doubled_and_the_last_dropped(tmp_path: Path):
    """Bins were rounded, so both ends are half as wide: 10, 30, 40, 7 are 20, 30, 40."""
    path = _written(
        tmp_path / "bins.csv",
        "Time,TIMESTAMP",
        "2024-05-10 00:00:00,10",
        "2024-05-10 00:00:10,30",
        "2024-05-10 00:00:20,40",
        "2024-05-10 00:00:30,7",
    )

    trace = traces.load(str(path))

    assert trace.counts.tolist() == [20, 30, 40]
    assert trace.bin_s == 10
    assert trace.start_unix_s == 1715299200


def test_azure_2023_is_each_request_from_the_first_one_on(tmp_path: Path):
    """Stamps of 100 ns, 1.5 s apart."""
    path = _written(
        tmp_path / "stamps.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:05.4799600,3180,8",
    )

    trace = traces.load(str(path))

    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == pytest.approx([0.0, 1.5])


def test_a_window_of_servegen_without_data_is_bridged_and_counts_in_no_figure(tmp_path: Path):
    """Rates 2, 0, 4: the middle window is 3 for the course, unknown for figures."""
    path = _written(tmp_path / "s.csv", "t_s,rate_rps,active_clients", "0,2,1", "600,0,0", "1200,4,1")

    trace = traces.load(str(path))

    assert trace.counts.tolist() == [1200, 1800, 2400]
    assert trace.known.tolist() == [True, False, True]
    assert trace.num_requests == 3600
    assert trace.rates(600).tolist() == [2, 4]


def test_mooncake_stamps_are_milliseconds(tmp_path: Path):
    """0 and 2,500 ms."""
    lines = [json.dumps({"timestamp": at, "input_length": 1, "output_length": 1}) for at in (0, 2500)]

    trace = traces.load(str(_written(tmp_path / "m.jsonl", *lines)))

    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == [0.0, 2.5]


def test_an_own_csv_may_have_a_header_or_none(tmp_path: Path):
    """`seconds,count` every 30 s."""
    bare = traces.load(str(_written(tmp_path / "a.csv", "0,3", "30,5")))
    titled = traces.load(str(_written(tmp_path / "b.csv", "seconds,count", "0,3", "30,5")))

    assert bare.counts.tolist() == titled.counts.tolist() == [3, 5]
    assert bare.bin_s == titled.bin_s == 30


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(("0,3", "30,5", "40,1"), "must be even", id="uneven bins"),
        pytest.param(("0,3",), "1 bins, needs two", id="one bin"),
        pytest.param(("0,3", "30,-1"), "numbers from 0 on", id="negative"),
        pytest.param(("0,3", "thirty,1"), "seconds,count", id="no number"),
        pytest.param(("0,3", "30,nan"), "numbers from 0 on", id="NaN"),
        pytest.param(("Time,TIMESTAMP", "2024-05-10 00:00:00"), "can't be read", id="column missing"),
    ],
)
def test_a_bad_csv_is_refused_with_what_is_wrong(tmp_path: Path, lines: tuple[str, ...], words: str):
    """Each with the numbers."""
    with pytest.raises(TraceError, match=words):
        traces.load(str(_written(tmp_path / "bad.csv", *lines)))


def test_a_trace_that_is_not_here_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """$TIDEGATE_TRACES names an empty folder."""
    monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path))

    with pytest.raises(TraceMissing, match=r"azure2024/.*TIDEGATE_TRACES"):
        traces.load("conv24")
    with pytest.raises(TraceMissing, match="conv24, code24"):
        traces.load("nonsense")


def test_a_bin_is_dealt_out_by_chance_and_keeps_its_sum():
    """100 and 300 in bins of 10 s: four ticks of 5 s, uneven, the same in each replay."""
    trace = of_counts("t", np.array([100.0, 300.0]), 10.0)

    ticks = trace.per_tick(5.0)

    assert ticks.reshape(-1, 2).sum(axis=1).tolist() == [100, 300]
    assert ticks[0] != ticks[1]
    assert ticks.tolist() == trace.per_tick(5.0).tolist()


def test_the_last_incomplete_tick_counts():
    """Moments 0 and 11.2 s in ticks of 5 s: three ticks, no request lost."""
    trace = of_arrivals("t", np.array([0.0, 11.2]))

    assert trace.per_tick(5.0).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "num_requests", "oracle_share"),
    [("conv24", 27_304_014, 0.577), ("code24", 16_803_663, 0.337)],
)
def test_the_week_of_azure_is_the_one_that_was_studied(name: str, num_requests: int, oracle_share: float):
    """Requests, and what the exact count of each minute would cost: research file section 5 has 57.4 and 34.1 %."""
    from scaler.simulation.queueing import Capacity

    trace = _real(name)
    capacity = Capacity.for_peak(trace)
    needs = [capacity.needed(rate) for rate in trace.rates(60.0)]

    assert trace.num_requests == num_requests
    assert sum(needs) / len(needs) / 10 == pytest.approx(oracle_share, abs=0.001)


def test_the_same_requests_may_come_later_against_the_scalers_clock():
    """0 and 4 s, 2 s later: 2 and 6 s, so the second falls into the next tick."""
    trace = of_arrivals("t", np.array([0.0, 4.0]))

    assert trace.per_tick(5.0).tolist() == [2]
    assert trace.later(2.0).per_tick(5.0).tolist() == [1, 1]
    with pytest.raises(TraceError, match="a seed deals them out anew"):
        of_counts("t", np.ones(3), 10.0).later(2.0)
