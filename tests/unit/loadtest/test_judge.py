"""From figures to PASS, FAIL and INVALID: each row says why, and doubt never passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.judging.checks import RunFacts
from loadtest.judging.expression import goals_of, parse_all
from loadtest.judging.judge import judge
from loadtest.judging.proof import Counts, prove, samples_needed, share_interval
from loadtest.measuring.metrics import measure
from loadtest.measuring.sample_sizes import is_proven, n_needed
from loadtest.measuring.steady import Window
from loadtest.records import Request, columns_of
from loadtest.verdict import Verdict
from tests.unit.loadtest.runs import (
    NO_CURVE,
    a_request,
    even_run,
    failed,
    judged,
    not_sent,
    row_of,
    shuffled,
    unfinished,
    window_over,
)

LATENCY = "latency.scheduled p99 < 1s"


def test_a_good_run_passes():
    """600 requests of 0.5 s against a second, no errors against 1 %, all of them good."""
    judgement = judged(
        even_run(), LATENCY, "errors rate < 1%", "goodput >= 99%", "gap p99 < 300ms", "tokens.rate > 9/s"
    )
    assert judgement.verdict is Verdict.PASS, [
        row.why for row in judgement.rows if row.verdict is not Verdict.PASS
    ]


def test_a_slow_run_fails():
    """All take 1.5 s."""
    assert row_of(judged(even_run(latency_s=1.5), LATENCY), LATENCY).verdict is Verdict.FAIL


def test_the_limit_itself_is_beyond_a_strict_limit_only():
    """Latencies of exactly 0.5 s against < 500 ms and <= 500 ms."""
    rows = [a_request(float(i), 0.5) for i in range(400)]
    strict, loose = "latency.service p50 < 500ms", "latency.service p90 <= 500ms"
    judgement = judged(rows, strict, loose)
    assert row_of(judgement, strict).verdict is Verdict.FAIL
    assert row_of(judgement, loose).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("n", "over", "verdict"),
    [
        (458, 0, Verdict.INVALID),  # one too few
        (459, 0, Verdict.PASS),
        (661, 1, Verdict.INVALID),  # early stopping wants 662
        (662, 1, Verdict.PASS),
        (662, 7, Verdict.FAIL),  # 1.06 %
        (30, 1, Verdict.INVALID),  # 3 %, and may be chance
        (30, 3, Verdict.FAIL),  # 10 %, and is none
        (3, 3, Verdict.FAIL),
        (0, 0, Verdict.INVALID),
    ],
)
def test_a_percentile_passes_only_when_it_is_proven(n, over, verdict):
    """p99 at 99 % confidence."""
    assert prove(Counts(n, float(n), over, over, 0.99, 0.99, 60.0))[0] is verdict


def test_a_row_that_can_not_be_proven_says_how_many_would_and_how_long_that_takes():
    """600 requests in a minute, two over: 838 are needed where two stay two; here two are a third of a percent."""
    verdict, why = prove(Counts(600, 600.0, 2, 2, 0.99, 0.99, 60.0))
    needed = samples_needed(Counts(600, 600.0, 2, 2, 0.99, 0.99, 60.0))
    assert verdict is Verdict.INVALID
    assert f"{needed:,} like them would ({needed / 600:.1f} minutes at this rate)" in why
    assert is_proven(needed, needed * 2 / 600, 0.99, 0.99)


def test_a_share_that_sits_on_its_limit_is_never_proven():
    """Exactly 1 % over, p99: no number would do."""
    assert samples_needed(Counts(1000, 1000.0, 10, 10, 0.99, 0.99, 60.0)) is None


def test_failing_fast_improves_no_percentile():
    """Half are refused in a millisecond; of the other half each keeps the limit."""
    rows = even_run(400) + [failed(t / 10 + 0.05) for t in range(400)]
    row = row_of(judged(rows, LATENCY), LATENCY)
    assert (row.verdict, row.value) == (Verdict.FAIL, None)
    assert "never answered" in row.why


def test_what_was_unfinished_can_neither_pass_nor_fail_below_the_limit():
    """60 of 1,260 were open for 0.1 s when the run ended; the limit is a second."""
    rows = even_run(1200) + [unfinished(120.0, end_s=120.1) for _ in range(60)]
    row = row_of(judged(rows, LATENCY), LATENCY)
    assert row.verdict is Verdict.INVALID
    assert "60 were unfinished" in row.why


def test_what_was_unfinished_beyond_the_limit_fails():
    """60 of 660 were open for 9 s."""
    rows = even_run() + [unfinished(60.0, end_s=69.0) for _ in range(60)]
    assert row_of(judged(rows, LATENCY), LATENCY).verdict is Verdict.FAIL


def test_few_requests_do_not_prove_a_small_error_rate():
    """No error in 600 requests says nothing of 0.1 %; 2,995 are needed."""
    row = row_of(judged(even_run(), "errors rate < 0.1%"), "errors rate < 0.1%")
    assert (row.verdict, row.n_needed) == (Verdict.INVALID, 2995)
    assert "n too small" in row.why


def test_no_error_at_all_is_a_statement_on_this_run():
    """`== 0` needs no sample size, and one error is too many."""
    assert row_of(judged(even_run(), "errors rate == 0"), "errors rate == 0").verdict is Verdict.PASS
    assert (
        row_of(judged([*even_run(), failed(30.0)], "errors rate == 0"), "errors rate == 0").verdict
        is Verdict.FAIL
    )


def test_an_interval_of_a_share_is_clopper_and_pearsons():
    """0 of 10 and 5 of 10 at 95 %: textbook values."""
    assert share_interval(0, 10, 10.0, 0.95) == (0.0, pytest.approx(0.3085, abs=1e-4))
    assert share_interval(5, 10, 10.0, 0.95) == (
        pytest.approx(0.1871, abs=1e-4),
        pytest.approx(0.8129, abs=1e-4),
    )


def test_gaps_pass_by_whole_requests():
    """100 requests with thousands of gaps are 100 requests: too few for p99 at 95 %, enough for p90."""
    rows = [
        a_request(float(i), chunk_times_s=tuple(i + 0.01 * np.arange(1, 51)), chunk_tokens=(1,) * 50)
        for i in range(100)
    ]
    judgement = judged(rows, "gap p99 < 50ms", "gap p90 < 50ms", "gap max < 50ms")
    verdicts = [
        row_of(judgement, line).verdict for line in ("gap p99 < 50ms", "gap p90 < 50ms", "gap max < 50ms")
    ]
    assert verdicts == [Verdict.INVALID, Verdict.PASS, Verdict.PASS]


def test_a_late_generator_is_no_verdict_on_the_server():
    """Two in a hundred were sent 20 ms late; the bound is 5 ms at p99."""
    rows = [replace(row, t_sent_s=row.t_sent_s + 0.02) if row.index % 50 == 0 else row for row in even_run()]
    row = row_of(judged(rows, LATENCY), "dispatch on time")
    assert row.verdict is Verdict.INVALID
    assert row.value == pytest.approx(0.02)


def test_a_line_that_the_generator_broke_accuses_nobody():
    """All were sent 2 ms late, and the plan wants 1 ms: INVALID, not FAIL."""
    rows = [replace(row, t_sent_s=row.t_sent_s + 0.002) for row in even_run()]
    row = row_of(judged(rows, "dispatch_delay p99 < 1ms"), "dispatch_delay p99 < 1ms")
    assert row.verdict is Verdict.INVALID
    assert "the generator's, not the server's" in row.why


def built_in(
    rows: list[Request], facts: RunFacts | None = None, window: Window | None = None
) -> dict[str, Verdict]:
    requests, lines = columns_of(rows), parse_all([LATENCY])
    measured = measure(requests, NO_CURVE, window or window_over(requests), goals_of(lines))
    judgement = judge(lines, measured, facts or RunFacts(drawn_s=requests.t_intended_s))
    return {row.expression: row.verdict for row in judgement.rows}


def test_what_was_drawn_and_is_not_in_the_rows_is_missed():
    """One of 600 never came to light; one was not sent; all there but one at another moment."""
    drawn_s = np.arange(600) / 10
    assert built_in(even_run()[:-1], RunFacts(drawn_s))["arrivals as drawn"] is Verdict.INVALID
    assert (
        built_in([*even_run()[:-1], not_sent(59.9)], RunFacts(drawn_s))["arrivals as drawn"]
        is Verdict.INVALID
    )
    moved = [*even_run()[:-1], a_request(59.95)]
    assert built_in(moved, RunFacts(drawn_s))["arrivals as drawn"] is Verdict.INVALID
    assert built_in(even_run(), RunFacts(drawn_s))["arrivals as drawn"] is Verdict.PASS


def test_later_turns_of_a_conversation_are_no_arrivals_of_the_schedule():
    """Their start depends on the answer before."""
    rows = [*even_run(), a_request(30.05, turn=1)]
    assert built_in(rows, RunFacts(np.arange(600) / 10))["arrivals as drawn"] is Verdict.PASS


def test_a_generator_with_a_problem_makes_the_run_invalid():
    """It says itself that a process died."""
    facts = RunFacts(np.arange(600) / 10, problems=("generator process 1 died (signal 9)",))
    assert built_in(even_run(), facts)["generator"] is Verdict.INVALID


@pytest.mark.parametrize(
    "broken",
    [
        {"t_last_s": float("nan")},
        {"t_sent_s": float("nan")},
        {"t_sent_s": 4.9},  # before it was due
        {"t_last_s": 4.0},  # before it was sent
        {"t_first_s": 4.0},
        {"chunk_times_s": (5.3, 5.2, 5.4, 5.5)},
    ],
)
def test_rows_whose_clocks_run_backwards_are_refused(broken):
    """One of 600, due at 5 s."""
    rows = even_run()
    rows[50] = replace(rows[50], **broken)
    assert built_in(rows)["rows in order"] is Verdict.INVALID


def test_no_steady_state_is_no_verdict():
    """The window says so."""
    assert (
        built_in(even_run(), window=Window(0.0, 60.0, False, "drifts", ()))["steady state"] is Verdict.INVALID
    )
    assert (
        built_in(even_run(), window=Window(0.0, 60.0, None, "not asked", ()))["steady state"] is Verdict.PASS
    )


def test_a_route_without_one_good_answer_is_named():
    """Every embedding failed; chat was well."""
    rows = [*even_run(), replace(failed(30.05), user="embed")]
    judgement = judged(rows, "latency.scheduled{user=chat} p99 < 1s")
    row = row_of(judgement, "every route answered")
    assert row.verdict is Verdict.INVALID
    assert "embed" in row.why


def test_a_plan_without_lines_judges_nothing():
    """All built-in checks are well, and still nothing was asked."""
    assert judged(even_run()).verdict is Verdict.INVALID


LINES = (
    LATENCY,
    "ttft.scheduled p90 < 1s",
    "errors rate < 30%",
    "goodput >= 50%",
    "tokens.rate > 1/s",
    "gap p90 < 1s",
)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [failed(t / 10) for t in range(600)],
        [not_sent(t / 10) for t in range(600)],
        [unfinished(t / 10, 60.0) for t in range(600)],
        [
            replace(row, t_last_s=np.nan, t_first_s=np.nan, chunk_times_s=(), chunk_tokens=())
            for row in even_run()
        ],
    ],
    ids=["empty", "all failed", "none sent", "none finished", "NaN"],
)
@pytest.mark.parametrize(
    "line", [*LINES, "kv.used_ratio max < 0.9", "errors rate == 0", "waiting.slope <= 0"]
)
def test_a_run_without_a_good_answer_never_passes(rows, line):
    """Whatever its only line is."""
    assert judged(rows, line).verdict is not Verdict.PASS


outcomes = st.lists(
    st.tuples(st.sampled_from(["ok", "ok", "ok", "ok", "failed", "unfinished"]), st.floats(0.01, 3.0)),
    min_size=1,
    max_size=400,
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def rows_of(drawn: list[tuple[str, float]]) -> list[Request]:
    rows = []
    for i, (kind, seconds) in enumerate(drawn):
        t_s = i / 10
        made = {
            "ok": a_request(t_s, seconds),
            "failed": failed(t_s),
            "unfinished": unfinished(t_s, t_s + seconds),
        }
        rows.append(replace(made[kind], index=i))
    return rows


WINDOW = Window(0.0, 1000.0, True, "no drift", ())


@quick
@given(drawn=outcomes, worse=st.sampled_from(["failed", "unfinished"]), at=st.floats(0, 40))
def test_one_more_failed_or_unfinished_request_never_turns_fail_into_pass(drawn, worse, at):
    """Line by line, over the same window."""
    rows = rows_of(drawn)
    more = failed(at) if worse == "failed" else unfinished(at, at + 0.2)
    before, after = (
        judged(rows, *LINES, window=WINDOW),
        judged([*rows, replace(more, index=10_000)], *LINES, window=WINDOW),
    )
    for line in LINES:
        if row_of(before, line).verdict is Verdict.FAIL:
            assert row_of(after, line).verdict is not Verdict.PASS, line


@quick
@given(drawn=outcomes, seed=st.integers(0, 2**32 - 1))
def test_rows_in_any_order_are_judged_alike(drawn, seed):
    """Generator processes finish in any order."""
    requests, lines = columns_of(rows_of(drawn)), parse_all(LINES)
    facts = RunFacts(drawn_s=requests.t_intended_s)
    first, second = (
        judge(lines, measure(each, NO_CURVE, WINDOW, goals_of(lines)), facts)
        for each in (requests, shuffled(requests, seed))
    )
    assert first == second


@quick
@given(
    n=st.integers(1, 3000),
    over=st.integers(0, 60),
    unknown=st.integers(0, 60),
    p=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_a_pass_is_always_a_proof(n, over, unknown, p):
    """Whatever the counts: PASS means that early stopping's condition holds with every unfinished one beyond."""
    over, unknown = min(over, n), min(unknown, n - min(over, n))
    verdict, _ = prove(Counts(n, float(n), over, over + unknown, p, 0.95, 60.0))
    if verdict is Verdict.PASS:
        assert n >= n_needed(p, 0.95, over + unknown)
    if verdict is Verdict.FAIL:
        assert over / n > 1 - p


