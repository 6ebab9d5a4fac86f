"""Triton's model class of batch models: the tensors of one dynamic batch go to the worker, padded by bucket."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.bridge.asking import (
    WorkerOfBatches,
    error_response,
    failed_response,
    refusal_before_work,
)
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
from python_backend.messages import BatchResult, RunBatch, TensorData


class BatchModel:
    """One instance."""

    def initialize(self, args: dict[str, str]) -> None:
        self._shapes = TensorShapes.of(args["model_config"])
        self._worker = WorkerOfBatches(args, BatchResult)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order. An error of one request is no error of its batch."""
        with self._worker.serving(len(requests)):
            read = [self._read(request) for request in requests]
            rows = {index: entry for index, entry in enumerate(read) if isinstance(entry, Rows)}
            responses = self._answer(rows) if rows else {}
            return [responses.get(index) or error_response(entry) for index, entry in enumerate(read)]

    def finalize(self) -> None:
        self._worker.close()

    def _answer(self, rows: dict[int, Rows]) -> dict[int, Any]:
        """Index of the request -> its response."""
        order = list(rows)
        buckets = [[order[i] for i in bucket] for bucket in buckets_of(self._shapes, list(rows.values()))]
        responses: dict[int, Any] = {}
        sent, batches = [], []
        for bucket in buckets:
            entries = [rows[index] for index in bucket]
            try:
                tensors = pack(self._shapes, entries)
            except BridgeError as exc:
                responses |= {index: error_response(exc) for index in bucket}
                continue
            sent.append(bucket)
            batches.append(functools.partial(self._batch, tensors, [entry.num_rows for entry in entries]))
        for bucket, result in zip(sent, self._worker.ask(batches), strict=True):
            made = self._responses(result, [rows[index] for index in bucket])
            responses |= dict(zip(bucket, made, strict=True))
        return responses

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
