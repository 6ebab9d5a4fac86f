"""What requests say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.stack import tidegate_home
from loadtest.call import Call
from loadtest.planning.plan import Plan
from loadtest.planning.schedule import Schedule, plan_schedule
from loadtest.planning.words import WORDS, text_of
from loadtest.planning.workload import call_of
from tests.unit.loadtest.plans import CHAT, held, plan_of

LONG = {"kind": "mix", "parts": [{"weight": 9, "tokens": 20}, {"weight": 1, "tokens": 900}]}


def _calls(plan: Plan, count: int) -> list[Call]:
    schedule = plan_schedule(plan)
    return [call_of(plan, schedule, index) for index in range(count)]


def _words(call: Call) -> int:
    return len(str(call.messages[-1]["content"]).split())


def _user(**keys: Any) -> dict[str, Any]:
    return {**CHAT, **keys}


def test_a_call_is_the_same_whoever_makes_it_and_in_whatever_order():
    """Number 17 alone, and after the others; another seed's is another."""
    plan = plan_of(held(10, 10), _user(prompt_tokens={"kind": "uniform", "min": 5, "max": 50}))
    schedule = plan_schedule(plan)

    assert call_of(plan, schedule, 17) == _calls(plan, 20)[17]
    assert call_of(plan, schedule, 17) != call_of(plan_of(held(10, 10), seed=8), schedule, 17)


def test_a_call_carries_what_its_user_says():
    """Each key of a chat user, in its place."""
    user = _user(prompt_tokens=12, output_tokens=34, force_length=True, temperature=0.5, headers={"x-a": "b"})
    call = _calls(plan_of(held(10, 10), user), 1)[0]

    assert (call.protocol, call.user, call.service) == ("openai_chat", "chat", "chat")
    assert [message["role"] for message in call.messages] == ["user"]
    assert _words(call) == 12
    assert (call.max_tokens, call.force_length, call.temperature) == (34, True, 0.5)
    assert call.headers == (("x-a", "b"),)
    assert call.session == ""
    assert call.later_turns == ()


def test_no_two_prompts_begin_alike():
    """300 prompts: no two share their first four words, so a prefix cache finds nothing."""
    calls = _calls(plan_of(held(100, 10)), 300)

    assert len({tuple(str(call.messages[0]["content"]).split()[:4]) for call in calls}) == 300


def test_a_system_prompt_is_shared_by_all_calls_of_its_user():
    """Two different ones of 40 words among 50 conversations; another user's is another."""
    user = _user(system_tokens=40, system_prompts=2)
    plan = plan_of(held(100, 10), user, {**user, "name": "other"})
    found: dict[str, set[str]] = {"chat": set(), "other": set()}
    for call in _calls(plan, 200):
        assert call.messages[0]["role"] == "system"
        found[call.user].add(str(call.messages[0]["content"]))

    assert [len(texts) for texts in found.values()] == [2, 2]
    assert not found["chat"] & found["other"]
    assert {len(text.split()) for text in found["chat"]} == {40}


def test_a_conversation_has_its_turns_with_pauses_and_one_session():
    """2 to 5 turns; only the first has the system prompt and a moment; pauses are 3 s on average."""
    user = _user(turns={"min": 2, "max": 5}, think_s=3, system_tokens=10)
    calls = _calls(plan_of(held(100, 10), user), 400)
    later = [turn for call in calls for turn in call.later_turns]

    assert {len(call.later_turns) for call in calls} == {1, 2, 3, 4}
    assert len({call.session for call in calls}) == 400
    assert all(turn.session == call.session for call in calls for turn in call.later_turns)
    assert {tuple(message["role"] for message in turn.messages) for turn in later} == {("user",)}
    assert {turn.t_intended_s for turn in later} == {0.0}
    assert np.mean([turn.think_s for turn in later]) == pytest.approx(3, rel=0.15)


def test_a_long_context_mix_is_short_with_some_long_between():
    """One in ten of 900 tokens."""
    sizes = [_words(call) for call in _calls(plan_of(held(100, 20), _user(prompt_tokens=LONG)), 1000)]

    assert set(sizes) == {20, 900}
    assert sizes.count(900) == pytest.approx(100, abs=35)


def test_lognormal_lengths_have_the_median_and_the_spread_that_were_asked():
    """Median 100, sigma 0.5, cut at 300."""
    length = {"kind": "lognormal", "median": 100, "sigma": 0.5, "max": 300}
    sizes = np.array(
        [_words(call) for call in _calls(plan_of(held(200, 20), _user(prompt_tokens=length)), 1500)]
    )

    assert np.median(sizes) == pytest.approx(100, rel=0.05)
    assert np.log(sizes[sizes < 300]).std() == pytest.approx(0.49, rel=0.08)
    assert sizes.max() == 300


