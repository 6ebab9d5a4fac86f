"""What a request may ask of its output, through the whole engine on a model of random logits."""

import json
import zlib

import pytest
import torch
from tokenizers import processors

from contracts.guide import Guide
from contracts.sampling import SamplingParams
from python_backend.worker.blocks import BlockPool
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.errors import RequestRefused
from python_backend.worker.grammar import Grammars
from tests.unit.python_backend.test_blocks import FakeLessor
from tests.unit.python_backend.test_engine import run_to_end, text_of
from tests.unit.python_backend.test_grammar import END, PADDED_SIZE, TOKENIZER, VOCABULARY, byte_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "s": {"type": "string", "maxLength": 4}},
    "required": ["n", "s"],
    "additionalProperties": False,
}  # fmt: skip
PERSON = Guide("json", json.dumps(SCHEMA))


class RandomRunner:
    """Logits that depend on nothing but the sequence's tokens, so that a recomputed prompt continues alike."""

    def __init__(self):
        self.prompts = []

    def run(self, batch):
        self.prompts += [entry.sequence.tokens for entry in batch if entry.start == 0]
        rows = [self.logits(entry.sequence.tokens) for entry in batch if entry.samples]
        return torch.stack(rows) if rows else torch.empty(0, PADDED_SIZE)

    @staticmethod
    def logits(tokens):
        seed = zlib.crc32(bytes(token % 256 for token in tokens))
        return torch.randn(PADDED_SIZE, generator=torch.Generator().manual_seed(seed)) * 2


def engine_of(total_blocks=4096, tokenizer=TOKENIZER, **config):
    pool = BlockPool(FakeLessor(total_blocks), block_tokens=4, extent_blocks=1)
    settings = EngineConfig(frozenset({END}), 512, total_blocks, vocabulary_size=PADDED_SIZE, **config)
    return Engine(settings, tokenizer, RandomRunner(), pool, Grammars(VOCABULARY))


def answers_to(engine, requests):
    """prompt -> sampling; the deltas by prompt."""
    for at, (prompt, sampling) in enumerate(requests.items()):
        engine.add(at, prompt, sampling)
    deltas = run_to_end(engine)
    return {prompt: deltas[at] for at, prompt in enumerate(requests)}


def guided(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=300, temperature=1.0, seed=seed, guide=PERSON)


def test_guided_answers_are_whole_and_the_same_alone_together_and_after_preemptions():
    """Six at once on blocks for two: their prompts are computed again, their place in the guide is not lost."""
    requests = {f"prompt {at}": guided(at) for at in range(6)}
    alone = {p: text_of(answers_to(engine_of(), {p: s})[p]) for p, s in requests.items()}
    together = answers_to(engine_of(), requests)
    scarce = engine_of(total_blocks=30)
    preempted = answers_to(scarce, requests)

    assert len(scarce._runner.prompts) > len(requests), "nothing was preempted"
    for prompt in requests:
        assert set(json.loads(alone[prompt])) == {"n", "s"}
        for deltas in (together[prompt], preempted[prompt]):
            assert text_of(deltas) == alone[prompt]
            assert deltas[-1].finish_reason == "stop"


def test_a_guide_ends_the_answer_without_an_end_of_sequence_and_before_min_tokens():
    """The last token is still text; nothing could follow it."""
    sampling = SamplingParams(max_tokens=50, min_tokens=20, ignore_eos=True, guide=Guide("regex", "[a-c]{3}"))
    deltas = answers_to(engine_of(), {"x": sampling})["x"]
    assert len(text_of(deltas)) == 3
    assert sum(delta.num_output_tokens for delta in deltas) == 3
    assert deltas[-1].finish_reason == "stop"


def test_an_answer_that_may_end_goes_on_until_min_tokens():
    """Only the end of sequence ends this one; the guide allows it from the first letter on."""
    for seed in range(5):
        sampling = SamplingParams(
            max_tokens=50, min_tokens=9, seed=seed, guide=Guide("regex", "[a-z]+"), logit_bias=((END, 50.0),)
        )
        assert len(text_of(answers_to(engine_of(), {"x": sampling})["x"])) == 9


def test_a_bad_guide_is_refused_and_leaves_nothing():
    """So is a token that the model does not have."""
    engine = engine_of()
    for sampling in (
        SamplingParams(guide=Guide("regex", "(")),
        SamplingParams(logit_bias=((PADDED_SIZE, 1.0),)),
    ):
        with pytest.raises(RequestRefused) as refused:
            engine.add(1, "x", sampling)
        assert refused.value.code == "INVALID_ARGUMENT"
    assert not engine.has_work
    assert not engine.scheduler.sequences


