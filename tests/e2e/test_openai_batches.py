"""OpenAI's own client sends batches to the real models, as OpenAI's guide does it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tidegate.testing import RunningStack

pytestmark = pytest.mark.e2e

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def client(running: RunningStack) -> Iterator[openai.OpenAI]:
    url = f"http://{running.stack.gateway_http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def answers(client: openai.OpenAI, endpoint: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Upload, create, wait, download; the bodies of the answers in the order of the lines. No file is left."""
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")  # type: ignore[arg-type]
    deadline_s = time.monotonic() + DEADLINE_S
    while batch.status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(bodies), 0)
    assert batch.output_file_id is not None
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    for file_id in (file.id, batch.output_file_id):
        assert client.files.delete(file_id).deleted
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    assert {line["response"]["status_code"] for line in found} == {200}
    return [line["response"]["body"] for line in found]


def test_a_batch_of_texts_has_the_vectors_of_single_calls(client: openai.OpenAI) -> None:
    """Twenty lines, the last of two texts."""
    texts = [f"text number {number}" for number in range(19)]
    asked: list[dict[str, Any]] = [{"model": "embed", "input": text} for text in texts]
    made = answers(client, "/v1/embeddings", [*asked, {"model": "embed", "input": texts[:2]}])
    vectors = np.array([entry["embedding"] for body in made for entry in body["data"]])
    single = client.embeddings.create(model="embed", input=[*texts, *texts[:2]])
    assert vectors.shape == (21, 384)
    assert np.allclose(vectors, [entry.embedding for entry in single.data], atol=1e-4)


def test_a_batch_of_chats_has_the_answers_of_single_calls(client: openai.OpenAI) -> None:
    """Greedy, three lines; their tokens are counted."""
    asked = [
        {
            "model": "chat",
            "messages": [{"role": "user", "content": f"What is the capital of {country}?"}],
            "max_tokens": 12,
            "temperature": 0,
        }
        for country in ("France", "Japan", "Peru")
    ]
    made = answers(client, "/v1/chat/completions", asked)
    texts = [body["choices"][0]["message"]["content"] for body in made]
    assert "Paris" in texts[0]
    single = [client.chat.completions.create(**body) for body in asked]  # type: ignore[call-overload]
    assert texts == [answer.choices[0].message.content for answer in single]
    assert [body["usage"]["completion_tokens"] for body in made] == [
        answer.usage.completion_tokens for answer in single
    ]
