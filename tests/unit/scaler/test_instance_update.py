"""What is sent to Triton to have other instances, and who is chosen to go."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting import instance_update as update
from scaler.acting.instance_update import InstanceLoad
from scaler.errors import ConfigRefused


def config(*names: str) -> ModelConfig:
    """As Triton serves it: every field that the update must keep, 64-bit numbers included."""
    made = ModelConfig(name="chat", backend="python", max_batch_size=8)
    made.input.add(name="text_input", data_type="TYPE_STRING", dims=[-1])
    made.output.add(name="text_output", data_type="TYPE_STRING", dims=[-1])
    made.dynamic_batching.max_queue_delay_microseconds = 5000
    made.model_transaction_policy.decoupled = True
    made.parameters["weights"].string_value = 'a "quoted" name'
    for name in names:
        made.instance_group.add(name=name, kind="KIND_CPU", count=1, host_policy=name)
    return made


def load(name: str, *, in_flight: int = 0, attached_unix_ms: int = 0, landed: int = 0) -> InstanceLoad:
    return InstanceLoad(name, 100, in_flight, landed, attached_unix_ms, is_draining=False)


def test_growing_adds_ids_above_all_that_were_seen() -> None:
    """A gap is not filled: an id names one instance for ever."""
    plan = update.plan_update(config("chat-0", "chat-2"), 4, [], highest_id=-1)
    assert plan.added == ("chat-3", "chat-4")
    assert plan.removed == ()
    assert plan.after == ("chat-0", "chat-2", "chat-3", "chat-4")


def test_an_id_that_was_removed_is_not_given_again() -> None:
    """Neither one remembered by the run directory, nor one whose stub is still attached."""
    assert update.plan_update(config("chat-0"), 2, [], highest_id=7).added == ("chat-8",)
    assert update.plan_update(config("chat-0"), 2, [load("chat-9")], highest_id=7).added == ("chat-10",)


def test_names_of_foreign_make_do_not_count_as_ids() -> None:
    """`chat-large-3` belongs to no numbering of `chat`."""
    assert update.next_ids("chat", ["chat-large-3", "other-5", "chat-x", "chat-1"], -1, 1) == ("chat-2",)


def test_asking_for_what_is_there_changes_nothing() -> None:
    """The plan is empty both ways."""
    plan = update.plan_update(config("chat-0", "chat-1"), 2, [], highest_id=-1)
    assert (plan.added, plan.removed) == ((), ())


def test_the_victim_has_the_least_in_flight_then_is_the_newest() -> None:
    """A long-lived idle instance goes before a busy new one; among equals the newest goes."""
    names = ["chat-0", "chat-1", "chat-2"]
    loads = [
        load("chat-0", in_flight=0, attached_unix_ms=1),
        load("chat-1", in_flight=3, attached_unix_ms=2),
        load("chat-2", in_flight=0, attached_unix_ms=3),
    ]
    assert update.choose_victims(names, loads, 1) == ("chat-2",)
    assert update.choose_victims(names, loads, 2) == ("chat-2", "chat-0")


def test_an_instance_nobody_is_attached_to_goes_first() -> None:
    """It serves no one."""
    loads = [load("chat-0"), load("chat-2", attached_unix_ms=9)]
    assert update.choose_victims(["chat-0", "chat-1", "chat-2"], loads, 1) == ("chat-1",)


def test_an_instance_that_is_still_starting_goes_before_one_that_serves() -> None:
    """ray#43034: scale-in kept the cold and killed the warm. chat-0 is idle and warm, chat-1 waits for a worker."""
    loads = [
        load("chat-0", attached_unix_ms=2),
        replace(load("chat-1", attached_unix_ms=1), has_worker=False),
    ]
    assert update.choose_victims(["chat-0", "chat-1"], loads, 1) == ("chat-1",)


@pytest.mark.parametrize("wanted", [0, -1, 65])
def test_a_number_of_instances_out_of_range_is_refused(wanted: int) -> None:
    """Triton would make 0 a 1 without a word."""
    with pytest.raises(ConfigRefused, match=f"{wanted} instances asked for, must be from 1 to 64"):
        update.plan_update(config("chat-0"), wanted, [], highest_id=-1)


def test_a_group_that_cannot_be_removed_on_its_own_is_refused() -> None:
    """Two instances in a group, or a host_policy that does not tell it apart."""
    counted = config("chat-0")
    counted.instance_group[0].count = 2
    with pytest.raises(ConfigRefused, match="count 2"):
        update.instance_names(counted)
    shared = config("chat-0")
    shared.instance_group[0].host_policy = ""
    with pytest.raises(ConfigRefused, match="host_policy ''"):
        update.instance_names(shared)


def test_new_groups_are_made_like_the_first_and_others_stay_as_they_are() -> None:
    """Kind and GPUs come along; name and host_policy are the id."""
    served = config("chat-0", "chat-1")
    served.instance_group[0].rate_limiter.priority = 5
    wanted = update.with_instances(served, ["chat-1", "chat-2"])
    assert [group.name for group in wanted.instance_group] == ["chat-1", "chat-2"]
    assert wanted.instance_group[0] == served.instance_group[1]
    assert wanted.instance_group[1].host_policy == "chat-2"
    assert wanted.instance_group[1].rate_limiter.priority == 5


def test_the_override_is_the_whole_config_in_tritons_own_field_names() -> None:
    """A patch of instance_group alone would take the model's inputs away."""
    served = config("chat-0")
    text = update.override_json(served, update.with_instances(served, ["chat-0", "chat-1"]))
    assert json.loads(text)["input"][0]["data_type"] == "TYPE_STRING"
    parsed = json_format.Parse(text, ModelConfig())
    assert update.differences(served, parsed) == []
    assert update.instance_names(parsed) == ("chat-0", "chat-1")


def test_an_update_of_anything_else_is_refused_by_name() -> None:
    """A valid but different config is taken by Triton and breaks all clients."""
    served = config("chat-0")
    wanted = update.with_instances(served, ["chat-0", "chat-1"])
    wanted.max_batch_size = 0
    wanted.input[0].dims[0] = 5
    with pytest.raises(ConfigRefused, match="would change max_batch_size, input beside instance_group"):
        update.override_json(served, wanted)


def test_a_config_with_fields_unknown_here_is_refused() -> None:
    """A newer server's field would be dropped from the JSON, which is a full reload."""
    served = ModelConfig()
    served.ParseFromString(config("chat-0").SerializeToString() + bytes([0xFA, 0x3F, 1, 0x41]))  # field 1023
    with pytest.raises(ConfigRefused, match="tritonclient as new as the server"):
        update.override_json(served, update.with_instances(served, ["chat-0", "chat-1"]))


def test_drained_is_nothing_in_flight_or_two_requests_since() -> None:
    """One landing may be the execute that began before the drain; the second proves that it returned."""
    at_drain = load("chat-1", in_flight=3, landed=10)
    assert update.is_drained(at_drain, load("chat-1", in_flight=0, landed=10))
    assert not update.is_drained(at_drain, load("chat-1", in_flight=2, landed=10))
    assert not update.is_drained(at_drain, load("chat-1", in_flight=4, landed=11))
    assert update.is_drained(at_drain, load("chat-1", in_flight=1, landed=12))
