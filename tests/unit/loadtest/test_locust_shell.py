"""What Locust is shown, and how many users its shapes have. Locust itself runs in tests/integration."""

from __future__ import annotations

import math

import msgspec
import pytest

from loadtest.planning.rates import RateCurve
from loadtest.planning.users import ChatUser, TensorUser
from loadtest.planning.workload import one_call
from loadtest.records import Request, Status
from loadtest.shell.events import events_of
from loadtest.shell.lines import Ask, FromChild, ToAsker, line_of, told
from loadtest.shell.ticks import users_at


def _request(**other: object) -> Request:
    known = {
        "index": 0,
        "process": 0,
        "user": "chat",
        "service": "chat",
        "session": "",
        "turn": 0,
        "status": Status.OK,
        "error": "",
        "instance": "",
        "t_intended_s": 1.0,
        "t_sent_s": 1.5,
        "t_first_s": 2.0,
        "t_last_s": 3.0,
        "input_tokens": 5,
        "output_tokens": 5,
        "cached_tokens": 0,
        "chunk_times_s": (2.0, 3.0),
        "chunk_tokens": (1, 4),
    }
    return Request(**{**known, **other})  # type: ignore[arg-type]


def _shown(request: Request) -> dict[str, float]:
    return {event["request_type"]: event["response_time"] for event in events_of(told(request))}


def test_a_stream_is_three_events_from_its_intended_start():
    """Due at 1, sent at 1.5, first token at 2, fifth at 3: 2 s in all, 1 s to the first, 250 ms a token."""
    assert _shown(_request()) == pytest.approx({"REQUEST": 2000, "TTFT": 1000, "TPOT": 250})


def test_an_answer_of_one_token_has_no_time_per_token():
    """Nothing is divided by 0."""
    assert set(_shown(_request(output_tokens=1))) == {"REQUEST", "TTFT"}


def test_a_unary_answer_and_a_later_turn_are_one_event_each():
    """No chunks: no first token. A turn has a name of its own, for its start hangs on the answer before it."""
    unary = {"chunk_times_s": (), "chunk_tokens": (), "t_first_s": math.nan}

    assert set(_shown(_request(**unary))) == {"REQUEST"}
    assert set(_shown(_request(**unary, turn=2))) == {"TURN"}


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (Status.ERROR, "http 503: full", "http 503: full"),
        (Status.CENSORED, "", "censored"),
        (Status.NOT_SENT, "", "not sent"),
    ],
)
def test_what_did_not_end_well_is_a_failure_with_its_reason(status: Status, error: str, words: str):
    """And has no time to its first token, even where one came."""
    events = list(events_of(told(_request(status=status, error=error))))

    assert [str(event["exception"]) for event in events] == [words]


def test_calls_and_rows_survive_the_pipe():
    """As JSON lines: a conversation with its turns, tensors of each kind."""
    chat = ChatUser(kind="openai_chat", name="c", service="chat", turns=3)  # type: ignore[arg-type]
    tensors = TensorUser(kind="grpc_tensors", name="t", service="embed")

    for number, user in enumerate((chat, tensors)):
        ask = Ask(number, one_call(user, 0, 1, number))
        read = msgspec.json.decode(line_of(ask), type=ToAsker)
        assert line_of(read) == line_of(ask)
        assert b"\n" not in line_of(ask)[:-1]
    row = told(_request())
    assert msgspec.json.decode(line_of(row), type=FromChild) == row


def test_users_follow_the_curve_and_end_with_it():
    """0 to 10 users in 10 s."""
    curve = RateCurve.through([(0, 0), (10, 10)])

    assert users_at(curve, 0) == (0, 1)
    assert users_at(curve, 5.2) == (5, 5)
    assert users_at(curve, 10) is None
