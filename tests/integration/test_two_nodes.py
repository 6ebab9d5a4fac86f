"""Two nodes of one user on one machine, as two stacks have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration import test_node_daemon
from tests.integration.test_node_daemon import BLOCK_BYTES, Node

pytestmark = pytest.mark.integration

start = test_node_daemon.start


def test_two_nodes_with_the_same_models_do_not_meet(start: Callable[..., Node]) -> None:
    """Same models, same instances; when one is killed the other has its memory, workers and sockets as before."""
    nodes = [start("one"), start("two")]
    for node in nodes:
        node.wait_ready()
    first, second = (node.attach("chat-0") for node in nodes)
    first.ask("xxx")
    second.ask("xxxxx")
    assert [node.leased_bytes() for node in nodes] == [3 * BLOCK_BYTES, 5 * BLOCK_BYTES]
    worker = second.worker_pid("x")
    nodes[0].process.kill()
    nodes[0].wait_exit()
    assert second.worker_pid("x") == worker
    assert nodes[1].leased_bytes() == 7 * BLOCK_BYTES
    assert nodes[1].attach("chat-1").slot == 1
