"""Triton's model class of encoders: the texts of one dynamic batch go to the worker as one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from python_backend.bridge.asking import (
    WorkerOfBatches,
    error_response,
    failed_response,
    refusal_before_work,
    respond,
)
from python_backend.bridge.attachment import InstanceName
from python_backend.bridge.errors import BridgeError, InvalidRequest
from python_backend.bridge.requests import read_texts
from python_backend.bridge.tracing import BridgeTracing, RequestTrace
from python_backend.messages import EmbedBatch, EmbedResult


class EmbedModel:
    """One instance."""

    def initialize(self, args: dict[str, str]) -> None:
        self._tracing = BridgeTracing(InstanceName.of(args))
        self._worker = WorkerOfBatches(args, EmbedResult)
        self._tracing.started()

    def execute(self, requests: list[Any]) -> None:
        """One response per request, sent when it is there. An error of one request is no error of its batch."""
        texts: list[str] = []
        waiting: list[tuple[Any, int, int, RequestTrace | None]] = []
        for request in requests:
            sender, entry = request.get_response_sender(), _read(request)
            if isinstance(entry, list):
                trace = self._tracing.begin(request, self._worker.num_in_flight)
                waiting.append((sender, len(texts), len(entry), trace))
                texts += entry
            else:
                respond(sender, error_response(entry))
        if not texts:
            return

        def on_answers(results: list[EmbedResult | BridgeError]) -> None:
            for sender, first, count, trace in waiting:
                respond(sender, _response(results[0], first, count))
                self._tracing.end_batch(trace, results[0], len(texts))

        self._worker.ask(len(waiting), [lambda batch_id: EmbedBatch(batch_id, texts)], on_answers)

    def finalize(self) -> None:
        self._worker.close()


def _read(request: Any) -> list[str] | Any:
    """The request's texts, or the error that it gets."""
    try:
        return refusal_before_work(request) or read_texts(request)
    except BridgeError as exc:
        return exc


def _response(result: EmbedResult | BridgeError, first: int, count: int) -> Any:
    """Rows first .. first + count of the batch's vectors."""
    if isinstance(result, BridgeError):
        return error_response(result)
    if (failed := failed_response(result)) is not None:
        return failed
    refused = [result.errors[row] for row in range(first, first + count) if row in result.errors]
    if refused:
        return error_response(InvalidRequest(refused[0]))
    vectors: npt.NDArray[np.float32] = np.frombuffer(result.vectors, dtype=np.float32).reshape(-1, result.dim)
    return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors[first : first + count])])
