"""Triton's model class of batch models: the requests of one dynamic batch go to the worker as one batch."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from python_backend.bridge.attachment import Attachment, InstanceName
from python_backend.bridge.errors import BridgeError, InvalidRequest, WorkerUnavailable
from python_backend.bridge.generate import int_parameter
from python_backend.bridge.requests import deadline_of, read_texts
from python_backend.bridge.responses import error_of, triton_error
from python_backend.messages import EmbedBatch, EmbedResult, WorkerToBridge

BATCH_TIMEOUT_S = 60.0
"""A batch takes far below a second: a worker that is silent for this long hangs."""


class EmbedModel:
    """One instance. `execute` blocks until the worker has answered: dynamic batching fills the next batch."""

    def initialize(self, args: dict[str, str]) -> None:
        self._changed = threading.Condition()
        self._result: EmbedResult | BridgeError | None = None
        self._batch_id = 0
        self._landed = 0
        cap = int_parameter(args, "max_in_flight")
        self._attachment = Attachment(InstanceName.of(args), cap, self._on_messages, self._on_worker_lost)

    def execute(self, requests: list[Any]) -> list[Any]:
        self._landed += len(requests)
        self._attachment.publish(len(requests), self._landed)
        try:
            return self._answer(requests)
        finally:
            self._attachment.publish(0, self._landed)

    def finalize(self) -> None:
        self._attachment.close()

    def _answer(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order. An error of one request is no error of its batch."""
        read = [_read(request) for request in requests]
        texts = [text for entry in read if isinstance(entry, list) for text in entry]
        # Without a text no entry asks for a row.
        result = self._embed(texts) if texts else InvalidRequest("no text is left to embed")
        responses, first = [], 0
        for entry in read:
            if not isinstance(entry, list):
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=entry))
                continue
            responses.append(_response(result, first, len(entry)))
            first += len(entry)
        return responses

    def _embed(self, texts: list[str]) -> EmbedResult | BridgeError:
        with self._changed:
            self._batch_id += 1
            self._result = None
        try:
            self._attachment.send(EmbedBatch(self._batch_id, texts))
        except BridgeError as exc:
            return exc
        with self._changed:
            self._changed.wait_for(lambda: self._result is not None, BATCH_TIMEOUT_S)
            return self._result or WorkerUnavailable(f"the worker was silent for {BATCH_TIMEOUT_S:.0f} s")

    def _on_messages(self, messages: list[WorkerToBridge]) -> None:
        for message in messages:
            if isinstance(message, EmbedResult) and message.batch_id == self._batch_id:
                self._finish(message)

    def _on_worker_lost(self) -> None:
        self._finish(WorkerUnavailable("the worker of this instance died; the next one takes new requests"))

    def _finish(self, result: EmbedResult | BridgeError) -> None:
        with self._changed:
            self._result = result
            self._changed.notify_all()


def _read(request: Any) -> list[str] | Any:
    """The request's texts, or the error that it gets."""
    if request.is_cancelled():
        return triton_error("CANCELLED", "cancelled by the client")
    try:
        deadline_unix_s = deadline_of(request, time.time())
        if deadline_unix_s is not None and time.time() >= deadline_unix_s:
            return triton_error("DEADLINE_EXCEEDED", "the request's deadline passed in the queue")
        return read_texts(request)
    except BridgeError as exc:
        return error_of(exc)


def _response(result: EmbedResult | BridgeError, first: int, count: int) -> Any:
    """Rows first .. first + count of the batch's vectors."""
    if isinstance(result, BridgeError):
        return pb_utils.InferenceResponse(output_tensors=[], error=error_of(result))
    if result.error_code is not None:
        return pb_utils.InferenceResponse(
            output_tensors=[], error=triton_error(result.error_code, result.error)
        )
    refused = [result.errors[row] for row in range(first, first + count) if row in result.errors]
    if refused:
        return pb_utils.InferenceResponse(output_tensors=[], error=error_of(InvalidRequest(refused[0])))
    vectors: npt.NDArray[np.float32] = np.frombuffer(result.vectors, dtype=np.float32).reshape(-1, result.dim)
    return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors[first : first + count])])
