"""Triton batches to worker batches to responses, without Triton, sockets or a worker."""

import json
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from python_backend.bridge import testing

testing.install()

from python_backend.bridge import asking  # noqa: E402
from python_backend.bridge.batch import BatchModel  # noqa: E402
from python_backend.bridge.errors import WorkerUnavailable  # noqa: E402
from python_backend.bridge.ragged import to_array, to_data  # noqa: E402
from python_backend.messages import BatchResult  # noqa: E402

CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"], "allow_ragged_batch": True}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    "parameters": {
        "max_in_flight": {"string_value": "8"},
        "ragged_outputs": {"string_value": "y:1"},
    },
}
ARGS = {"model_name": "m", "model_instance_name": "m-0_0", "model_config": json.dumps(CONFIG)}


@dataclass
class FakeAttachment:
    """Takes batches; the test answers them."""

    name: object
    cap: int
    on_messages: object
    on_worker_lost: object
    sent: list = field(default_factory=list)
    published: list = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    refusal: Exception | None = None
    why_lost: str = "the worker of this instance died; the next one takes new requests"

    def send(self, batch):
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(batch)
        self.arrived.release()

    def publish(self, in_flight, landed):
        self.published.append((in_flight, landed))


class Request(testing.FakeRequest):
    def __init__(self, values):
        super().__init__({"x": np.array(values, np.float32)})
        self.sender = testing.FakeSender()

    def get_response_sender(self):
        return self.sender

    def is_cancelled(self):
        return False


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(asking, "Attachment", FakeAttachment)
    made = BatchModel()
    made.initialize(ARGS)
    return made


@pytest.fixture
def attachment(model):
    return model._worker._attachment


@dataclass
class Executing:
    """`execute` on a thread of its own, as Triton's."""

    model: BatchModel
    requests: list

    def __enter__(self):
        self.thread = threading.Thread(target=self.model.execute, args=(self.requests,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join(30)
        assert not self.thread.is_alive()


def doubled(batch, **changes):
    x = next(to_array(data) for data in batch.tensors if data.name == "x")
    return BatchResult(batch.batch_id, [to_data("y", x * 2)], **changes)


def values_of(request):
    (response,) = request.sender.responses
    assert response.error is None
    return response.output_tensors[0].array.tolist()


def error_of(request):
    (response,) = request.sender.responses
    return response.error.text


def test_each_request_gets_its_own_rows_without_padding(model, attachment):
    """In one batch of two lengths."""
    requests = [Request([[1, 2, 3]]), Request([[4], [5]])]
    with Executing(model, requests):
        attachment.arrived.acquire()
        assert attachment.sent[0].sizes == [1, 2]
        attachment.on_messages([doubled(attachment.sent[0])])
    assert values_of(requests[0]) == [[2, 4, 6]]
    assert values_of(requests[1]) == [[8], [10]]
    assert attachment.published == [(2, 2), (0, 2)]


def test_buckets_are_answered_together_in_whatever_order(model, attachment):
    """One Triton batch, two batches for the worker; each request has its own answer."""
    requests = [Request([[1] * 8]), Request([[2] * 800])]
    with Executing(model, requests):
        attachment.arrived.acquire()
        attachment.arrived.acquire()
        attachment.on_messages([doubled(batch) for batch in reversed(attachment.sent)])
    assert values_of(requests[0]) == [[2] * 8]
    assert values_of(requests[1]) == [[4] * 800]


def test_the_next_batch_is_taken_before_the_responses_of_this_one_are_out(model, attachment, monkeypatch):
    """The answer is there and its response hangs: `execute` has returned, and the next batch arrives."""
    first, second, may_go = [Request([[1]])], [Request([[2]])], threading.Event()
    send = first[0].sender.send
    monkeypatch.setattr(
        first[0].sender, "send", lambda *args, **kwargs: may_go.wait(30) and send(*args, **kwargs)
    )
    with Executing(model, first):
        attachment.arrived.acquire()
        receiver = threading.Thread(target=attachment.on_messages, args=([doubled(attachment.sent[0])],))
        receiver.start()
    assert first[0].sender.responses == []
    with Executing(model, second):
        attachment.arrived.acquire()
        may_go.set()
        receiver.join(30)
        attachment.on_messages([doubled(attachment.sent[1])])
    assert (values_of(first[0]), values_of(second[0])) == ([[2]], [[4]])


def test_a_request_that_failed_alone_is_an_error_alone(model, attachment):
    """Its batch mates have their answers."""
    requests = [Request([[1]]), Request([[2]]), Request(np.zeros((0, 1)))]
    with Executing(model, requests):
        attachment.arrived.acquire()
        attachment.on_messages([doubled(attachment.sent[0], errors={0: "IndexError: 99"})])
    assert error_of(requests[0]) == "internal: IndexError: 99"
    assert values_of(requests[1]) == [[4]]
    assert error_of(requests[2]).startswith("invalid argument: the batch is empty")


def test_a_lost_worker_fails_what_it_had_once(model, attachment):
    """A late answer is dropped."""
    requests = [Request([[1]])]
    with Executing(model, requests):
        attachment.arrived.acquire()
        attachment.on_worker_lost()
        attachment.on_messages([doubled(attachment.sent[0])])
    assert "the worker of this instance died" in error_of(requests[0])


def test_without_a_worker_the_requests_are_refused(model, attachment):
    """And execute returns."""
    attachment.refusal = WorkerUnavailable("no worker")
    requests = [Request([[1]]), Request([[2]])]
    model.execute(requests)
    assert [error_of(request) for request in requests] == ["unavailable: no worker"] * 2


def test_a_batch_larger_than_a_frame_is_refused_with_the_limit(model, attachment):
    """It is the client's: fewer rows fit."""
    attachment.refusal = asking.ProtocolError("message of 1 bytes")
    request = Request([[1]])
    model.execute([request])
    assert error_of(request) == (
        "invalid argument: the batch is larger than 256 MiB; send fewer rows or lower max_batch_size"
    )
