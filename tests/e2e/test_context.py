"""Chats that are too long for a real model: refused, cut, summarised by it, or searched by the embedding model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from ledger.call_query import attempts
from ledger.calls import CallRow
from ledger.store import Store
from tests.models import CHAT, EMBED, model_folder
from tidegate.repository import copy_entry, shipped
from tidegate.testing import running_stack

pytestmark = pytest.mark.e2e

CONTEXT_TOKENS, ANSWER_TOKENS = 320, 24
ROOM = CONTEXT_TOKENS - ANSWER_TOKENS
LIMIT = f'parameters {{ key: "max_context_tokens" value {{ string_value: "{CONTEXT_TOKENS}" }} }}'
ROUTES = f"""
services:
  strict: {{versions: [{{name: chat, percent: 100}}]}}
  cutting:
    versions: [{{name: chat, percent: 100}}]
    context: {{policy: truncate, output_tokens: {ANSWER_TOKENS}}}
  summing:
    versions: [{{name: chat, percent: 100}}]
    context: {{policy: summarize, output_tokens: {ANSWER_TOKENS}, summary_tokens: 48}}
  finding:
    versions: [{{name: chat, percent: 100}}]
    context: {{policy: retrieve, embed_model: embed, output_tokens: {ANSWER_TOKENS}, recent_turns: 1}}
"""
DOG = ("My dog is called Biscuit.", "What a nice name for a dog! Biscuit must be a happy dog.")
OTHERS = [
    ("How is bread made?", "Flour, water, salt and yeast are kneaded, left to rise for hours, and baked hot."),
    ("Why is the sea salty?", "Rivers wash salt out of the rocks, and the water that evaporates leaves it behind."),
    ("How does a sail work?", "Wind flows around it and makes the pressure differ, which pulls the boat forward."),
    ("What do bees eat?", "They collect nectar and pollen from flowers and make honey of it for the winter."),
    ("Who built the pyramids?", "Workers of the old kingdom of Egypt, about four and a half thousand years ago."),
    ("What is a comet?", "A ball of ice and dust that grows a bright tail when it comes near to the sun."),
    ("How is paper made?", "Wood is boiled to a pulp of fibres, spread on a sieve, pressed flat, and dried."),
    ("What is inflation?", "Prices rise all over, so that the same money buys less than it did a year ago."),
    ("How do planes fly?", "Their wings push air down, and the air pushes the wings up with the same force."),
    ("What is a violin made of?", "Spruce on top, maple for the back, ebony under the fingers, and four strings."),
]  # fmt: skip
TALK = [
    {"role": role, "content": text}
    for turn in [DOG, *OTHERS]
    for role, text in zip(("user", "assistant"), turn, strict=True)
]
SYSTEM = {"role": "system", "content": "You answer in one short sentence."}
QUESTION = {"role": "user", "content": "What is the name of my dog?"}
LONG = [SYSTEM, *TALK, QUESTION]
SUMMARY = "summary of older turns"
"""Why the call log says that such a call was made."""


@dataclass(frozen=True)
class Rig:
    client: openai.OpenAI
    store: Store

    def ask(self, service: str, messages: list[dict[str, str]]) -> Any:
        return self.client.chat.completions.create(
            model=service,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=ANSWER_TOKENS,
            temperature=0,
        )

    def rows_of(self, answer: Any) -> tuple[CallRow, list[CallRow]]:
        """The chat's own row, and those of the calls that were made for it. They come a moment after the answer."""
        deadline_s = time.monotonic() + 10
        while True:
            rows = attempts(self.store, answer.id.partition("-")[2])
            # Rows are written in their order, and the chat's own comes last.
            if own := [row for row in rows if row.operation == "chat" and row.why != SUMMARY]:
                return own[0], [row for row in rows if row is not own[0]]
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A stack with routes.yaml whose `chat` reads less than it could."""
    model_folder(CHAT)
    model_folder(EMBED)
    folder = tmp_path_factory.mktemp("context")
    copy_entry(shipped() / "chat", folder / "repository" / "chat")
    with (folder / "repository" / "chat" / "config.pbtxt").open("a") as config:
        config.write(LIMIT)
    (folder / "routes.yaml").write_text(ROUTES)
    options = ("--repository", str(folder / "repository"), "--routes", str(folder / "routes.yaml"))
    with (
        running_stack(
            *options, "--pool-bytes", "256MiB", "--spares", "chat=0", "--spares", "embed=0"
        ) as running,
        contextlib.closing(Store.open(running.stack.ledger_url)) as store,
        openai.OpenAI(
            base_url=f"http://{running.stack.gateway_http}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        yield Rig(client, store)


def test_reject_says_how_long_the_chat_is_and_how_long_it_may_be(rig: Rig) -> None:
    """Nothing is asked of the model. Without the turns in the middle the same question is answered."""
    refused = (
        rf"the prompt has (\d+) tokens; .* {CONTEXT_TOKENS - 1} fit the context of {CONTEXT_TOKENS} tokens"
    )
    with pytest.raises(openai.BadRequestError, match=refused) as caught:
        rig.ask("strict", LONG)
    assert caught.value.code == "context_length_exceeded"
    short = rig.ask("strict", [SYSTEM, *TALK[:2], QUESTION])
    assert "Biscuit" in short.choices[0].message.content
    assert "tidegate" not in short.model_dump()
    row, others = rig.rows_of(short)
    assert (row.context, others) == ("", [])


def test_truncate_leaves_out_the_turns_between_system_prompt_and_newest_ones(rig: Rig) -> None:
    """So the model can't know the dog any more. Client and log are told the same numbers."""
    answer = rig.ask("cutting", LONG)
    done = answer.tidegate["context"]
    assert done["policy"] == "truncate"
    assert done["prompt_tokens_before"] > CONTEXT_TOKENS
    assert done["prompt_tokens"] == answer.usage.prompt_tokens <= ROOM
    assert 2 <= done["messages_left_out"] < len(TALK)
    assert "Biscuit" not in answer.choices[0].message.content
    row, others = rig.rows_of(answer)
    assert others == []
    assert row.context == (
        f"truncate: {done['prompt_tokens_before']} → {done['prompt_tokens']} tokens, "
        f"{done['messages_left_out']} messages left out"
    )


