"""Chats that are too long, over HTTP: what the client, Triton and the call log see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from gateway.route_table import KIND
from gateway.testing import TINY_CONTEXT_TOKENS, FakeTriton, running_gateway
from ledger.call_query import CallFilter, find
from ledger.calls import CallRow
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ROUTES = """
services:
  cutting: {versions: [{name: chat, percent: 100}], context: {policy: truncate, output_tokens: 40}}
  finding:
    versions: [{name: chat, percent: 100}]
    context: {policy: retrieve, embed_model: embed, output_tokens: 40, recent_turns: 1}
"""
TALK = [
    {"role": role, "content": f"{role[0]}{turn} " + "x" * 12}
    for turn in range(6)
    for role in ("user", "assistant")
]
LONG = [{"role": "system", "content": "be brief"}, *TALK, {"role": "user", "content": "and now?"}]


@dataclass
class Rig:
    triton: FakeTriton
    client: openai.AsyncOpenAI
    store: Store

    async def rows_of(self, answer_id: str, count: int) -> list[CallRow]:
        """The log is written off the hot path, so they come a moment later."""
        wanted = CallFilter(request_id=answer_id.partition("-")[2])
        rows: tuple[CallRow, ...] = ()
        async with asyncio.timeout(5):
            while len(rows) < count:
                await asyncio.sleep(0.05)
                rows = find(self.store, wanted).calls
        return list(rows)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("context")
    url = sqlite_url(folder / "ledger.db")
    store = Store.open(url)
    RevisionStore(store).put(KIND, ROUTES, "test")
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, ledger_url=url) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Rig(triton, client, store)
    store.close()


async def test_what_was_left_out_is_told_to_client_model_and_log(rig: Rig) -> None:
    """The `tidegate` field beside `usage`, a note in the prompt, words in the row."""
    rig.triton.reset()
    answer = await rig.client.chat.completions.create(model="cutting", messages=LONG)  # type: ignore[arg-type]
    done = answer.tidegate["context"]  # type: ignore[attr-defined]
    assert done["policy"] == "truncate"
    assert answer.usage is not None
    assert done["prompt_tokens"] == answer.usage.prompt_tokens <= TINY_CONTEXT_TOKENS - 40
    (seen,) = rig.triton.generates
    assert f"[{done['messages_left_out']} earlier messages are left out here]" in seen.text
    (row,) = await rig.rows_of(answer.id, 1)
    assert row.context.startswith(
        f"truncate: {done['prompt_tokens_before']} → {done['prompt_tokens']} tokens"
    )


async def test_a_stream_tells_it_in_its_last_chunk(rig: Rig) -> None:
    """The one with the reason, or the one with the usage where there is one; a chat that fits tells nothing."""
    for options in ({}, {"stream_options": {"include_usage": True}}):
        stream = await rig.client.chat.completions.create(
            model="cutting",
            messages=LONG,
            stream=True,
            **options,  # type: ignore[call-overload]
        )
        chunks = [chunk.model_dump() async for chunk in stream]
        assert ["tidegate" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    short = await rig.client.chat.completions.create(model="cutting", messages=LONG[-1:])  # type: ignore[arg-type]
    assert "tidegate" not in short.model_dump()


async def test_retrieval_asks_the_embedding_model_and_has_a_row_of_its_own(rig: Rig) -> None:
    """Two rows of one request: the embedding, the chat."""
    rig.triton.reset()
    answer = await rig.client.chat.completions.create(model="finding", messages=LONG)  # type: ignore[arg-type]
    assert answer.tidegate["context"]["policy"] == "retrieve"  # type: ignore[attr-defined]
    assert sum(map(len, rig.triton.embed_batches)) == 7
    rows = await rig.rows_of(answer.id, 2)
    assert {(row.operation, row.model) for row in rows} == {("embedding", "embed"), ("chat", "chat")}


async def test_without_a_policy_it_is_refused_with_both_numbers(rig: Rig) -> None:
    """A service that the routes do not name."""
    with pytest.raises(
        openai.BadRequestError, match=r"has \d+ tokens; .* 255 fit the context of 256"
    ) as caught:
        await rig.client.chat.completions.create(model="chat", messages=LONG)  # type: ignore[arg-type]
    assert caught.value.code == "context_length_exceeded"
