"""Choosing tokens."""

import torch

from contracts.sampling import SamplingParams
from python_backend.worker.sampler import Sampler

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def draw(params: SamplingParams, count: int = 300) -> list[int]:
    sampler = Sampler()
    sampler.add(1, params)
    return [sampler.sample(LOGITS[None], [(1, params)])[0] for _ in range(count)]


def test_temperature_zero_takes_the_most_likely():
    """Greedy."""
    assert set(draw(SamplingParams(temperature=0.0))) == {0}


def test_a_tiny_temperature_is_greedy_and_no_overflow():
    """1e-300 is 0 in float32; 1e-38 overflows the division. Both killed the worker once."""
    for temperature in (1e-300, 1e-40, 1e-38, 1e-6, 2e-5):
        assert draw(SamplingParams(temperature=temperature, top_k=3, top_p=0.9), 3) == [0, 0, 0]


def test_logits_that_are_not_finite_fail_their_own_row_only():
    """Greedy and drawn alike."""
    sampler = Sampler()
    sampler.add(2, SamplingParams(seed=1))
    logits = torch.stack((LOGITS, LOGITS * float("nan"), LOGITS * float("nan")))
    greedy = SamplingParams(temperature=0.0)

    assert sampler.sample(logits, [(1, greedy), (2, SamplingParams(seed=1)), (3, greedy)]) == [0, None, None]


def test_a_seed_repeats_the_draw_and_another_seed_does_not():
    """The whole sequence of draws is the seed's."""
    params = SamplingParams(seed=7)
    assert draw(params) == draw(params)
    assert draw(params) != draw(SamplingParams(seed=8))


def test_without_a_seed_two_requests_draw_differently():
    """A forked worker must not repeat its parent's random numbers."""
    assert draw(SamplingParams()) != draw(SamplingParams())


def test_top_k_keeps_the_k_most_likely():
    """k = 2 of four."""
    assert set(draw(SamplingParams(top_k=2, seed=1))) == {0, 1}


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    """0.5 + 0.3 reach 0.7; the first alone does not."""
    assert set(draw(SamplingParams(top_p=0.7, seed=1))) == {0, 1}
    assert set(draw(SamplingParams(top_p=0.01, seed=1))) == {0}


def test_sampled_frequencies_follow_the_distribution():
    """2,000 draws of the plain distribution come within 5 points of it."""
    drawn = draw(SamplingParams(seed=3), 2000)
    shares = [drawn.count(token) / len(drawn) for token in range(4)]
    assert all(abs(share - float(p)) < 0.05 for share, p in zip(shares, LOGITS.exp(), strict=True))


def test_greedy_and_sampled_requests_share_a_batch():
    """Row 0 greedy, row 1 drawn by its own generator."""
    sampler = Sampler()
    greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(seed=5)
    sampler.add(2, drawn)
    tokens = sampler.sample(torch.stack((LOGITS, LOGITS)), [(1, greedy), (2, drawn)])

    alone = Sampler()
    alone.add(2, drawn)
    assert tokens == [0, alone.sample(LOGITS[None], [(2, drawn)])[0]]