def test_truncate_cuts_the_middle_out_of_a_message_that_is_too_long_alone(rig: Rig) -> None:
    """Its beginning and its end stay: the model knows the word from the first line."""
    pages = " ".join(text for _, text in OTHERS * 3)
    text = f"The secret word is tangerine. {pages} What is the secret word?"
    answer = rig.ask("cutting", [{"role": "user", "content": text}])
    assert answer.tidegate["context"]["message_was_cut"]
    assert answer.usage.prompt_tokens <= ROOM
    assert "tangerine" in answer.choices[0].message.content.lower()
    row, _ = rig.rows_of(answer)
    assert row.context.endswith("the newest one cut")


def test_summarize_asks_the_served_model_and_knows_the_summary_then(rig: Rig) -> None:
    """A row of its own for each call that wrote at it; asked again, there is none and the prompt is the same."""
    answer = rig.ask("summing", LONG)
    done = answer.tidegate["context"]
    assert done["policy"] == "summarize"
    assert done["prompt_tokens"] == answer.usage.prompt_tokens <= ROOM
    row, summaries = rig.rows_of(answer)
    assert {(made.why, made.model, made.outcome) for made in summaries} == {(SUMMARY, "chat", "ok")}
    assert sum(made.prompt_tokens + made.output_tokens for made in summaries) == done["tokens_used"]
    assert row.context == (
        f"summarize: {done['prompt_tokens_before']} → {done['prompt_tokens']} tokens, "
        f"{done['messages_left_out']} messages left out, {done['tokens_used']} tokens used for it"
    )
    again = rig.ask("summing", LONG)
    assert again.tidegate["context"] == {key: done[key] for key in done if key != "tokens_used"}
    row, others = rig.rows_of(again)
    assert others == []
    assert row.cached_tokens > 0


def test_retrieve_finds_the_older_turn_that_the_question_is_about(rig: Rig) -> None:
    """By the served embedding model, whose call has a row of its own: the model knows the dog again."""
    answer = rig.ask("finding", LONG)
    done = answer.tidegate["context"]
    assert done["policy"] == "retrieve"
    assert done["prompt_tokens"] == answer.usage.prompt_tokens <= ROOM
    assert 1 <= done["turns_retrieved"] < len(OTHERS)
    assert "Biscuit" in answer.choices[0].message.content
    row, (embedding,) = rig.rows_of(answer)
    assert (embedding.operation, embedding.model, embedding.outcome) == ("embedding", "embed", "ok")
    assert embedding.prompt_tokens == done["tokens_used"]
    assert row.context.startswith(
        f"retrieve: {done['prompt_tokens_before']} → {done['prompt_tokens']} tokens"
    )
    again = rig.ask("finding", LONG)
    assert "tokens_used" not in again.tidegate["context"]
    assert again.choices[0].message.content == answer.choices[0].message.content
