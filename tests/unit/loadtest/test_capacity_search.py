"""Which rates are tried, and what is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtest.capacity import GivingUp, Probe, RateSearch
from loadtest.verdict import Verdict


def _searched(passes: Callable[[float], bool], first_per_s: float = 1.0, **options: float) -> RateSearch:
    search = RateSearch(first_per_s, **options)  # type: ignore[arg-type]
    while (rate := search.next_rate()) is not None:
        verdict = Verdict.PASS if passes(rate) else Verdict.FAIL
        search.tell(Probe(rate, verdict, ""))
    return search


@pytest.mark.parametrize("limit", [0.3, 0.97, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("first", [0.5, 3.0])
def test_the_highest_passing_rate_is_found_within_the_precision(limit: float, first: float):
    """Wherever it begins: the rate found passes, one 10 % above it does not."""
    search = _searched(lambda rate: rate <= limit, first, precision=0.1, max_probes=30)

    assert search.passed is not None
    assert search.not_passed is not None
    assert search.passed.rate_per_s <= limit < search.not_passed.rate_per_s
    assert search.not_passed.rate_per_s <= search.passed.rate_per_s * 1.1
    assert len(search.probes) <= 16


def test_a_server_that_passes_at_no_rate_ends_the_search():
    """Down to the least rate, then no more."""
    search = _searched(lambda rate: False, 4.0, least_per_s=0.5)

    assert search.passed is None
    assert [each.rate_per_s for each in search.probes] == [4, 2, 1, 0.5]


def test_the_search_ends_when_its_probes_are_spent():
    """A server without a limit: five probes, upward."""
    search = _searched(lambda rate: True, 1.0, max_probes=5)

    assert len(search.probes) == 5
    assert search.passed is not None
    assert search.passed.rate_per_s == search.probes[-1].rate_per_s
    assert search.not_passed is None


def test_invalid_is_no_pass():
    """What could not be shown is not promised."""
    search = RateSearch(2.0)
    search.tell(Probe(2.0, Verdict.INVALID, "the generator was late"))

    assert search.passed is None
    assert search.next_rate() == 1.0


def test_a_pass_above_a_failure_is_luck():
    """1 passes, 2 fails, 3 passes: 1."""
    search = RateSearch(1.0)
    for rate, verdict in ((1.0, Verdict.PASS), (2.0, Verdict.FAIL), (3.0, Verdict.PASS)):
        search.tell(Probe(rate, verdict, ""))

    assert search.passed is not None
    assert search.passed.rate_per_s == 1.0


@pytest.mark.parametrize(
    ("in_flight", "done", "failed", "words"),
    [
        (40, 0, 0, ""),
        (41, 0, 0, "41 requests in flight at 4/s, more than 10 s of arrivals"),
        (0, 19, 19, ""),
        (0, 20, 5, "5 of 20 requests failed"),
        (0, 100, 20, ""),
    ],
)
def test_a_probe_is_given_up_when_it_can_no_longer_pass(in_flight: int, done: int, failed: int, words: str):
    """A backlog of ten seconds at 4 a second is 40 requests; a few failures at the start prove nothing."""
    assert GivingUp(4.0, 10.0).reason(in_flight, done, failed) == words