def test_a_server_on_its_limit_passes_no_more_often_than_promised():
    """1,000 seeded runs with a true share of 1 % beyond the limit: p99 @95% passes at most 5 % of them."""
    rng = np.random.default_rng(12)
    overs = rng.binomial(2000, 0.01, 1000)
    passed = sum(
        prove(Counts(2000, 2000.0, int(k), int(k), 0.99, 0.95, 60.0))[0] is Verdict.PASS for k in overs
    )
    assert passed <= 50


def test_failed_requests_do_not_make_a_sample_of_gaps_large_enough():
    """28 good ones are one too few for p90; three that failed add nothing to what is proven."""
    line = "gap p90 < 1s"
    assert (
        row_of(judged([*even_run(28), *(failed(3.0 + i) for i in range(3))], line), line).verdict
        is Verdict.INVALID
    )
    assert row_of(judged(even_run(29), line), line).verdict is Verdict.PASS


def test_a_few_unfinished_requests_can_make_a_large_enough_sample_too_small():
    """662 with none beyond are more than the 459 that p99 at 99 % needs; two that may be would need 838."""
    assert prove(Counts(662, 662.0, 0, 0, 0.99, 0.99, 60.0))[0] is Verdict.PASS
    assert prove(Counts(662, 662.0, 0, 2, 0.99, 0.99, 60.0))[0] is Verdict.INVALID
