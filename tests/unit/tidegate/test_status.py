"""Status: foreign answers made plain."""

import os

from contracts import node_pb2
from tidegate.status import TritonModel, plain, process_state, read_triton


def test_every_field_of_the_nodes_answer_is_told():
    """Zeros too, and whole numbers as such: protobuf's own JSON drops the first and quotes the second."""
    message = node_pb2.NodeStatus(
        pid=7,
        pool=node_pb2.PoolStatus(total_bytes=2**40),
        instances=[node_pb2.InstanceStatus(model="chat", instance="chat-0")],
    )

    values = plain(message)

    assert values["pool"]["total_bytes"] == 2**40
    assert values["pool"]["leased_bytes"] == 0
    assert values["instances"][0]["in_flight"] == 0
    assert values["workers"] == []


def test_tritons_index_and_statistics_are_joined():
    """A model that failed to load has an index entry and no statistics."""
    index = [
        {"name": "chat", "version": "1", "state": "READY"},
        {"name": "embed", "state": "UNAVAILABLE", "reason": "no such file"},
        {"name": "other"},
    ]
    stats = {
        "model_stats": [
            {
                "name": "chat",
                "inference_count": 5,
                "execution_count": 4,
                "inference_stats": {"fail": {"count": 1}},
            }
        ]
    }

    assert read_triton(index, stats) == [
        TritonModel("chat", "READY", "", 5, 4, 1),
        TritonModel("embed", "UNAVAILABLE", "no such file"),
        TritonModel("other", "NOT LOADED", ""),
    ]


def test_a_process_that_is_gone_is_told_as_such():
    """And one that lives, with its memory."""
    assert process_state("me", os.getpid()).is_alive
    assert process_state("me", os.getpid()).rss_bytes > 0
    assert not process_state("gone", 2**22 + 1).is_alive
