"""The generator's processes against the mock server: every call leaves a row, whatever dies."""

import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from loadtest.generating.children import MODULE, Children
from loadtest.generating.fleet import run_task
from loadtest.generating.generator import generate
from loadtest.generating.messages import Target
from loadtest.mock_server import Script
from loadtest.planning.plan import check_plan
from loadtest.planning.schedule import plan_schedule
from loadtest.records import Status
from loadtest.testing import PlainArgument, plain_task, running_mock

pytestmark = pytest.mark.integration

PROTOCOLS = ("openai_chat", "openai_embeddings", "grpc_generate", "grpc_tensors")
STREAMED = ("openai_chat", "grpc_generate")


@pytest.fixture(scope="module")
def server():
    with running_mock(Script()) as running:
        yield running


@pytest.fixture
def mock(server):
    """As if it had just started."""
    server.follow(Script())
    return server


def statuses(generated):
    return Counter(Status(status).name for status in generated.requests.status)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_call_of_the_schedule_has_one_row_with_its_times_in_order(mock, protocol):
    """30 calls over two processes: by their numbers, intended as drawn, sent after that, first before last."""
    task = plain_task(PlainArgument(protocol, 40, 0.75, poisson_seed=3), mock, num_processes=2)

    generated = run_task(task)

    rows = generated.requests
    assert statuses(generated) == {"OK": 30}, set(rows.error)
    assert rows.index.tolist() == list(range(30))
    assert rows.t_intended_s.tolist() == task.work.t_intended_s.tolist()
    assert set(rows.process) == {0, 1}
    assert np.all(rows.t_intended_s <= rows.t_sent_s)
    assert np.all(rows.t_sent_s < rows.t_first_s)
    assert np.all(rows.t_first_s <= rows.t_last_s)
    is_streamed = protocol in STREAMED
    assert rows.output_tokens.tolist() == [4 if is_streamed else 0] * 30
    assert rows.chunk_tokens.tolist() == [1] * (120 if is_streamed else 0)
    assert generated.problems == []


def test_a_stall_is_seen_by_every_call_that_falls_due_in_it(mock):
    """Nothing is answered from 0.4 to 1.2 s: none took less than what was left of that when it was due."""
    mock.follow(Script(stall_from_s=0.4, stall_to_s=1.2))

    generated = run_task(plain_task(PlainArgument("openai_embeddings", 25, 1.6), mock))

    rows = generated.requests
    # The mock's clock begins with the first call's arrival, a moment after t0.
    within = (rows.t_intended_s >= 0.4) & (rows.t_intended_s < 1.2)
    assert statuses(generated) == {"OK": 40}
    assert np.all((rows.t_last_s - rows.t_intended_s)[within] >= 1.2 - rows.t_intended_s[within])


@pytest.mark.parametrize("protocol", ["openai_chat", "grpc_tensors"])
def test_a_server_that_refuses_everything_leaves_errors_that_say_how(mock, protocol):
    mock.follow(Script(fail_every=1))

    generated = run_task(plain_task(PlainArgument(protocol, 20, 0.5), mock))

    assert statuses(generated) == {"ERROR": 10}
    assert all("scripted" in error for error in generated.requests.error)


@pytest.mark.parametrize("how", ["cut", "short"])
@pytest.mark.parametrize("protocol", STREAMED)
def test_a_cut_stream_is_an_error_and_keeps_the_chunks_that_came(mock, protocol, how):
    """Also one that ends in order, but without its last word."""
    mock.follow(Script(fail_every=2, fail_how=how))

    generated = run_task(plain_task(PlainArgument(protocol, 20, 0.5), mock))

    rows = generated.requests
    cut = rows.status == Status.ERROR
    assert statuses(generated) == {"OK": 5, "ERROR": 5}
    assert np.diff(rows.chunk_offsets)[cut].tolist() == [2] * 5


@pytest.mark.parametrize("protocol", STREAMED)
def test_a_call_without_an_answer_is_censored_at_the_end_of_the_drain(mock, protocol):
    """Every second call is never answered."""
    mock.follow(Script(fail_every=2, fail_how="silent"))

    generated = run_task(plain_task(PlainArgument(protocol, 20, 0.5), mock, drain_s=0.3))

    is_open = generated.requests.status == Status.CENSORED
    assert statuses(generated) == {"OK": 5, "CENSORED": 5}
    assert np.all(generated.requests.t_last_s[is_open] >= 0.8)


def test_a_call_that_takes_longer_than_its_timeout_is_an_error(mock):
    """Every second call is never answered."""
    mock.follow(Script(fail_every=2, fail_how="silent"))

    generated = run_task(plain_task(PlainArgument("grpc_tensors", 20, 0.5), mock, timeout_s=0.2))

    assert statuses(generated) == {"OK": 5, "ERROR": 5}
    assert set(generated.requests.error) == {"", "timeout: no end within 0.2 s"}


@pytest.mark.parametrize("protocol", STREAMED)
def test_a_server_that_dies_leaves_errors_for_the_rest_and_the_run_ends(protocol):
    with running_mock(Script(dies_at_s=0.5)) as dying:
        generated = run_task(plain_task(PlainArgument(protocol, 20, 1.0), dying))

    assert len(generated.requests) == 20
    assert set(statuses(generated)) == {"OK", "ERROR"}


