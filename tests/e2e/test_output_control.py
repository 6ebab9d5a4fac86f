"""What a client may ask of its answers, through OpenAI's client and the real Triton."""

import asyncio
import json

import openai
import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM

from benchmarks.clients import TritonLoad
from tests.models import CHAT, model_folder

pytestmark = pytest.mark.e2e

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "country": {"enum": ["France", "Japan", "Peru"]},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "sights": {"type": "array", "items": {"enum": ["sea", "hills", "temple"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "country", "people", "sights"],
    "additionalProperties": False,
}  # fmt: skip
CITIES = ["Paris", "Tokyo", "Lima", "Kyoto", "Lyon"]


@pytest.fixture(scope="module")
def url(running):
    return f"http://{running.stack.gateway_http}/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_five_answers_at_once_follow_their_json_schema(url):
    """Streamed and not; each parses and holds what the schema asks for."""
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}

    async def ask(client: openai.AsyncOpenAI, city: str) -> tuple[str, str]:
        stream = await client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": f"Describe the city of {city} as JSON."}],
            response_format=response_format,
            max_tokens=200,
            temperature=0,
            stream=True,
        )
        chunks = [chunk.choices[0] async for chunk in stream]
        return "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason

    async def ask_all() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, city) for city in CITIES))

    for text, reason in asyncio.run(ask_all()):
        answer = json.loads(text)
        assert reason == "stop"
        assert list(answer) == ["city", "country", "people", "sights"]
        assert len(answer["city"]) <= 12
        assert answer["country"] in ("France", "Japan", "Peru")
        assert 0 <= answer["people"] <= 99999999
        assert 1 <= len(answer["sights"]) <= 2
        assert {*answer["sights"]} <= {"sea", "hills", "temple"}


def test_a_schema_that_cannot_be_compiled_is_a_bad_request(client):
    """With the library's reason; the instance goes on."""
    schema = {"type": "object", "properties": {"a": {"type": "objct"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: objct"):
        client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "x"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    answer = client.completions.create(
        model="chat", prompt="The sky is", max_tokens=8, extra_body={"guided_choice": ["blue", "green"]}
    )
    assert answer.choices[0].text in ("blue", "green")


def test_log_probabilities_are_those_of_transformers(client):
    """Each greedy token's and its alternatives', within 1e-3."""
    prompt = "The capital of France is"
    answer = client.completions.create(model="chat", prompt=prompt, max_tokens=8, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs

    reference = AutoModelForCausalLM.from_pretrained(model_folder(CHAT), dtype=torch.float32).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(model_folder(CHAT) / "tokenizer.json"))
    ids = tokenizer.encode(prompt + "".join(found.tokens)).ids
    num_prompt_tokens = len(tokenizer.encode(prompt).ids)
    with torch.inference_mode():
        logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert len(ids) - num_prompt_tokens == len(found.tokens) == 8
    for at, (token, logprob, top) in enumerate(
        zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True), start=num_prompt_tokens
    ):
        values, top_ids = logprobs[at - 1].topk(3)
        assert token == tokenizer.decode([ids[at]])
        assert logprob == pytest.approx(float(logprobs[at - 1, ids[at]]), abs=1e-3)
        expected = {
            tokenizer.decode([token_id]): value
            for token_id, value in zip(top_ids.tolist(), values.tolist(), strict=True)
        }
        assert top == pytest.approx(expected, abs=1e-3)


def test_a_token_that_is_biased_away_does_not_come(client):
    """And the log probabilities stay the model's own: the likeliest token is still the one that was forbidden."""
    plain = client.completions.create(
        model="chat", prompt="The capital of France is", max_tokens=1, temperature=0
    )
    (paris,) = tokenizers.Tokenizer.from_file(str(model_folder(CHAT) / "tokenizer.json")).encode(" Paris").ids
    biased = client.completions.create(
        model="chat",
        prompt="The capital of France is",
        max_tokens=1,
        temperature=0,
        logprobs=1,
        logit_bias={str(paris): -100},
    )
    assert plain.choices[0].text == " Paris"
    assert biased.choices[0].text != " Paris"
    assert " Paris" in biased.choices[0].logprobs.top_logprobs[0]


def test_tenant_and_priority_reach_the_bridge(running):
    """What is wrong with them is refused by name, so they arrive."""

    async def ask(parameters: dict[str, int]) -> str:
        async with TritonLoad(running.stack.triton_grpc) as load:
            return (await load.stream("chat", "x", {"max_tokens": 1}, parameters)).error

    assert asyncio.run(ask({"request_priority": -3})) == ""
    assert "request_priority must be a whole number" in asyncio.run(ask({"request_priority": 2**40}))
    assert "tenant must be a string" in asyncio.run(ask({"tenant": 5}))
