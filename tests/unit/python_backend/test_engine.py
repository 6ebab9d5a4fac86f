"""The engine's promises, on a model that counts: the next token is the last one + 1."""

import pytest
import torch

from contracts.sampling import SamplingParams
from python_backend.messages import Delta
from python_backend.worker.blocks import BlockPool
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.errors import RequestRefused
from tests.unit.python_backend.test_blocks import FakeLessor

EOS = 90
VOCABULARY = 128
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


class Encoded:
    def __init__(self, ids):
        self.ids = ids


class LetterTokenizer:
    """Token = code point."""

    def encode(self, sequence):
        return Encoded([ord(letter) for letter in sequence])

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


class CountingRunner:
    """Logits that choose the newest token + 1; remembers the batches."""

    def __init__(self):
        self.batches = []

    def run(self, batch):
        self.batches.append([(entry.sequence.request_id, entry.count) for entry in batch])
        rows = [entry.sequence.tokens[-1] + 1 for entry in batch if entry.samples]
        return torch.nn.functional.one_hot(torch.tensor(rows, dtype=torch.long), VOCABULARY).float()


def engine_of(total_blocks=64, max_context_tokens=32):
    runner = CountingRunner()
    pool = BlockPool(FakeLessor(total_blocks), block_tokens=4, extent_blocks=1)
    engine = Engine(
        EngineConfig(frozenset({EOS}), max_context_tokens, total_blocks), LetterTokenizer(), runner, pool
    )
    return engine, runner, pool


def run_to_end(engine: Engine, now_unix_s: float = 0.0) -> dict[int, list[Delta]]:
    deltas: dict[int, list[Delta]] = {}
    for _ in range(1000):
        if not engine.has_work:
            break
        for delta in engine.step(now_unix_s):
            deltas.setdefault(delta.request_id, []).append(delta)
    assert not engine.has_work
    return deltas


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def num_last(deltas: list[Delta]) -> int:
    return sum(delta.finish_reason is not None or delta.error_code is not None for delta in deltas)


def test_a_request_streams_its_tokens_and_ends_at_max_tokens():
    """Four tokens after "a", the last delta says why it ended and counts the prompt."""
    engine, _, _ = engine_of()
    engine.add(1, "a", GREEDY)

    deltas = run_to_end(engine)[1]
    assert [delta.text for delta in deltas] == ["b", "c", "d", "e"]
    assert deltas[-1].finish_reason == "length"
    assert deltas[-1].num_input_tokens == 1
    assert sum(delta.num_output_tokens for delta in deltas) == 4


def test_requests_join_and_leave_at_every_step():
    """A request added while another decodes shares the very next step with it."""
    engine, runner, _ = engine_of()
    engine.add(1, "a", GREEDY)
    engine.step(0.0)
    engine.add(2, "k", GREEDY)
    engine.step(0.0)

    assert runner.batches[1] == [(1, 1), (2, 1)]


def test_an_end_of_sequence_token_ends_the_text_without_being_sent():
    """chr(89) is followed by EOS = 90."""
    engine, _, _ = engine_of()
    engine.add(1, chr(88), GREEDY)

    deltas = run_to_end(engine)[1]
    assert text_of(deltas) == chr(89)
    assert deltas[-1].finish_reason == "stop"


def test_ignore_eos_goes_on_to_max_tokens():
    """The same prompt, told to go on."""
    engine, _, _ = engine_of()
    engine.add(1, chr(88), SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))

    deltas = run_to_end(engine)[1]
    assert sum(delta.num_output_tokens for delta in deltas) == 4
    assert deltas[-1].finish_reason == "length"


def test_a_stop_string_over_two_tokens_never_leaks():
    """Stop "cd" after "b": the c is held back, then dropped."""
    engine, _, _ = engine_of()
    engine.add(1, "a", SamplingParams(max_tokens=8, temperature=0.0, stop=("cd",)))

    deltas = run_to_end(engine)[1]
    assert text_of(deltas) == "b"
    assert deltas[-1].finish_reason == "stop"


def test_text_held_back_for_a_stop_string_is_sent_when_the_request_ends():
    """Stop "fX" never comes: at max_tokens the held f is due."""
    engine, _, _ = engine_of()
    engine.add(1, "a", SamplingParams(max_tokens=5, temperature=0.0, stop=("fX",)))

    assert text_of(run_to_end(engine)[1]) == "bcdef"


