"""Ours -> Triton's responses. The sender wrapper gives every request exactly one final response."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from contracts.tracing.timing import TIMING_OUTPUT, encode_timing
from python_backend.bridge.errors import PREFIXES, BridgeError
from python_backend.bridge.metrics import Finished
from python_backend.bridge.requests import GenerateRequest
from python_backend.messages import Delta, ErrorCode, TokenLogprobs

LOWEST_LOGPROB = -9999.0
"""Of what can't come at all: JSON has no infinity."""

# Names, not values: Triton adds TritonError to the module only after this one was imported.
_TRITON_CODES: dict[ErrorCode, str] = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "UNAVAILABLE": "UNAVAILABLE",
    "DEADLINE_EXCEEDED": "CANCELLED",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}


def triton_error(code: ErrorCode, message: str) -> Any:
    return pb_utils.TritonError(PREFIXES[code] + message, getattr(pb_utils.TritonError, _TRITON_CODES[code]))


def error_of(exc: BridgeError) -> Any:
    return triton_error(exc.code, str(exc))


class Reply:
    """The answer to one decoupled request: any number of responses, then exactly one final flag.

    Usable from any thread; what comes after the end is dropped.
    """

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self.is_final = False

    @property
    def is_cancelled(self) -> bool:
        """Asked under the lock, and never after the final flag: Triton frees the response factory with it, and
        asking then is a use after free that takes the whole server down (SIGSEGV in
        TRITONBACKEND_ResponseFactoryIsCancelled, seen on 2.51 with 64 streams)."""
        with self._lock:
            return not self.is_final and bool(self._sender.is_cancelled())

    def send(self, response: Any, *, final: bool = False) -> None:
        with self._lock:
            if self.is_final:
                return
            self.is_final = final
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def fail(self, error: Any) -> None:
        self.send(pb_utils.InferenceResponse(output_tensors=[], error=error), final=True)


class TextReply:
    """Turns deltas into the responses that this request asked for: each at once, or all as one."""

    def __init__(self, request: GenerateRequest, reply: Reply) -> None:
        self.reply = reply
        self._request = request
        self._texts = [request.prompt] if request.prepend_input else []
        self._num_input_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._logprobs: list[TokenLogprobs] = []
        self._started_s = time.monotonic()
        self._first_token_s: float | None = None
        self._num_tokens = 0
        self.finished: Finished | None = None
        """Once it was answered with at least a token."""

    def push(self, delta: Delta) -> None:
        is_last = delta.finish_reason is not None or delta.error_code is not None
        self._time(delta, is_last)
        if delta.error_code is not None:
            self.reply.fail(triton_error(delta.error_code, delta.error))
            return
        self._num_input_tokens = delta.num_input_tokens or self._num_input_tokens
        self._num_output_tokens += delta.num_output_tokens
        self._num_cached_tokens = delta.num_cached_tokens or self._num_cached_tokens
        self._logprobs += delta.logprobs
        self._texts.append(delta.text)
        if is_last or (self._request.stream and delta.text):
            self.reply.send(pb_utils.InferenceResponse(self._take(delta)), final=is_last)

    def _time(self, delta: Delta, is_last: bool) -> None:
        self._num_tokens += delta.num_output_tokens
        if self._first_token_s is None and delta.num_output_tokens:
            self._first_token_s = time.monotonic() - self._started_s
        if is_last and delta.error_code is None and self._first_token_s is not None:
            took_s = time.monotonic() - self._started_s
            self.finished = Finished(self._first_token_s, took_s, self._num_tokens)

    def _take(self, delta: Delta) -> list[Any]:
        """The outputs of what has gathered; output tokens and log probabilities are those since the last response,
        as in vLLM's."""
        outputs = [_text("text_output", "".join(self._texts))]
        if self._request.return_finish_reason:
            outputs.append(_text("finish_reason", delta.finish_reason or "null"))
        if self._request.return_num_input_tokens:
            outputs.append(_count("num_input_tokens", self._num_input_tokens))
        if self._request.return_num_output_tokens:
            outputs.append(_count("num_output_tokens", self._num_output_tokens))
        if self._request.return_num_cached_tokens:
            outputs.append(_count("num_cached_tokens", self._num_cached_tokens))
        if self._request.return_logprobs:
            outputs.append(_text("logprobs", logprobs_json(self._logprobs)))
        if self._request.return_timing and delta.timing is not None:
            outputs.append(_text(TIMING_OUTPUT, encode_timing(delta.timing).decode()))
        self._texts, self._logprobs = [], []
        self._num_output_tokens = 0
        return outputs


def logprobs_json(tokens: Sequence[TokenLogprobs]) -> str:
    """As Triton's vLLM backend writes them: per token an object of token ids, the chosen one first. Its rank is
    null where it is not among the likeliest that were asked for."""
    return json.dumps([_logprobs_of(token) for token in tokens])


def _logprobs_of(token: TokenLogprobs) -> dict[int, dict[str, Any]]:
    ranks = {token_id: rank for rank, (token_id, _, _) in enumerate(token.top, start=1)}
    chosen = (token.token_id, token.token, token.logprob)
    return {
        token_id: {
            "logprob": max(logprob, LOWEST_LOGPROB),
            "rank": ranks.get(token_id),
            "decoded_token": text,
        }
        for token_id, text, logprob in [chosen, *token.top]
    }


def _text(name: str, value: str) -> Any:
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))


def _count(name: str, value: int) -> Any:
    return pb_utils.Tensor(name, np.array([value], dtype=np.uint32))
