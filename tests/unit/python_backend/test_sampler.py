"""Choosing tokens."""

import math

import pytest
import torch

from contracts.sampling import SamplingParams
from python_backend.worker.errors import RequestRefused
from python_backend.worker.sampler import Choice, Sampler
from python_backend.worker.sequence import Sequence

PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05])
LOGITS = torch.log(PROBS)
GREEDY = SamplingParams(temperature=0.0)


def sequence_of(params: SamplingParams, prompt=(0,), output=(), request_id=1) -> Sequence:
    return Sequence(request_id, [*prompt, *output], len(prompt), params)


def draw(params: SamplingParams, count: int = 300) -> list[int]:
    sampler, sequence = Sampler(), sequence_of(params)
    sampler.add(sequence)
    return [sampler.choose(LOGITS[None], [sequence])[0].token for _ in range(count)]


def choose(logits: torch.Tensor, params: SamplingParams, prompt=(0,), output=(), eos=()) -> Choice:
    """One choice after `prompt` and `output`; the output came token by token, as it does in the engine."""
    sampler, sequence = Sampler(eos, logits.numel()), sequence_of(params, prompt)
    sampler.add(sequence)
    for token in output:
        sampler.choose(logits[None], [sequence])
        sequence.tokens.append(token)
    return sampler.choose(logits[None], [sequence])[0]


def test_temperature_zero_takes_the_most_likely():
    """Greedy."""
    assert set(draw(GREEDY)) == {0}


def test_a_tiny_temperature_is_greedy_and_no_overflow():
    """1e-300 is 0 in float32; 1e-38 overflows the division. Both killed the worker once."""
    for temperature in (1e-300, 1e-40, 1e-38, 1e-6, 2e-5):
        assert draw(SamplingParams(temperature=temperature, top_k=3, top_p=0.9), 3) == [0, 0, 0]


def test_logits_that_are_not_finite_fail_their_own_row_only():
    """Greedy and drawn alike."""
    sampler = Sampler()
    sequences = [sequence_of(GREEDY), sequence_of(SamplingParams(seed=1), request_id=2), sequence_of(GREEDY)]
    sampler.add(sequences[1])
    logits = torch.stack((LOGITS, LOGITS * float("nan"), LOGITS * float("nan")))

    first, *others = sampler.choose(logits, sequences)
    assert first == Choice(0)
    assert [(type(other), other.code) for other in others] == [(RequestRefused, "INTERNAL")] * 2


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


def test_min_p_drops_what_is_too_far_below_the_likeliest():
    """0.15 is 0.3 of 0.5, 0.3 is 0.6 of it; and it looks at probabilities after the temperature."""
    assert set(draw(SamplingParams(min_p=0.31, seed=1))) == {0, 1}
    assert set(draw(SamplingParams(min_p=0.29, seed=1))) == {0, 1, 2}
    assert set(draw(SamplingParams(min_p=0.31, temperature=2.0, seed=1))) == {0, 1, 2, 3}
    assert set(draw(SamplingParams(min_p=1.0, seed=1))) == {0}


def test_sampled_frequencies_follow_the_distribution():
    """2,000 draws of the plain distribution come within 5 points of it."""
    drawn = draw(SamplingParams(seed=3), 2000)
    shares = [drawn.count(token) / len(drawn) for token in range(4)]
    assert all(abs(share - float(p)) < 0.05 for share, p in zip(shares, PROBS, strict=True))


def test_what_a_seed_draws_does_not_depend_on_the_rest_of_the_batch():
    """Alone, and between a greedy and another drawn request."""
    drawn, other = SamplingParams(seed=5), SamplingParams(seed=6)
    sampler = Sampler()
    batch = [sequence_of(GREEDY), sequence_of(drawn, request_id=2), sequence_of(other, request_id=3)]
    for sequence in batch:
        sampler.add(sequence)
    together = [sampler.choose(LOGITS.repeat(3, 1), batch) for _ in range(50)]

    assert [row[1].token for row in together] == draw(drawn, 50)
    assert {row[0].token for row in together} == {0}


def test_a_bias_moves_one_token():
    """+100 all but forces, -100 all but forbids."""
    assert choose(LOGITS, SamplingParams(temperature=0.0, logit_bias=((3, 100.0),))).token == 3
    assert choose(LOGITS, SamplingParams(temperature=0.0, logit_bias=((0, -100.0), (1, -100.0)))).token == 2


def test_token_ids_beyond_the_vocabulary_are_refused_with_both_numbers():
    """In a bias and as stop tokens."""
    for params in (SamplingParams(logit_bias=((4, 1.0),)), SamplingParams(stop_token_ids=(4,))):
        with pytest.raises(RequestRefused, match=r"token 4, .* ends at 3"):
            choose(LOGITS, params)


def test_no_end_comes_before_min_tokens():
    """End of sequence is token 0, a stop token is 1: both wait for the second token."""
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,))
    assert [choose(LOGITS, params, output=[2] * count, eos=(0,)).token for count in range(3)] == [2, 2, 0]


def test_when_only_ends_are_left_one_of_them_comes():
    """min_tokens must not leave a row without any token."""
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(0, 1, 2, 3))
    assert choose(LOGITS, params, eos=(0,)).token == 0


def test_logprobs_are_the_models_own():
    """Before penalties, bias and temperature; the chosen one is given though it is not among the likeliest."""
    params = SamplingParams(
        temperature=0.0, logprobs=2, logit_bias=((3, 100.0),), presence_penalty=2.0, repetition_penalty=2.0
    )
    logprobs = choose(LOGITS, params, output=[1]).logprobs
    assert logprobs is not None
    assert logprobs.chosen == pytest.approx(math.log(0.05))
    assert [token for token, _ in logprobs.top] == [0, 1]
    assert [value for _, value in logprobs.top] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_each_request_gets_as_many_logprobs_as_it_asked_for():
    """None, 0, 2 and more than there are, in one batch."""
    sampler = Sampler()
    batch = [
        sequence_of(SamplingParams(temperature=0.0, logprobs=count), request_id=at)
        for at, count in enumerate([None, 0, 2, 20])
    ]
    for sequence in batch:
        sampler.add(sequence)
    found = [choice.logprobs for choice in sampler.choose(LOGITS.repeat(4, 1), batch)]

    assert found[0] is None
    assert [len(logprobs.top) for logprobs in found[1:]] == [0, 2, 4]
    assert found[1].chosen == pytest.approx(math.log(0.5))


def test_the_models_logits_are_left_as_they_were():
    """They are the runner's buffer; and half precision is shaped in float32."""
    for logits in (LOGITS.clone(), LOGITS.to(torch.bfloat16)):
        before = logits.clone()
        choose(logits, SamplingParams(temperature=0.0, logit_bias=((0, -5.0),), min_tokens=3), eos=(1,))
        assert torch.equal(logits, before)


def test_a_plain_greedy_request_keeps_no_state():
    """Nothing but one maximum over the batch is its cost."""
    sampler = Sampler()
    sampler.add(sequence_of(SamplingParams(temperature=0.0, stop=("x",), stop_token_ids=(1,), max_tokens=5)))
    assert not sampler._controls