def test_a_generator_process_that_dies_ends_the_run_and_its_calls_are_told_as_unknown_or_not_sent(mock):
    """The second of two exits at one of its calls; what fell due until then stands in rows, none of them good."""
    task = plain_task(PlainArgument("openai_chat", 200, 2.0, dies_at_index=301), mock, num_processes=2)

    generated = run_task(task)

    rows = generated.requests
    of_the_dead = rows.process == 1
    due = int(np.searchsorted(task.work.t_intended_s, generated.ended_s, side="right"))
    assert rows.index.tolist() == list(range(due))
    assert Status.NOT_SENT in rows.status[of_the_dead]
    assert "generator process 1 died" in generated.problems[0]
    assert "exit code 7" in generated.problems[0]


def test_a_run_that_is_stopped_says_so_and_ends_at_once(mock):
    stop = threading.Event()
    task = plain_task(PlainArgument("grpc_generate", 20, 60.0), mock)

    generated = run_task(task, on_progress=lambda progress: progress.num_done >= 5 and stop.set(), stop=stop)

    assert generated.ended_s < 30
    assert "stopped" in generated.problems[0]
    assert len(generated.requests) >= 5


@pytest.mark.parametrize("target", [Target(), Target(http="http://127.0.0.1:1")])
def test_nothing_good_comes_of_no_address_or_a_closed_port(target):
    """Without an address the process says which user needs which."""
    generated = run_task(plain_task(PlainArgument("openai_chat", 20, 0.5), target))

    assert statuses(generated) in ({}, {"ERROR": 10})
    assert generated.problems or len(generated.requests)
    assert target.http or "user plain calls by openai_chat, and the plan's target.http is empty" in str(
        generated.problems
    )


def test_a_schedule_without_calls_is_a_problem(mock):
    generated = run_task(plain_task(PlainArgument("openai_chat", 0.1, 0.5), mock))

    assert len(generated.requests) == 0
    assert generated.problems == ["no request was sent; raise the rate or the duration"]


def test_a_hold_keeps_its_slots_full_and_no_more(mock):
    """Five slots over two processes: between the first answers and the end five calls are open, never six."""
    generated = run_task(
        plain_task(PlainArgument("openai_chat", slots=5, duration_s=1.0), mock, num_processes=2)
    )

    rows = generated.requests
    changes = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    times_s = np.concatenate([rows.t_intended_s, rows.t_last_s])
    assert np.max(np.cumsum(changes[np.lexsort((changes, times_s))])) == 5
    assert len(set(rows.index)) == len(rows) > 20


def test_turns_follow_the_answers_before_them(mock):
    """Three turns a session, 50 ms to think: each is due that long after the one before it ended."""
    argument = PlainArgument("openai_chat", 10, 1.0, num_turns=3, think_s=0.05)

    rows = run_task(plain_task(argument, mock)).requests

    ends_s = {(index, turn): t for index, turn, t in zip(rows.index, rows.turn, rows.t_last_s, strict=True)}
    later = rows.turn > 0
    assert set(rows.turn) == {0, 1, 2}
    for index, turn, t_intended_s in zip(
        rows.index[later], rows.turn[later], rows.t_intended_s[later], strict=True
    ):
        assert t_intended_s == pytest.approx(ends_s[index, turn - 1] + 0.05)


def test_a_plan_is_sent_as_its_schedule_says(mock, tmp_path):
    """Two users over both doors and two processes, each with calls made by itself."""
    raw = {
        "name": "mixed",
        "target": {"http": mock.http, "grpc": mock.grpc},
        "load": {"kind": "open", "shape": {"kind": "hold", "rate_per_s": 30, "duration_s": 1}},
        "users": [
            {"name": "chat", "kind": "openai_chat", "service": "chat"},
            {"name": "stream", "kind": "grpc_generate", "service": "chat"},
        ],
        "generator": {"processes": 2},
        "drain_s": 2,
    }
    plan = check_plan(raw, tmp_path)
    schedule, started_s = plan_schedule(plan), []

    generated = generate(plan, schedule, on_start=started_s.append)

    assert statuses(generated) == {"OK": len(schedule)}, set(generated.requests.error)
    assert generated.requests.t_intended_s.tolist() == schedule.t_intended_s.tolist()
    names = [plan.users[user].name for user in schedule.user]
    assert generated.requests.user.tolist() == names
    assert started_s == [generated.t0_monotonic_s]
    assert generated.problems == []


def test_a_child_ends_with_its_parent():
    """The end of its standard input is all that it sees of that."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE], input=b"", capture_output=True, timeout=30, check=False
    )

    assert done.returncode != 0


def test_a_child_that_waits_for_its_word_ends_when_the_pipe_does(mock):
    with Children(plain_task(PlainArgument("openai_chat"), mock).orders()) as children:
        (child,) = children.all
        while child.ready is None:
            list(children.hear(1.0))
        child.popen.stdin.close()
        assert child.popen.wait(30) == 0
