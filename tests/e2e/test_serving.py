"""Real models through the real Triton: what the README promises."""

import asyncio
import json

import httpx
import numpy as np
import openai
import pytest
import tokenizers
import torch
import tritonclient.grpc
from transformers import AutoModelForCausalLM

from benchmarks.clients import TritonLoad
from tests.models import CHAT, CHAT_PROMPTS, chat_text, model_folder

pytestmark = pytest.mark.e2e

FRANCE = "What is the capital of France?"
GREEDY = {"max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def client(running):
    return openai.OpenAI(base_url=f"http://{running.stack.gateway_http}/v1", api_key="none")


def chat_stream(client: openai.OpenAI) -> str:
    chunks = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": FRANCE}], stream=True, **GREEDY
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def triton_stream(address: str, prompt: str) -> str:
    """Through NVIDIA's own client."""
    received: list[str] = []
    failures: list[Exception] = []
    with tritonclient.grpc.InferenceServerClient(address) as triton:

        def on_response(result, error):
            if error is not None:
                failures.append(error)
            elif (text := result.as_numpy("text_output")) is not None:
                received.append(text[0].decode())

        triton.start_stream(on_response)
        inputs = []
        for name, value, kind in (
            ("text_input", prompt.encode(), "BYTES"),
            ("sampling_parameters", json.dumps(GREEDY).encode(), "BYTES"),
            ("stream", True, "BOOL"),
        ):
            tensor = tritonclient.grpc.InferInput(name, [1], kind)
            tensor.set_data_from_numpy(np.array([value], dtype=np.object_ if kind == "BYTES" else np.bool_))
            inputs.append(tensor)
        triton.async_stream_infer("chat", inputs)
        triton.stop_stream()
    assert failures == []
    return "".join(received)


def generate_stream(address: str, prompt: str) -> str:
    """Through Triton's HTTP generate extension."""
    body = {"text_input": prompt, "stream": True, "sampling_parameters": json.dumps(GREEDY)}
    answer = httpx.post(f"http://{address}/v2/models/chat/generate_stream", json=body, timeout=60)
    lines = answer.text.splitlines()
    return "".join(json.loads(line[6:])["text_output"] for line in lines if line.startswith("data: "))


def test_the_capital_of_france_streams_the_same_through_all_three_doors(running, client):
    """OpenAI's client, tritonclient, and generate_stream."""
    text = chat_stream(client)

    assert "Paris" in text
    assert triton_stream(running.stack.triton_grpc, chat_text(FRANCE)) == text
    assert generate_stream(running.stack.triton_http, chat_text(FRANCE)) == text


def test_an_answer_not_streamed_is_the_streamed_one(client):
    """With usage and finish reason."""
    answer = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": FRANCE}], **GREEDY
    )

    assert answer.choices[0].message.content == chat_stream(client)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_ids(chat_text(FRANCE)))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def prompt_ids(prompt: str) -> list[int]:
    return tokenizers.Tokenizer.from_file(str(model_folder(CHAT) / "tokenizer.json")).encode(prompt).ids


def test_twenty_concurrent_streams_give_transformers_greedy_text(running):
    """Mixed lengths through Triton at once, against `generate` one at a time (tokens: see the integration test)."""
    prompts = [chat_text(content) for content in CHAT_PROMPTS]

    async def stream_all() -> list[str]:
        async with TritonLoad(running.stack.triton_grpc) as load:
            streams = await asyncio.gather(*(load.stream("chat", prompt, GREEDY) for prompt in prompts))
        assert [stream.error for stream in streams] == [""] * len(prompts)
        assert [stream.num_finals for stream in streams] == [1] * len(prompts)
        return [stream.text for stream in streams]

    ours = asyncio.run(stream_all())
    reference = AutoModelForCausalLM.from_pretrained(model_folder(CHAT), dtype=torch.float32).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(model_folder(CHAT) / "tokenizer.json"))
    different = []
    for prompt, text in zip(prompts, ours, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.inference_mode():
            output = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=GREEDY["max_tokens"],
                do_sample=False,
                pad_token_id=2,
            )
        # Text cut inside a character ends in U+FFFD there and before it here.
        expected = tokenizer.decode(output[0, ids.shape[1] :].tolist()).rstrip("\N{REPLACEMENT CHARACTER}")
        if text != expected:
            different.append((prompt, text, expected))
    assert different == []


def test_embeddings_come_back_in_order_and_unit_length(client):
    """Through OpenAI's client, which asks for base64."""
    texts = [f"text number {index}" for index in range(40)]
    together = client.embeddings.create(model="embed", input=texts)
    alone = client.embeddings.create(model="embed", input=texts[7])

    vectors = np.array([entry.embedding for entry in together.data])
    assert vectors.shape == (40, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)
    assert np.allclose(vectors[7], alone.data[0].embedding, atol=1e-4)


def test_batches_form_under_concurrency(running):
    """64 callers of one text each: Triton's statistics show batches of more than one."""

    async def call_all() -> dict[int, int]:
        async with TritonLoad(running.stack.triton_grpc) as load:
            await asyncio.gather(*(load.embed("embed", [f"text {index}"]) for index in range(64)))
            return await load.batch_sizes("embed")

    assert max(asyncio.run(call_all())) >= 16


def test_a_seed_repeats_a_sampled_answer(client):
    """Also beside other streams' draws."""
    ask = {
        "model": "chat",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 16,
        "temperature": 1.0,
        "seed": 11,
    }
    first = client.chat.completions.create(**ask).choices[0].message.content
    assert client.chat.completions.create(**ask).choices[0].message.content == first


def test_a_stop_string_ends_the_stream_before_it(client):
    """No byte of it is sent."""
    text = ""
    finish_reason = None
    for chunk in client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": FRANCE}],
        stream=True,
        stop=["Paris"],
        **GREEDY,
    ):
        text += chunk.choices[0].delta.content or ""
        finish_reason = chunk.choices[0].finish_reason or finish_reason
    assert text.endswith("is ")
    assert finish_reason == "stop"
