"""Triton's model class of generate models: decoupled, streaming.

`execute` submits each request and holds by the spread-and-drain rule; the receiver thread turns the worker's
step outputs into responses.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

from python_backend.bridge.attachment import Attachment, InstanceName
from python_backend.bridge.errors import BridgeError
from python_backend.bridge.hold import may_return, waits_for_own
from python_backend.bridge.metrics import EngineMetrics
from python_backend.bridge.requests import GenerateRequest, read_generate
from python_backend.bridge.responses import Reply, TextReply, triton_error
from python_backend.bridge.tracing import BridgeTracing, RequestTrace
from python_backend.messages import CancelGenerate, ErrorCode, Generate, StepOutput, WorkerToBridge

HOLD_POLL_S = 0.002
"""While `execute` holds for its siblings, their load is looked up this often: a new request may be waiting."""
STATE_POLL_S = 0.02
"""While it holds for an end of one of its own requests, which it is told of: whether a drain was taken back."""
CANCEL_POLL_S = 0.05
"""How often requests are asked whether their client has left, as long as they are few."""
CANCEL_CHECKS_PER_S = 200
"""A check is a round trip to Triton's process: many streams are each asked less often."""


def int_parameter(args: dict[str, str], key: str) -> int:
    """A number under `parameters` in config.pbtxt."""
    value = json.loads(args["model_config"])["parameters"][key]["string_value"]
    return int(value)


class GenerateModel:
    """One instance. `execute` runs on Triton's thread, `_on_messages` on the receiver thread."""

    def initialize(self, args: dict[str, str]) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, TextReply] = {}
        self._traces: dict[int, RequestTrace] = {}
        """Of those that are open and traced."""
        self._next_id = 0
        self._closed = False
        name = InstanceName.of(args)
        self._tracing = BridgeTracing(name)
        self._attachment = Attachment(
            name,
            int_parameter(args, "max_in_flight"),
            self._on_messages,
            self._on_worker_lost,
        )
        self._metrics = EngineMetrics(name.model, name.group, self._attachment.read_slot)
        threading.Thread(target=self._watch_cancels, name="cancels", daemon=True).start()
        self._tracing.started()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._submit(request, Reply(request.get_response_sender()))
        self._hold()

    def finalize(self) -> None:
        self._closed = True
        self._metrics.close()
        self._attachment.close()

    # --- Triton's thread ---

    def _submit(self, request: Any, reply: Reply) -> None:
        trace = self._tracing.begin(request, len(self._open))
        if reply.is_cancelled:
            # Triton executes requests that were cancelled in its queue: drop them before they cost anything.
            self._refuse(reply, trace, "CANCELLED", "cancelled by the client")
            return
        try:
            wanted = read_generate(request)
        except BridgeError as exc:
            self._refuse(reply, trace, exc.code, str(exc))
            return
        if wanted.deadline_unix_s is not None and time.time() >= wanted.deadline_unix_s:
            self._refuse(reply, trace, "DEADLINE_EXCEEDED", "the request's deadline passed in the queue")
            return
        self._start(wanted, reply, trace)

    def _refuse(self, reply: Reply, trace: RequestTrace | None, code: ErrorCode, text: str) -> None:
        reply.fail(triton_error(code, text))
        self._tracing.end_generate(trace, None, text)

    def _start(self, wanted: GenerateRequest, reply: Reply, trace: RequestTrace | None) -> None:
        with self._changed:
            request_id, self._next_id = self._next_id, self._next_id + 1
            if trace is not None:
                self._traces[request_id] = trace
            self._open[request_id] = TextReply(wanted, reply)
            self._publish()
        message = Generate(
            request_id,
            wanted.prompt,
            wanted.sampling,
            wanted.deadline_unix_s,
            wanted.tenant,
            wanted.priority,
            is_traced=trace is not None,
        )
        try:
            self._attachment.send(message)
        except BridgeError as exc:
            self._close(request_id)
            self._refuse(reply, self._traces.pop(request_id, None), exc.code, str(exc))
            return
        if request_id not in self._open:
            # Its worker died between these lines and the next one got it: nobody waits for it any more.
            self._cancel(request_id)

    def _hold(self) -> None:
        """Return when this instance should get the next request."""
        attachment = self._attachment
        with self._changed:
            while not self._closed:
                state, in_flight = attachment.state(), len(self._open)
                if waits_for_own(state, in_flight, attachment.cap):
                    self._changed.wait(STATE_POLL_S)
                elif may_return(state, in_flight, attachment.cap, attachment.least_loaded_sibling()):
                    return
                else:
                    self._changed.wait(HOLD_POLL_S)

    # --- the receiver thread ---

    def _on_messages(self, messages: list[WorkerToBridge]) -> None:
        for message in messages:
            if isinstance(message, StepOutput):
                for delta in message.deltas:
                    text_reply = self._open.get(delta.request_id)
                    if text_reply is None:
                        continue
                    if delta.finish_reason is not None or delta.error_code is not None:
                        self._close(delta.request_id)
                    text_reply.push(delta)
                    if text_reply.finished is not None:
                        self._metrics.finished(text_reply.finished)
                    if delta.request_id in self._traces and delta.request_id not in self._open:
                        trace = self._traces.pop(delta.request_id)
                        self._tracing.end_generate(trace, delta.timing, delta.error)

    def _on_worker_lost(self) -> None:
        with self._changed:
            lost, self._open = self._open, {}
            self._publish()
        for text_reply in lost.values():
            text_reply.reply.fail(triton_error("UNAVAILABLE", self._attachment.why_lost))
        for request_id in lost.keys() & self._traces.keys():
            self._tracing.end_generate(self._traces.pop(request_id), None, self._attachment.why_lost)

    def _watch_cancels(self) -> None:
        told: set[int] = set()
        while not self._closed:
            time.sleep(max(CANCEL_POLL_S, len(self._open) / CANCEL_CHECKS_PER_S))
            running = dict(self._open)
            told &= running.keys()
            for request_id in running.keys() - told:
                if running[request_id].reply.is_cancelled:
                    told.add(request_id)
                    self._cancel(request_id)

    def _cancel(self, request_id: int) -> None:
        # Without a worker there is nothing to cancel: `_on_worker_lost` has ended all its requests.
        with contextlib.suppress(BridgeError):
            self._attachment.send(CancelGenerate(request_id))

    # --- both ---

    def _close(self, request_id: int) -> None:
        with self._changed:
            self._open.pop(request_id, None)
            self._publish()

    def _publish(self) -> None:
        self._attachment.publish(len(self._open), self._next_id)
        self._changed.notify_all()