def test_grpc_users_have_texts_and_tensors():
    """One text with the system prompt in front; tensors by their datatype, rows first."""
    plan = plan_of(
        held(10, 10),
        {"name": "gen", "kind": "grpc_generate", "service": "chat", "system_tokens": 5, "prompt_tokens": 7},
        {
            "name": "batch",
            "kind": "grpc_tensors",
            "service": "net",
            "prompt_tokens": 3,
            "inputs": [
                {"name": "text", "datatype": "BYTES", "shape": [2, 1]},
                {"name": "x", "datatype": "FP32", "shape": [2, 3]},
                {"name": "n", "datatype": "INT64", "shape": [1]},
                {"name": "b", "datatype": "BOOL", "shape": [4]},
            ],
        },
        {"name": "emb", "kind": "openai_embeddings", "service": "embed", "texts": 4},
    )
    by_user = {call.user: call for call in _calls(plan, 40)}

    assert [len(text.split()) for text in by_user["gen"].texts] == [12]
    assert [len(text.split()) for text in by_user["emb"].texts] == [32] * 4
    text, floats, whole, truth = by_user["batch"].tensors
    assert [len(str(value).split()) for value in text.values] == [3, 3]
    assert len(floats.values) == 6
    assert all(0 <= value < 1 for value in floats.values)  # type: ignore[operator]
    assert whole.shape == (1,)
    assert all(isinstance(value, bool) for value in truth.values)


def _replay(path: Path, rows: list[tuple[int, int, list[int]]], **load: Any) -> tuple[Plan, Schedule]:
    lines = [
        json.dumps({"timestamp": at * 1000, "input_length": n, "output_length": at + 2, "hash_ids": blocks})
        for at, (n, _, blocks) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    trace = {"kind": "trace", "scale": 0.125}
    user = _user(prompt_tokens=trace, output_tokens={"kind": "trace"}, force_length=True)
    plan = plan_of({"kind": "replay", "trace": str(path), **load}, user)
    return plan, plan_schedule(plan)


def test_a_replay_has_each_rows_lengths_and_shares_the_recorded_prefixes(tmp_path: Path):
    """Blocks of 512 tokens at an eighth are 64: row 1 shares 128 words with row 0, row 2 the first 64."""
    rows = [(1200, 0, [1, 2, 3]), (1536, 0, [1, 2, 4]), (700, 0, [1, 9])]
    plan, schedule = _replay(tmp_path / "t.jsonl", rows)
    texts = [str(call_of(plan, schedule, at).messages[0]["content"]).split() for at in range(3)]

    assert [len(text) for text in texts] == [150, 192, 88]  # 87.5 rounds to the even 88
    assert texts[0][:128] == texts[1][:128]
    assert texts[0][128] != texts[1][128] or texts[0][129] != texts[1][129]
    assert texts[2][:64] == texts[0][:64]
    assert texts[2][64:68] != texts[0][64:68]
    assert [call_of(plan, schedule, at).max_tokens for at in range(3)] == [2, 3, 4]


def test_a_copy_of_a_session_shares_only_the_first_block_with_it(tmp_path: Path):
    """The system prompt is everybody's; the rest would be a cache hit that nobody recorded."""
    plan, schedule = _replay(tmp_path / "t.jsonl", [(1200, 0, [1, 2, 3])] * 2, rate_scale=2)
    texts = [str(call_of(plan, schedule, at).messages[0]["content"]).split() for at in range(4)]
    copies = schedule.copy.tolist()
    first, second = texts[copies.index(0)], texts[copies.index(1)]

    assert first[:64] == second[:64]
    assert first[64:70] != second[64:70]


def test_lengths_of_a_named_trace_are_drawn_by_rows(tmp_path: Path):
    """Prompt and answer are of one row: 10 with 100, or 20 with 200, never 10 with 200."""
    path = tmp_path / "t.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n0,10,100\n1,20,200\n")
    trace = {"kind": "trace", "trace": str(path)}
    calls = _calls(plan_of(held(20, 20), _user(prompt_tokens=trace, output_tokens=trace)), 100)

    assert {(_words(call), call.max_tokens) for call in calls} == {(10, 100), (20, 200)}


def test_the_users_of_a_closed_loop_come_by_their_weights():
    """3 to 1, by the number alone."""
    plan = plan_of(
        {"kind": "closed", "concurrency": 4, "duration_s": 10},
        _user(weight=3),
        {"name": "emb", "kind": "openai_embeddings", "service": "embed"},
    )
    users = [call.user for call in _calls(plan, 600)]

    assert users.count("chat") / 600 == pytest.approx(0.75, abs=0.06)


def test_a_longer_text_begins_with_the_shorter_one_of_its_key():
    """What a block's last, partial use needs."""
    assert text_of(50, 1, 2).startswith(text_of(20, 1, 2))
    assert text_of(20, 1, 2) != text_of(20, 1, 3)


@pytest.mark.parametrize(("model", "extra"), [("smollm2-135m-instruct", 0), ("all-minilm-l6-v2", 2)])
def test_a_word_is_a_token_of_the_models_that_ship(model: str, extra: int):
    """Each word alone, and texts of many; MiniLM's tokenizer adds two marks."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tidegate_home() / "models" / model / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"{model} is not fetched: `tidegate models fetch`")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    assert {len(tokenizer.encode(word).ids) - extra for word in WORDS} == {1}
    for count in (2, 37, 700):
        assert len(tokenizer.encode(text_of(count, count)).ids) - extra == count
