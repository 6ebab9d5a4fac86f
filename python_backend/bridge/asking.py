"""What the instances of all batch models share: batches sent to the worker, and the wait for its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import triton_python_backend_utils as pb_utils

from python_backend.bridge.attachment import Attachment, InstanceName
from python_backend.bridge.errors import BridgeError, InvalidRequest, WorkerUnavailable
from python_backend.bridge.generate import int_parameter
from python_backend.bridge.requests import deadline_of
from python_backend.bridge.responses import error_of, triton_error
from python_backend.channel import MAX_FRAME_BYTES, ProtocolError
from python_backend.messages import BatchResult, EmbedBatch, EmbedResult, RunBatch, WorkerToBridge

BATCH_TIMEOUT_S = 60.0
"""A batch takes far below a second: a worker that is silent for this long hangs."""

Answer = TypeVar("Answer", EmbedResult, BatchResult)


class WorkerOfBatches(Generic[Answer]):
    """One instance's worker. `ask` blocks until it has answered: dynamic batching fills the next batch."""

    def __init__(self, args: dict[str, str], answer_type: type[Answer]) -> None:
        """Raises AttachFailed."""
        self._answer_type: type[Answer] = answer_type
        self._changed = threading.Condition()
        self._waiting: dict[int, Answer | BridgeError | None] = {}
        self._batch_id = 0
        self._landed = 0
        cap = int_parameter(args, "max_in_flight")
        self._attachment = Attachment(InstanceName.of(args), cap, self._on_messages, self._on_worker_lost)

    def serving(self, num_requests: int) -> _Serving:
        """While a Triton batch is served; shown on the board."""
        self._landed += num_requests
        return _Serving(self._attachment, num_requests, self._landed)

    def ask(self, make: Sequence[Callable[[int], EmbedBatch | RunBatch]]) -> list[Answer | BridgeError]:
        """Send the batches (each is made with its id) and wait for all; an answer or its error each."""
        ids = []
        for make_one in make:
            self._batch_id += 1
            ids.append(self._batch_id)
            self._send(make_one(self._batch_id))
        deadline_s = time.monotonic() + BATCH_TIMEOUT_S
        with self._changed:
            self._changed.wait_for(
                lambda: all(self._waiting[one] is not None for one in ids), deadline_s - time.monotonic()
            )
            silent = WorkerUnavailable(f"the worker was silent for {BATCH_TIMEOUT_S:.0f} s")
            return [self._waiting.pop(one) or silent for one in ids]

    def close(self) -> None:
        self._attachment.close()

    def _send(self, batch: EmbedBatch | RunBatch) -> None:
        with self._changed:
            self._waiting[batch.batch_id] = None
        try:
            self._attachment.send(batch)
        except BridgeError as exc:
            self._finish(batch.batch_id, exc)
        except ProtocolError:
            self._finish(
                batch.batch_id,
                InvalidRequest(
                    f"the batch is larger than {MAX_FRAME_BYTES >> 20} MiB; send fewer rows a request"
                ),
            )

    def _on_messages(self, messages: list[WorkerToBridge]) -> None:
        for message in messages:
            if isinstance(message, self._answer_type):
                self._finish(message.batch_id, message)

    def _on_worker_lost(self) -> None:
        with self._changed:
            open_ids = [batch_id for batch_id, answer in self._waiting.items() if answer is None]
        for batch_id in open_ids:
            lost = WorkerUnavailable("the worker of this instance died; the next one takes new requests")
            self._finish(batch_id, lost)

    def _finish(self, batch_id: int, answer: Answer | BridgeError) -> None:
        with self._changed:
            if batch_id in self._waiting and self._waiting[batch_id] is None:
                self._waiting[batch_id] = answer
                self._changed.notify_all()


class _Serving:
    def __init__(self, attachment: Attachment, num_requests: int, landed: int) -> None:
        self._attachment, self._num_requests, self._landed = attachment, num_requests, landed

    def __enter__(self) -> None:
        self._attachment.publish(self._num_requests, self._landed)

    def __exit__(self, *_: object) -> None:
        self._attachment.publish(0, self._landed)


def refusal_before_work(request: Any) -> Any | None:
    """The error of a request that nobody waits for any more; None: it is to be served. Raises InvalidRequest."""
    if request.is_cancelled():
        return triton_error("CANCELLED", "cancelled by the client")
    deadline_unix_s = deadline_of(request, time.time())
    if deadline_unix_s is not None and time.time() >= deadline_unix_s:
        return triton_error("DEADLINE_EXCEEDED", "the request's deadline passed in the queue")
    return None


def error_response(error: BridgeError | Any) -> Any:
    made = error_of(error) if isinstance(error, BridgeError) else error
    return pb_utils.InferenceResponse(output_tensors=[], error=made)


def failed_response(answer: EmbedResult | BatchResult) -> Any | None:
    """The response to every request of a batch that failed as a whole; None: it did not."""
    if answer.error_code is None:
        return None
    return error_response(triton_error(answer.error_code, answer.error))
