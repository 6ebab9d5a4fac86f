"""The bridge's tie to the node, over real nodes with workers without torch: the node dies, the next one comes."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import node_pb2
from python_backend.board import SlotState
from python_backend.bridge import attachment as attachment_module
from python_backend.bridge.attachment import NODE_SOCKET_VARIABLE, Attachment, InstanceName
from python_backend.bridge.errors import AttachFailed, WorkerUnavailable
from python_backend.messages import EmbedBatch, WorkerToBridge
from tests.integration import test_node_daemon
from tests.integration.test_node_daemon import Node, until

pytestmark = pytest.mark.integration

start = test_node_daemon.start


class Stub:
    """One attached instance and what it has been told."""

    def __init__(self, name: str = "chat-0", model: str = "chat") -> None:
        self.messages: list[WorkerToBridge] = []
        self.losses: list[str] = []
        self.attachment = Attachment(InstanceName(model, name), 8, self.messages.extend, self._lost)

    def _lost(self) -> None:
        self.losses.append(self.attachment.why_lost)

    def ask(self, text: str = "x") -> None:
        """Returns when the worker has answered."""
        before = len(self.messages)
        self.attachment.send(EmbedBatch(1, [text]))
        until(lambda: len(self.messages) > before)

    def serves(self) -> bool:
        try:
            self.ask()
        except WorkerUnavailable:
            return False
        return True


@pytest.fixture
def stub(start: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    node = start()
    node.wait_ready()
    monkeypatch.setenv(NODE_SOCKET_VARIABLE, str(tmp_path / "run" / "node.sock"))
    attached = Stub()
    attached.node = node
    yield attached
    attached.attachment.close()


def test_it_joins_the_next_node_and_fails_at_once_meanwhile(stub: Stub, start: Callable[..., Node]) -> None:
    """Nobody waits for a worker that can't come; the new node's board has it, with counts from 0."""
    stub.ask()
    stub.attachment.publish(0, 500)
    stub.node.process.kill()
    until(lambda: stub.losses)
    assert stub.losses == [attachment_module.NODE_DIED]
    started_s = time.monotonic()
    with pytest.raises(WorkerUnavailable, match="the node is starting again"):
        stub.attachment.send(EmbedBatch(1, ["x"]))
    assert time.monotonic() - started_s < 1
    stub.attachment.publish(0, 501)
    second = start()
    second.wait_ready()
    until(stub.serves)
    assert stub.attachment.state() is SlotState.SERVING
    stub.attachment.publish(3, 507)
    [instance] = second.status().instances
    assert (instance.instance, instance.landed, instance.in_flight) == ("chat-0", 6, 3)
    assert stub.losses == [attachment_module.NODE_DIED]


def test_its_words_on_the_board_are_right_from_the_first_moment(
    stub: Stub, start: Callable[..., Node]
) -> None:
    """A count of landed requests that jumped with the first one would end a drain too early."""
    stub.attachment.publish(0, 500)
    stub.node.process.kill()
    second = start()
    second.wait_ready()
    until(lambda: second.status().instances and second.status().instances[0].worker_pid)
    assert second.status().instances[0].landed == 0
    stub.attachment.publish(1, 501)
    assert second.status().instances[0].landed == 1


def test_a_worker_that_dies_alone_is_not_taken_for_the_node(stub: Stub) -> None:
    """The error names what died."""
    stub.ask()
    stub.attachment.send(EmbedBatch(1, ["die"]))
    until(lambda: stub.losses)
    assert stub.losses == [attachment_module.WORKER_DIED]
    until(stub.serves)


def test_a_node_that_refuses_is_asked_again(stub: Stub, start: Callable[..., Node]) -> None:
    """It may know the model later; what it said is in the error."""
    embed_only = {"name": "embed", "kind": "embed", "weights": "w"}
    stub.node.process.kill()
    path = str(stub.node.run_dir.parent / "weights")
    second = start(models=[embed_only | {"path": path}], spares={"embed": 1})
    second.wait_ready()

    def refusal() -> bool:
        with pytest.raises(WorkerUnavailable) as caught:
            stub.attachment.send(EmbedBatch(1, ["x"]))
        return "no model 'chat' on this node" in str(caught.value)

    until(refusal)
    second.process.kill()
    second.wait_exit()
    start().wait_ready()
    until(stub.serves)


def test_models_added_at_run_time_are_served_by_the_next_node(
    stub: Stub, start: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their instances join it like the others; a node that was stopped in order forgets them."""
    path = str(stub.node.run_dir.parent / "weights")
    served = {"name": "more", "kind": "embed", "weights": "w", "path": path}
    request = node_pb2.ServeModelRequest(served_model_json=json.dumps(served).encode(), num_spares=1)
    stub.node.stub.ServeModel(request, timeout=20)
    added = Stub("more-0", "more")
    stub.node.process.kill()
    stub.node.wait_exit()
    second = start()
    second.wait_ready()
    until(added.serves, 20)
    until(stub.serves, 20)
    added.attachment.close()
    second.process.send_signal(signal.SIGTERM)
    assert second.wait_exit() == 0
    assert not (second.run_dir / "added_models.json").exists()


def test_closing_while_the_node_is_down_ends_its_threads(stub: Stub) -> None:
    """Triton unloads the instance and waits for it."""
    stub.node.process.kill()
    until(lambda: stub.losses)
    stub.attachment.close()
    until(lambda: not any(thread.name in ("node", "worker") for thread in threading.enumerate()))


def test_later_requests_do_not_wait_for_a_worker_again(
    start: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton asks one request after the other: each would wait the whole time-out in turn."""
    monkeypatch.setattr(attachment_module, "REPLACEMENT_TIMEOUT_S", 0.3)
    node = start(spares={"chat": 0, "embed": 0}, env={"FAKE_WARM_UP_S": "3"})
    node.wait_ready()
    monkeypatch.setenv(NODE_SOCKET_VARIABLE, str(tmp_path / "run" / "node.sock"))
    stub = Stub()
    stub.attachment.send(EmbedBatch(1, ["die"]))
    until(lambda: stub.losses)
    started_s = time.monotonic()
    for _ in range(4):
        with pytest.raises(WorkerUnavailable, match="no worker"):
            stub.attachment.send(EmbedBatch(1, ["x"]))
    assert time.monotonic() - started_s < 0.9
    stub.attachment.close()


def test_without_a_node_the_first_attach_fails_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's load fails and says it."""
    monkeypatch.setenv(NODE_SOCKET_VARIABLE, str(tmp_path / "node.sock"))
    with pytest.raises(AttachFailed, match=r"no node daemon listens on .*node\.sock"):
        Stub()