def test_the_context_limit_ends_a_request_with_length():
    """A context of 8 holds a prompt of 5 and 3 tokens more."""
    engine, _, _ = engine_of(max_context_tokens=8)
    engine.add(1, "abcde", SamplingParams(max_tokens=100, temperature=0.0))

    deltas = run_to_end(engine)[1]
    assert sum(delta.num_output_tokens for delta in deltas) == 3
    assert deltas[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "pattern"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("a" * 32, r"has 32 tokens.* context of 32", id="over the context"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_with_its_numbers(prompt, pattern):
    """Refused before it is scheduled; nothing of it stays."""
    engine, _, pool = engine_of(max_context_tokens=32)

    with pytest.raises(RequestRefused, match=pattern) as refused:
        engine.add(1, prompt, GREEDY)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert not engine.has_work
    assert pool.num_used == 0


def test_a_cancelled_request_frees_its_blocks_at_once_and_gets_one_last_delta():
    """Cancel twice: the second time there is nothing to end."""
    engine, _, pool = engine_of()
    engine.add(1, "a", GREEDY)
    engine.step(0.0)

    ended = engine.cancel(1)
    assert ended is not None
    assert ended.error_code == "CANCELLED"
    assert engine.cancel(1) is None
    assert pool.num_used == 0
    assert not engine.has_work


def test_an_expired_request_ends_and_the_others_go_on():
    """Deadline 5.0, now 5.0."""
    engine, _, _ = engine_of()
    engine.add(1, "a", GREEDY, deadline_unix_s=5.0)
    engine.add(2, "k", GREEDY)

    deltas = run_to_end(engine, now_unix_s=5.0)
    assert deltas[1][0].error_code == "DEADLINE_EXCEEDED"
    assert deltas[2][-1].finish_reason == "length"


def test_when_blocks_run_out_every_request_still_finishes_with_its_own_text():
    """Six requests on blocks for two: preempted ones are recomputed, none is lost or changed."""
    engine, _, pool = engine_of(total_blocks=6)
    starts = "abcdef"
    for index, letter in enumerate(starts):
        engine.add(index, letter * 4, SamplingParams(max_tokens=12, temperature=0.0))

    deltas = run_to_end(engine)
    for index, letter in enumerate(starts):
        assert text_of(deltas[index]) == "".join(chr(ord(letter) + step) for step in range(1, 13))
        assert num_last(deltas[index]) == 1
    engine.trim()
    assert pool.num_leased == 0


def test_a_sequence_that_outgrows_the_whole_pool_ends_with_the_numbers():
    """Two blocks of four tokens can hold no ninth."""
    engine, _, pool = engine_of(total_blocks=2, max_context_tokens=100)
    engine.add(1, "abcdef", SamplingParams(max_tokens=50, temperature=0.0))

    last = run_to_end(engine)[1][-1]
    assert last.error_code == "UNAVAILABLE"
    assert "more than the KV pool's 8" in last.error
    assert pool.num_used == 0


def test_a_request_whose_logits_are_not_finite_fails_alone():
    """NaN for the one, the other's text is whole."""
    engine, runner, pool = engine_of()
    engine.add(1, "a", GREEDY)
    engine.add(2, "k", GREEDY)
    plain_run = runner.run

    def run_with_nan(batch):
        logits = plain_run(batch)
        logits[[entry.sequence.request_id for entry in batch if entry.samples].index(1)] = float("nan")
        return logits

    runner.run = run_with_nan
    deltas = engine.step(0.0)
    runner.run = plain_run
    assert [delta.error_code for delta in deltas] == ["INTERNAL", None]
    assert text_of(deltas + run_to_end(engine)[2]) == "lmno"
    assert pool.num_used == 0


def test_every_accepted_request_gets_exactly_one_last_delta():
    """Finished, stopped, cancelled, expired and preempted ones alike."""
    engine, _, _ = engine_of(total_blocks=8)
    for index in range(12):
        deadline = 3.0 if index % 4 == 3 else None
        engine.add(index, "abc", SamplingParams(max_tokens=6 + index, temperature=0.0), deadline)
    last: dict[int, int] = dict.fromkeys(range(12), 0)
    for step in range(200):
        deltas = engine.step(float(step))
        if step == 2 and (ended := engine.cancel(5)):
            deltas.append(ended)
        for delta in deltas:
            last[delta.request_id] += delta.finish_reason is not None or delta.error_code is not None

    assert last == dict.fromkeys(range(12), 1)
