"""What is sent for models that others wrote, and when their instances may go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import calm
from scaler.acting import instance_update as update
from scaler.acting.calm import Sample
from scaler.acting.plain_update import check_foreign, is_decoupled, num_instances, with_count
from scaler.errors import ConfigRefused


def config(*counts: int, kind: str = "KIND_CPU", gpus: Sequence[int] = ()) -> ModelConfig:
    """As Triton serves it: a name and a count in each group."""
    made = ModelConfig(name="resnet", backend="onnxruntime", max_batch_size=8)
    for number, count in enumerate(counts):
        made.instance_group.add(name=f"resnet_{number}", kind=kind, count=count, gpus=gpus)
    return made


def test_only_the_count_changes() -> None:
    """1 -> 3 in the one group; nothing else of the config."""
    served = config(1)
    wanted = with_count(served, 3)
    assert [group.count for group in wanted.instance_group] == [3]
    assert update.differences(served, wanted) == []
    wanted.instance_group[0].count = 1
    assert wanted == served


def test_a_group_on_gpus_counts_once_for_each() -> None:
    """{count: 1, gpus: [0, 1]} are two instances; 3 wanted make 4, never fewer than asked for."""
    served = config(1, kind="KIND_GPU", gpus=[0, 1])
    assert num_instances(served) == 2
    assert num_instances(with_count(served, 3)) == 4
    assert num_instances(with_count(with_count(served, 4), 3)) == 4


def test_groups_grow_and_shrink_evenly_and_none_below_one() -> None:
    """Two groups, 3 + 1: 6 wanted make 3 + 3, 3 make 2 + 1, 1 makes 1 + 1."""
    served = config(3, 1)
    assert [group.count for group in with_count(served, 6).instance_group] == [3, 3]
    assert [group.count for group in with_count(served, 3).instance_group] == [2, 1]
    assert [group.count for group in with_count(served, 1).instance_group] == [1, 1]


def test_passive_instances_neither_count_nor_change() -> None:
    """They take no requests."""
    served = config(1, 2)
    served.instance_group[1].passive = True
    wanted = with_count(served, 3)
    assert num_instances(served) == 1
    assert [group.count for group in wanted.instance_group] == [3, 2]


def test_what_has_no_instances_to_change_is_refused() -> None:
    """An ensemble, a model of passive groups only, zero."""
    ensemble = ModelConfig(name="pipeline", platform="ensemble")
    with pytest.raises(ConfigRefused, match="is an ensemble, which has no instances; scale its steps"):
        with_count(ensemble, 2)
    passive = config(1)
    passive.instance_group[0].passive = True
    with pytest.raises(ConfigRefused, match="only passive instance groups"):
        with_count(passive, 2)
    with pytest.raises(ConfigRefused, match="0 instances asked for, must be at least 1"):
        with_count(config(1), 0)


def test_a_model_of_a_tidegate_node_is_refused_and_looking_does_not_change_it() -> None:
    """Only its node can drain it. Reading a missing key the wrong way would add it, and so force a full reload."""
    ours = config()
    ours.parameters["kind"].string_value = "generate"
    ours.instance_group.add(name="chat-0", host_policy="chat-0", count=1)
    with pytest.raises(ConfigRefused, match="served by a tidegate node"):
        check_foreign(ours)
    foreign = config(1)
    check_foreign(foreign)
    assert foreign == config(1)
    assert not is_decoupled(foreign)


def test_counters_that_began_again_prove_a_full_reload() -> None:
    """3 requests before, 0 after; growing or standing still is in place."""
    before = Sample(0.0, num_requests=3, queue_s=0.5)
    assert calm.is_reset(before, Sample(1.0, 0, 0.0))
    assert calm.is_reset(before, Sample(1.0, 4, 0.1)), "so many requests came that the number hides it"
    assert not calm.is_reset(before, before)
    assert not calm.is_reset(before, Sample(1.0, 9, 0.7))


def test_it_is_calm_when_less_than_one_request_waits_for_each_instance() -> None:
    """Little's law: 6 s of waiting in 0.5 s are 12 waiting; 3 instances bear 1 each."""
    before = Sample(0.0, 10, 1.0)
    assert calm.mean_waiting(before, Sample(0.5, 34, 7.0)) == 12.0
    assert not calm.is_calm(before, Sample(0.5, 34, 7.0), 3)
    assert calm.is_calm(before, Sample(0.5, 34, 1.2), 3)
