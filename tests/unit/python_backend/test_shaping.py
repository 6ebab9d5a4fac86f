"""Bias, penalties and the earliest end, against the formulas written out token by token."""

import pytest
import torch

from contracts.sampling import SamplingParams
from python_backend.worker.shaping import NUM_LIKELY, Shaping, draw

NEVER = float("-inf")
PROMPT, OUTPUT = [0, 3, 3, 7], [2, 5, 2, 7, 2]


def shaped(params: SamplingParams, logits: torch.Tensor, steps: list[int]) -> list[float]:
    """The row after the prompt and all of OUTPUT, told of it up to each of `steps`."""
    shaping = Shaping(params, PROMPT, eos_token_ids=(1,))
    for step in steps:
        row = logits.clone()
        shaping.apply(row, PROMPT + OUTPUT[:step], step)
    return row.tolist()


def penalised(params: SamplingParams, logits: list[float]) -> list[float]:
    """Bias; Hugging Face's repetition penalty over prompt and output; OpenAI's two over the output."""
    expected = list(logits)
    for token, bias in params.logit_bias:
        expected[token] += bias
    for token in set(PROMPT + OUTPUT):
        value, factor = expected[token], params.repetition_penalty
        expected[token] = value / factor if value > 0 else value * factor
    for token in set(OUTPUT):
        expected[token] -= params.frequency_penalty * OUTPUT.count(token) + params.presence_penalty
    return expected


@pytest.mark.parametrize("presence", [0.0, 0.7, -2.0])
@pytest.mark.parametrize("frequency", [0.0, 0.4, -0.3])
@pytest.mark.parametrize("repetition", [1.0, 1.8, 0.7])
@pytest.mark.parametrize("bias", [(), ((2, 3.0), (3, -100.0), (11, 0.5))])
def test_bias_and_penalties_follow_the_formulas(presence, frequency, repetition, bias):
    """The same whether the output came token by token, in leaps, or at once, as after a preemption."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(4)) * 3
    params = SamplingParams(
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=bias,
    )
    for steps in ([0, 1, 2, 3, 4, 5], [2, 5], [5]):
        assert shaped(params, logits, steps) == pytest.approx(penalised(params, logits.tolist()), abs=1e-5)


def test_the_earliest_end_forbids_end_of_sequence_and_stop_tokens_alone():
    """Five tokens are out: a minimum of 6 still holds, one of 5 doesn't. Ends beyond the row are no error."""
    logits = torch.zeros(8)
    ends = (4, 99)
    held = shaped(SamplingParams(min_tokens=6, stop_token_ids=ends), logits, [5])
    assert [token for token, value in enumerate(held) if value == NEVER] == [1, 4]
    assert shaped(SamplingParams(min_tokens=5, stop_token_ids=ends), logits, [5]) == logits.tolist()


def test_when_only_ends_are_left_they_stay():
    """What a guide has forbidden is forbidden; a minimum gives way."""
    logits = torch.full((8,), NEVER)
    logits[1] = 0.5
    assert shaped(SamplingParams(min_tokens=9), logits, [5])[1] == 0.5


def test_plain_settings_need_no_shaping():
    """Temperature and its kin are not shaping; each of these is."""
    assert not Shaping.is_needed(SamplingParams(temperature=0.3, top_k=3, min_p=0.1, logprobs=3, stop=("a",)))
    for key, value in {
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "logit_bias": ((1, 1.0),),
    }.items():
        assert Shaping.is_needed(SamplingParams(**{key: value})), key


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
@pytest.mark.parametrize(
    "settings", [{"top_p": 0.9}, {"top_p": 0.5, "min_p": 1e-4}, {"top_p": 0.7, "top_k": 50}]
)
def test_top_p_keeps_the_nucleus_of_wide_and_of_narrow_distributions(spread, settings):
    """Against the definition written out; the nucleus of an even distribution is larger than NUM_LIKELY."""
    size, params = 3 * NUM_LIKELY, SamplingParams(seed=1, **settings)
    logits = torch.randn(size, generator=torch.Generator().manual_seed(2)) * spread
    logits += torch.arange(size) * 1e-5  # no ties
    probs = logits.softmax(-1)
    order = probs.argsort(descending=True).tolist()
    if params.top_k:
        order = order[: params.top_k]
    order = [token for token in order if probs[token] >= params.min_p * probs.max()]
    total, nucleus, before = float(probs[order].sum()), set(), 0.0
    for token in order:
        if before / total < params.top_p - 1e-4:
            nucleus.add(token)
        before += float(probs[token])

    generator = torch.Generator().manual_seed(3)
    drawn = {draw(logits, params, generator) for _ in range(300)}
    border = 10
    assert len(drawn - nucleus) <= border * (spread < 1.0)
    assert len(drawn) > min(len(nucleus), 300) / 3
    assert (drawn <= set(order[:NUM_LIKELY])) == (len(nucleus) <= NUM_LIKELY)
