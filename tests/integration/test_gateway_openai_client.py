"""The real gateway process with the real openai client, unchanged, in front of a FakeTriton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from contracts.guide import Guide
from contracts.sampling import parse_sampling
from gateway.testing import TINY_CONTEXT_TOKENS, FakeTriton, RunningGateway, Script, running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Rig = tuple[FakeTriton, RunningGateway]
HELLO = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
HELLO_TOKENS = 1 + len("user\nhi") + 1 + 1 + 1 + len("assistant\n")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Rig]:
    async with FakeTriton() as triton, running_gateway(triton.address) as gateway:
        yield triton, gateway


@pytest.fixture
def rig(started: Rig) -> Rig:
    started[0].reset()
    return started


@pytest_asyncio.fixture(loop_scope="module")
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{rig[1].url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_chat_is_answered(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """The prompt is the rendered template; without a limit the answer may fill the context."""
    answer = await client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hi"}], temperature=0, seed=3, stop=["x"]
    )
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (HELLO_TOKENS, 2)
    (seen,) = rig[0].generates
    assert seen.text == HELLO
    assert seen.inputs["stream"] == b"\0"
    sampling = parse_sampling(seen.sampling)
    assert (sampling.temperature, sampling.seed, sampling.stop) == (0.0, 3, ("x",))
    assert sampling.max_tokens == TINY_CONTEXT_TOKENS - HELLO_TOKENS


async def test_a_chat_streams(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """Role, text piece by piece, reason, usage."""
    rig[0].script = Script(
        pieces=("Hé", "", "👩‍👩‍👧", " a\u2028b\x00"), ending="alone", finish_reason="length"
    )
    stream = await client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    *with_choice, last = chunks
    assert with_choice[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in with_choice]
    assert pieces == ["", "Hé", "👩‍👩‍👧", " a\u2028b\x00", None]
    assert [chunk.choices[0].finish_reason for chunk in with_choice] == [None] * 4 + ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (HELLO_TOKENS, 4)
    assert rig[0].generates[0].inputs["stream"] == b"\1"


STEP = '[{"7": {"logprob": -0.5, "rank": 1, "decoded_token": "He"}}]'


async def test_output_settings_go_to_triton_and_log_probabilities_and_cached_tokens_come_back(
    rig: Rig, client: openai.AsyncOpenAI
) -> None:
    """In chat, whole and streamed, and in completions."""
    rig[0].script = Script(num_cached_tokens=5, logprobs=STEP)
    asked = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 1,
    }
    answer = await client.chat.completions.create(
        **asked,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        presence_penalty=1.5,
        logit_bias={"5": 7},
        extra_body={"min_tokens": 2, "stop_token_ids": [9]},
    )
    sampling = parse_sampling(rig[0].generates[0].sampling)
    assert sampling.guide == Guide("json", '{"type":"object"}')
    assert (sampling.presence_penalty, sampling.logit_bias, sampling.logprobs) == (1.5, ((5, 7.0),), 1)
    assert (sampling.min_tokens, sampling.stop_token_ids) == (2, (9,))
    assert answer.usage.prompt_tokens_details.cached_tokens == 5
    tokens = answer.choices[0].logprobs.content
    assert [(token.token, token.logprob, token.top_logprobs[0].token) for token in tokens] == [
        ("He", -0.5, "He")
    ] * 2

    stream = await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    found = [chunk.choices[0].logprobs for chunk in chunks]
    assert [logprobs.content[0].token for logprobs in found if logprobs] == ["He", "He"]
    assert last.usage.prompt_tokens_details.cached_tokens == 5

    classic = await client.completions.create(model="chat", prompt="hi", logprobs=1)
    assert classic.choices[0].logprobs.tokens == ["He", "He"]
    assert classic.choices[0].logprobs.text_offset == [0, 2]


async def test_the_sync_client_works_as_well(rig: Rig) -> None:
    """Streaming and not, in a thread, as scripts do it."""

    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{rig[1].url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hi"}])
            stream = client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content, streamed

    assert await asyncio.to_thread(ask) == ("Hello world", "Hello world")


async def test_completions_take_one_prompt_or_several(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """The text goes to Triton as it is; 16 tokens unless told, no more than fit."""
    answer = await client.completions.create(model="chat", prompt=["one", "three"])
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 4)
    assert sorted(seen.text for seen in rig[0].generates) == ["one", "three"]
    assert parse_sampling(rig[0].generates[0].sampling).max_tokens == 16
    await client.completions.create(model="chat", prompt="x" * 250, max_tokens=100)
    assert parse_sampling(rig[0].generates[-1].sampling).max_tokens == TINY_CONTEXT_TOKENS - 250


async def test_a_completion_streams(client: openai.AsyncOpenAI) -> None:
    """With vLLM's extras in the body."""
    stream = await client.completions.create(
        model="chat", prompt="hi", stream=True, extra_body={"top_k": 5, "ignore_eos": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_embeddings_in_both_encodings(client: openai.AsyncOpenAI) -> None:
    """The client asks for base64 by itself; the numbers are the same, in the order of the texts."""
    packed = await client.embeddings.create(model="embed", input=["a", "bcd"])
    plain = await client.embeddings.create(model="embed", input=["a", "bcd"], encoding_format="float")
    assert [entry.embedding for entry in packed.data] == [[1.0, 0.5, 0.5, 0.5], [3.0, 0.5, 0.5, 0.5]]
    assert [entry.embedding for entry in plain.data] == [entry.embedding for entry in packed.data]
    assert packed.usage.prompt_tokens == 4


async def test_many_texts_go_in_batches_and_come_back_in_order(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """At most 32 a call, as many as Triton batches; a text alone is a batch of one."""
    texts = ["x" * (1 + index % 200) for index in range(100)]
    answer = await client.embeddings.create(model="embed", input=texts)
    assert [entry.embedding[0] for entry in answer.data] == [len(text) for text in texts]
    assert sorted(len(batch) for batch in rig[0].embed_batches) == [4, 32, 32, 32]
    await client.embeddings.create(model="embed", input="alone")
    assert rig[0].embed_batches[-1] == ["alone"]


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    """All, and one by name."""
    assert [model.id async for model in client.models.list()] == ["chat", "embed"]
    assert (await client.models.retrieve("embed")).id == "embed"
    with pytest.raises(openai.NotFoundError, match="served: chat, embed"):
        await client.models.retrieve("../x")


async def test_the_clients_own_error_classes_are_raised(client: openai.AsyncOpenAI) -> None:
    """404 for a model, 400 for a value, each with the parameter's name."""
    with pytest.raises(openai.NotFoundError) as missing:
        await client.completions.create(model="gpt-4", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.completions.create(model="chat", prompt="hi", top_p=7)
    assert wrong.value.param == "top_p"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="chat", prompt="x" * 300)
    assert long.value.code == "context_length_exceeded"


async def test_several_answers_to_one_prompt(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """n = 3: three calls with seeds of their own; the prompt counts once, the output three times."""
    answer = await client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hi"}], n=3, seed=7, max_tokens=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (HELLO_TOKENS, 6)
    seen = [parse_sampling(one.sampling) for one in rig[0].generates]
    assert sorted((one.seed or 0, one.max_tokens) for one in seen) == [(5, 5), (6, 5), (7, 5)]


async def test_several_answers_stream_side_by_side(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """Each has its role, text and reason; the usage is of all. Two prompts with n = 2 are four completions."""
    rig[0].script = Script(num_cached_tokens=3)
    texts, reasons = ["", ""], ["", ""]
    async for chunk in await client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "hi"}],
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason or ""
        usage = chunk.usage
    assert (texts, reasons) == (["Hello world"] * 2, ["stop"] * 2)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (HELLO_TOKENS, 4)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3
    found = ["", "", "", ""]
    async for piece in await client.completions.create(model="chat", prompt=["a", "b"], n=2, stream=True):
        found[piece.choices[0].index] += piece.choices[0].text
    assert found == ["Hello world"] * 4


async def test_one_answer_that_fails_ends_the_others(rig: Rig, client: openai.AsyncOpenAI) -> None:
    """The client's library raises; all streams at Triton are closed."""
    rig[0].script = Script(error="internal: broken")
    with pytest.raises(openai.APIError, match="broken"):
        async for _ in await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hi"}], n=3, stream=True
        ):
            pass
    async with asyncio.timeout(5):
        while rig[0].num_active > 0:  # noqa: ASYNC110 - what it waits for is in another process
            await asyncio.sleep(0.02)
