"""What the doctor says about numbers, and that what it says can be done."""

import os
import resource

import msgspec
import pytest

from contracts.stack import Stack
from tidegate import doctor
from tidegate.doctor import Check
from tidegate.models.add import add
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry
from tidegate.models.testing import write_hf_folder
from tidegate.settings import Settings

MIB, GIB = 1 << 20, 1 << 30


def stack_of(pids, addresses=("h:1", "h:2", "h:3", "h:4")):
    http, grpc, metrics, gateway = addresses
    return Stack(
        pid=os.getpid(),
        run_dir="/run",
        node_socket="",
        triton_http=http,
        triton_grpc=grpc,
        triton_metrics=metrics,
        gateway_http=gateway,
        models=[],
        pids=pids,
        started_unix_s=0.0,
    )


@pytest.mark.parametrize(
    ("free_mib", "state"),
    [(1, "fail"), (2, "warn"), (63, "warn"), (64, "ok"), (1000, "ok")],
)
def test_shared_memory_must_hold_every_instance(free_mib, state):
    """1 MiB each; below a container's 64 MiB it may run out with long texts."""
    check = doctor.judge_shm(1000 * MIB, free_mib * MIB, num_instances=2)

    assert check.state == state
    assert bool(check.way_out) is (state != "ok")


@pytest.mark.parametrize(
    ("available", "pool", "weights", "state"),
    [
        pytest.param(16 * GIB, 0, GIB, "ok", id="the default pool, plenty"),
        pytest.param(16 * GIB, 12 * GIB, GIB, "warn", id="little left for workers"),
        pytest.param(16 * GIB, 16 * GIB, GIB, "fail", id="does not fit"),
        pytest.param(GIB, 0, GIB, "fail", id="weights alone fill it"),
        pytest.param(2 * GIB, 0, GIB // 2, "ok", id="a small machine, a small pool"),
    ],
)
def test_memory_must_hold_pool_and_weights(available, pool, weights, state):
    """The pool is taken whole at the start."""
    check = doctor.check_memory(available, pool, weights, is_running=False)

    assert check.state == state
    assert bool(check.way_out) is (state != "ok")


def test_memory_is_not_judged_beside_a_running_stack():
    """It has its pool already; the rest need not hold another."""
    assert doctor.check_memory(GIB, 16 * GIB, GIB, is_running=True).state == "ok"


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        ((128, 128), "fail"),
        ((1024, 1024), "warn"),
        ((1024, 524288), "warn"),
        ((65536, 65536), "ok"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok"),
    ],
)
def test_open_files_must_be_enough_for_clients(limits, state):
    """A shell's default of 1024 serves, but not hundreds of clients."""
    check = doctor.check_open_files(limits)

    assert check.state == state
    assert ("as root" in check.way_out) is (state != "ok" and limits[1] < 4096)


def test_a_model_that_is_not_fetched_fails_with_the_command_that_gets_it(tmp_path, monkeypatch):
    """`chat` is served from the shipped model, another name from a user's."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))

    _, (chat, mine) = doctor.check_models(Settings(run_dir=tmp_path, models=("chat", "mine")))

    assert (chat.state, chat.way_out) == ("fail", "tidegate models fetch")
    assert (mine.state, mine.way_out) == ("fail", "tidegate models add mine PATH")


def test_a_model_that_is_whole_passes_and_a_damaged_one_does_not(tmp_path, monkeypatch):
    """Looked at, not hashed: that is `models verify`."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))
    folder = write_hf_folder(tmp_path / "mine")
    add(Registry.at_home(), "mine", folder, Silent())
    settings = Settings(run_dir=tmp_path, models=("mine",))

    num_bytes, (whole,) = doctor.check_models(settings)
    (folder / "model.safetensors").write_bytes(b"cut")
    _, (damaged,) = doctor.check_models(settings)

    assert (num_bytes, whole.state) == (4 * 17, "ok")
    assert damaged.state == "fail"
    assert "model.safetensors" in damaged.text


def test_a_missing_triton_fails_with_its_way_out():
    """The launcher's own words, split."""
    check = doctor.check_triton({"TRITONSERVER": "/nowhere/tritonserver"})

    assert check == Check(
        "triton",
        "fail",
        "TRITONSERVER = '/nowhere/tritonserver' is no program",
        "unset it or name the binary",
    )


def test_ports_of_the_running_stack_are_not_taken(tmp_path, monkeypatch):
    """The doctor must not advise to stop what it was asked about."""
    monkeypatch.setattr("tidegate.ports.is_free", lambda host, port: port in (8001, 9001, 9002, 9003))
    monkeypatch.setattr("tidegate.ports.holder_of", lambda port: "pid 7 (nginx)")
    settings = Settings(run_dir=tmp_path)

    stack = msgspec.structs.replace(stack_of({}, ("h:8000", "h:1", "h:2", "h:3")), node_metrics="h:9004")
    checks = doctor.check_ports(settings, stack)

    assert [(check.name, check.state) for check in checks] == [
        ("ports", "ok"),
        ("port 8000", "ok"),
        ("port 8002", "fail"),
        ("port 9000", "fail"),
        ("port 9004", "ok"),
    ]
    assert checks[3].text == "taken by pid 7 (nginx)"
    assert checks[3].way_out == "stop it, or choose another with --gateway-port"


def test_a_stack_that_lost_a_process_fails(tmp_path):
    """stack.json is there, the node is not."""
    check = doctor.check_stack(tmp_path, stack_of({"node": 41, "gateway": 42}), lambda pid: pid == 42)

    assert (check.state, check.text) == ("fail", "node (pid 41) is gone")


def test_no_stack_is_no_fault(tmp_path):
    """Before the first start."""
    assert doctor.check_stack(tmp_path / "run", None).state == "ok"


def test_one_failure_is_enough_and_warnings_are_none():
    """The exit code."""
    assert doctor.is_healthy([Check("a", "ok", ""), Check("b", "warn", "")])
    assert not doctor.is_healthy([Check("a", "ok", ""), Check("b", "fail", "")])
