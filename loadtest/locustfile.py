"""What `locust -f loadtest/locustfile.py --host http://127.0.0.1:9000` opens: chat and embeddings over HTTP.

Closed load: each user waits for its answer, then for its wait time. Time to first token is a row of its own.
"""

from __future__ import annotations

import json
import time

from locust import HttpUser, between, task


class ChatUser(HttpUser):
    """Asks short questions and reads the stream to its end."""

    wait_time = between(1, 3)

    @task
    def short_question(self) -> None:
        body = {
            "model": "chat",
            "stream": True,
            "max_tokens": 32,
            "messages": [{"role": "user", "content": "Name a large city and say what it is known for."}],
        }
        started_s = time.perf_counter()
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, catch_response=True, name="chat"
        ) as response:
            if response.status_code != 200:
                response.failure(f"HTTP {response.status_code}")
                return
            self._read(response, started_s)

    def _read(self, response, started_s: float) -> None:  # type: ignore[no-untyped-def]  # locust is untyped
        """Fire time to first token; a stream without [DONE] was cut and is a failure."""
        is_first, is_done = True, False
        for line in response.iter_lines():
            if line == b"data: [DONE]":
                is_done = True
            elif line.startswith(b"data: {") and "error" in json.loads(line[6:]):
                response.failure(line.decode())
                return
            elif line.startswith(b"data: {") and is_first:
                is_first = False
                self._fire_ttft((time.perf_counter() - started_s) * 1000)
        if is_done:
            response.success()
        else:
            response.failure("the stream ended without [DONE]")

    def _fire_ttft(self, milliseconds: float) -> None:
        self.environment.events.request.fire(
            request_type="TTFT",
            name="chat",
            response_time=milliseconds,
            response_length=0,
            exception=None,
            context={},
        )


class EmbedUser(HttpUser):
    """Embeds one short text a call."""

    wait_time = between(0.1, 0.5)

    @task
    def one_text(self) -> None:
        self.client.post(
            "/v1/embeddings", json={"model": "embed", "input": "the tide comes in"}, name="embed"
        )
