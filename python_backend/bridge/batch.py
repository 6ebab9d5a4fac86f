"""Triton's model class of batch models: the tensors of one dynamic batch go to the worker, padded by bucket."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.bridge.asking import (
    WorkerOfBatches,
    error_response,
    failed_response,
    refusal_before_work,
    respond,
)
from python_backend.bridge.attachment import InstanceName
from python_backend.bridge.errors import BridgeError
from python_backend.bridge.ragged import (
    Rows,
    TensorShapes,
    buckets_of,
    cut,
    pack,
    read_rows,
    to_array,
)
from python_backend.bridge.responses import triton_error
from python_backend.bridge.tracing import BridgeTracing, RequestTrace
from python_backend.messages import BatchResult, RunBatch, TensorData


@dataclass(frozen=True)
class _Waiting:
    """A request that is to be answered, and by whom."""

    sender: Any
    rows: Rows
    trace: RequestTrace | None


class BatchModel:
    """One instance."""

    def initialize(self, args: dict[str, str]) -> None:
        self._shapes = TensorShapes.of(args["model_config"])
        self._tracing = BridgeTracing(InstanceName.of(args))
        self._worker = WorkerOfBatches(args, BatchResult)
        self._tracing.started()

    def execute(self, requests: list[Any]) -> None:
        """One response per request, sent when it is there. An error of one request is no error of its batch."""
        waiting: list[_Waiting] = []
        for request in requests:
            sender, entry = request.get_response_sender(), self._read(request)
            if isinstance(entry, Rows):
                trace = self._tracing.begin(request, self._worker.num_in_flight)
                waiting.append(_Waiting(sender, entry, trace))
            else:
                respond(sender, error_response(entry))
        self._ask(waiting)

    def finalize(self) -> None:
        self._worker.close()

    def _ask(self, waiting: list[_Waiting]) -> None:
        buckets: list[list[_Waiting]] = []
        batches = []
        for indices in buckets_of(self._shapes, [entry.rows for entry in waiting]):
            bucket = [waiting[index] for index in indices]
            rows = [entry.rows for entry in bucket]
            try:
                tensors = pack(self._shapes, rows)
            except BridgeError as exc:
                for entry in bucket:
                    respond(entry.sender, error_response(exc))
                continue
            buckets.append(bucket)
            batches.append(functools.partial(self._batch, tensors, [one.num_rows for one in rows]))

        def on_answers(results: list[BatchResult | BridgeError]) -> None:
            for bucket, result in zip(buckets, results, strict=True):
                responses = self._responses(result, [entry.rows for entry in bucket])
                num_rows = sum(entry.rows.num_rows for entry in bucket)
                errors = {} if isinstance(result, BridgeError) else result.errors
                for number, (entry, response) in enumerate(zip(bucket, responses, strict=True)):
                    respond(entry.sender, response)
                    self._tracing.end_batch(entry.trace, result, num_rows, errors.get(number, ""))

        if batches:
            self._worker.ask(sum(map(len, buckets)), batches, on_answers)

    def _batch(self, tensors: list[TensorData], sizes: list[int], batch_id: int) -> RunBatch:
        return RunBatch(batch_id, tensors, sizes, list(self._shapes.outputs))

    def _responses(self, result: BatchResult | BridgeError, entries: Sequence[Rows]) -> list[Any]:
        if isinstance(result, BridgeError):
            return [error_response(result) for _ in entries]
        if result.error_code is not None:
            return [failed_response(result) for _ in entries]
        made = {data.name: to_array(data) for data in result.tensors}
        responses, first = [], 0
        for number, entry in enumerate(entries):
            if number in result.errors:
                responses.append(error_response(triton_error("INTERNAL", result.errors[number])))
            else:
                parts = cut(self._shapes, made, first, entry)
                tensors = [pb_utils.Tensor(name, part) for name, part in parts.items()]
                responses.append(pb_utils.InferenceResponse(tensors))
            first += entry.num_rows
        return responses

    def _read(self, request: Any) -> Rows | Any:
        """The request's rows, or the error that it gets."""
        try:
            if (refusal := refusal_before_work(request)) is not None:
                return refusal
            given = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._shapes.inputs}
            tensors = {name: tensor.as_numpy() for name, tensor in given.items() if tensor is not None}
            return read_rows(self._shapes, tensors)
        except BridgeError as exc:
            return exc