def test_a_guide_that_becomes_too_complex_fails_its_own_request_alone():
    """It compiles, but 2,100 rules are open at once in its first place; the library takes 2,000."""
    rules = [f"r{at}:r{at + 1}?" for at in range(2100)]
    hard = SamplingParams(guide=Guide("grammar", "\n".join(["start: r0", *rules, 'r2100: "x"'])))
    deltas = answers_to(
        engine_of(), {"x": hard, "y": SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True)}
    )
    assert deltas["x"][-1].error_code == "INVALID_ARGUMENT"
    assert "can't be followed" in deltas["x"][-1].error
    assert deltas["y"][-1].finish_reason == "length"


def test_a_stop_token_ends_the_text_without_being_sent():
    """Its own greedy second token as the stop."""
    plain = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    tokens = []
    engine = engine_of()
    engine.on_tokens = lambda request_id, output: tokens.extend(output)
    whole = text_of(answers_to(engine, {"abc": plain})["abc"])
    stopped = SamplingParams(max_tokens=4, temperature=0.0, stop_token_ids=(tokens[2],))
    deltas = answers_to(engine_of(), {"abc": stopped})["abc"]

    assert deltas[-1].finish_reason == "stop"
    assert sum(delta.num_output_tokens for delta in deltas) == 3
    assert whole.startswith(text_of(deltas))


def test_no_stop_string_is_looked_for_in_the_first_min_tokens():
    """ "a" alone can come: the fourth one is the first that stops, and is not sent."""
    only_a = Guide("regex", "a+")
    sampling = SamplingParams(max_tokens=9, min_tokens=3, stop=("a",), guide=only_a)
    deltas = answers_to(engine_of(), {"x": sampling})["x"]
    assert text_of(deltas) == "aaa"
    assert deltas[-1].finish_reason == "stop"


def test_the_service_caps_every_output_with_length():
    """A request that asks for less gets less."""
    engine = engine_of(max_output_tokens=5)
    asked = {"x": 100, "y": 2}
    deltas = answers_to(
        engine, {p: SamplingParams(max_tokens=n, ignore_eos=True, seed=1) for p, n in asked.items()}
    )
    assert [sum(d.num_output_tokens for d in deltas[p]) for p in asked] == [5, 2]
    assert [deltas[p][-1].finish_reason for p in asked] == ["length", "length"]


def test_each_token_comes_with_its_log_probabilities():
    """Of the model's own distribution at its place, text and all; others in the batch get none."""
    sampling = SamplingParams(
        max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=2, logit_bias=((65, 90.0),)
    )
    plain = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    deltas = answers_to(engine_of(), {"x": sampling, "y": plain})
    tokens, letter = TOKENIZER.encode("x").ids, TOKENIZER.decode([65])
    found = [step for delta in deltas["x"] for step in delta.logprobs]

    assert [(step.token_id, step.token) for step in found] == [(65, letter)] * 3
    for at, step in enumerate(found):
        expected = RandomRunner.logits(tokens + [65] * at).log_softmax(-1)
        assert step.logprob == pytest.approx(float(expected[65]), abs=1e-5)
        assert [token for token, _, _ in step.top] == expected.topk(2).indices.tolist()
    assert not any(delta.logprobs for delta in deltas["y"])


def starting_tokenizer():
    """Adds a beginning-of-sequence token by itself, as Llama's does."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    return tokenizer, start


@pytest.mark.parametrize(
    ("prompt", "num_starts"),
    [("hi", 1), ("<s>hi", 1), ("<s><s>hi", 2), ("hi<s><s>", 3)],
)
def test_a_prompt_begins_once_though_template_and_tokenizer_both_begin_it(prompt, num_starts):
    """Only the tokenizer's own is dropped, and only at the beginning."""
    tokenizer, start = starting_tokenizer()
    engine = engine_of(tokenizer=tokenizer)
    engine.add(0, prompt, SamplingParams(max_tokens=1))
    run_to_end(engine)
    tokens = engine._runner.prompts[0]
    assert tokens.count(start) == num_starts
    assert tokens[0] == start


def test_a_tokenizer_without_a_beginning_leaves_every_prompt_alone():
    """Two equal tokens at the front are just that."""
    engine = engine_of()
    engine.add(0, "aa", SamplingParams(max_tokens=1))
    run_to_end(engine)
    assert len(engine._runner.prompts[0]) >= 2
