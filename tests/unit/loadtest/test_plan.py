"""The plan's file: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from loadtest.judging.expression import parse_all
from loadtest.planning import reference
from loadtest.planning.plan import Plan, PlanError, load_plan, parse_plan
from loadtest.planning.schedule import plan_schedule
from tests.unit.loadtest.plans import CHAT, findings_of, held, plan_of

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "loadtest"

SMALL = """
name: small
load: {kind: open, shape: {kind: hold, rate_per_s: 5, duration_s: 60}}
users:
  - {name: chat, kind: openai_chat, service: chat}
"""


def test_a_small_plan_has_every_default():
    """A name, a load and a user are enough."""
    plan = parse_plan(SMALL, Path())

    assert plan.seed == 1
    assert plan.load.arrivals.kind == "poisson"
    assert plan.users[0].output_tokens.tokens == 32
    assert plan.duration_s == 60
    assert plan.slo == ()


def test_all_that_is_wrong_is_said_at_once_with_key_value_and_range():
    """Nine faults in one file, nine sentences; the names of the forms are in none of the keys."""
    found = findings_of(
        """
name: a b
sed: 7
load: {kind: open, shape: {kind: hold, rate_per_s: -20, duration: 60}, arrivals: {kind: gama}}
users:
  - {name: chat, kind: openai_chat, service: chat, prompt_tokens: 0, turns: 500}
  - {name: embed, kind: grpc_tensor, service: embed}
memory: {hz: 1}
"""
    )

    assert "load.shape.rate_per_s = -20, must be above 0 and at most 100000" in found
    assert "load.shape.duration_s is missing, must be given" in found
    assert "load.shape.duration = 60: no such key; did you mean duration_s?" in found
    assert "load.arrivals.kind = 'gama', must be one of constant, poisson, gamma" in found
    assert "users[0].prompt_tokens = 0, must be a whole number from 1 to 1e+06" in found
    assert "users[0].turns = 500, must be a whole number from 1 to 200" in found
    assert any(text.startswith("users[1].kind = 'grpc_tensor', must be one of openai_chat") for text in found)
    assert "memory.hz = 1, must be from 4 to 100" in found
    assert "sed = 7: no such key; did you mean seed?" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("name: a\nname: b", "line 2: the key 'name' stands twice", id="a key twice"),
        pytest.param("[1, 2]", "the plan is a list, must be a mapping", id="no mapping"),
        pytest.param("", "the plan is a NoneType", id="empty"),
        pytest.param(SMALL + "slo: ['a < 1', 'a  <  1']", "stands twice", id="an expression twice"),
        pytest.param(
            SMALL.replace("users:", "users: []\nx:"), "users has 0 entries, must have 1 to 64", id="nobody"
        ),
        pytest.param(SMALL.replace("60", ".nan"), "load.shape.duration_s = nan", id="NaN"),
        pytest.param(SMALL.replace("60", ".inf"), "load.shape.duration_s = inf", id="infinite"),
        pytest.param(
            SMALL.replace("kind: hold", "x: 1"),
            "load.shape.kind is missing, must be one of day, hold",
            id="no kind",
        ),
        pytest.param(
            SMALL.replace("{kind: hold, rate_per_s: 5, duration_s: 60}", "5"), "load.shape = 5", id="a number"
        ),
    ],
)
def test_what_is_no_plan_is_refused(text: str, words: str):
    """Each alone."""
    assert any(words in found for found in findings_of(text)), findings_of(text)


def test_two_users_of_one_name_are_refused():
    """They would be one route in the report."""
    with pytest.raises(PlanError, match="chat stands twice"):
        plan_of(held(1, 10), CHAT, CHAT)


def test_lengths_of_the_replayed_trace_need_a_replay():
    """An open loop has none; a conversation in a replay would have its turns twice."""
    recorded = {**CHAT, "prompt_tokens": {"kind": "trace"}}

    with pytest.raises(PlanError, match="name a trace in it, or replay one"):
        plan_of(held(1, 10), recorded)


def test_a_replay_has_no_turns_of_its_own(tmp_path: Path):
    """Each recorded turn comes at its recorded moment."""
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n')

    with pytest.raises(PlanError, match="a replay has each turn at its recorded moment"):
        plan_of({"kind": "replay", "trace": "t.jsonl"}, {**CHAT, "turns": 2}, folder=tmp_path)


def test_a_trace_is_looked_for_beside_the_plan_and_in_the_traces_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One file in each place; a third name is nowhere."""
    beside, others = tmp_path / "plans", tmp_path / "traces"
    for folder, name in ((beside, "a.jsonl"), (others, "b.jsonl")):
        folder.mkdir()
        (folder / name).write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n')
    monkeypatch.setenv("TIDEGATE_TRACES", str(others))
    text = SMALL.replace(
        "{kind: open, shape: {kind: hold, rate_per_s: 5, duration_s: 60}}", "{kind: replay, trace: T}"
    )

    for name, folder in (("a.jsonl", beside), ("b.jsonl", others)):
        (beside / "plan.yaml").write_text(text.replace("T}", name + "}"))
        assert load_plan(beside / "plan.yaml").load.trace == (folder / name).resolve()
    (beside / "plan.yaml").write_text(text.replace("T}", "c.jsonl}"))
    with pytest.raises(PlanError, match=r"load.trace = 'c.jsonl': no such file: .*c.jsonl"):
        load_plan(beside / "plan.yaml")


def test_a_plan_travels_to_another_process_whole():
    """Pickled and back: equal."""
    plan = parse_plan(SMALL, Path())

    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301


def test_the_page_of_keys_and_the_editors_schema_are_what_the_code_says():
    """Made anew: `python -m loadtest.planning.reference markdown > docs/loadtest-plan.md`, `schema > ...json`."""
    assert (ROOT / "docs" / "loadtest-plan.md").read_text() == reference.markdown() + "\n"
    assert json.loads((EXAMPLES / "plan.schema.json").read_text()) == reference.schema()


def test_the_editors_schema_takes_the_short_forms():
    """A number for a length and for turns."""
    chat = reference.schema()["$defs"]["ChatUser"]["properties"]

    assert chat["output_tokens"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 1_000_000}
    assert chat["turns"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 200}


def test_the_examples_are_plans():
    """Each one that needs no trace that is not here; and its schedule can be drawn."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        try:
            plan = load_plan(path)
        except PlanError as exc:
            assert "no such file" in str(exc), path  # noqa: PT017
            continue
        assert isinstance(plan, Plan)
        parse_all(plan.slo)
        schedule = plan_schedule(plan)
        assert schedule.closed is not None or len(schedule) > 0, path
