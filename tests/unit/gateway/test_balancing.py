"""Which Triton takes a call, by numbers."""

from __future__ import annotations

from collections import Counter

from gateway.balancing import FAILURES_TO_EJECT, MAX_EJECTION_S, Balance, Outcome

ABC = ["a", "b", "c"]


def fail(balance: Balance, name: str, now: float, times: int = FAILURES_TO_EJECT) -> None:
    for _ in range(times):
        others = [other for other in balance.addresses if other != name]
        assert balance.choose(now, avoid=others) == name
        balance.end(name, 0, Outcome.UNREACHABLE, now)


def test_calls_go_where_the_fewest_tokens_are_in_flight() -> None:
    """a has 1,000 tokens, b 100, c 400: the next two small calls go to b. What ended weighs nothing."""
    balance = Balance(ABC)
    for name, tokens in (("a", 1000), ("b", 100), ("c", 400)):
        assert balance.choose(0.0, tokens=tokens) == name
    assert [balance.choose(0.0, tokens=50) for _ in range(2)] == ["b", "b"]
    balance.end("a", 1000, Outcome.ANSWERED, 0.0)
    assert balance.choose(0.0, tokens=50) == "a"


def test_calls_without_tokens_count_as_one_and_equals_take_turns() -> None:
    """Nine at once: three each. One after the other: in turn."""
    balance = Balance(ABC)
    assert Counter(balance.choose(0.0) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}
    balance, seen = Balance(ABC), []
    for _ in range(6):
        seen.append(balance.choose(0.0))
        balance.end(seen[-1], 0, Outcome.ANSWERED, 0.0)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_a_session_stays_until_its_endpoint_is_clearly_fuller() -> None:
    """With calls of 100 tokens: 400 more than the others' nothing is borne, 500 is not."""
    balance = Balance(ABC)
    home = balance.choose(0.0, session="s", tokens=100)
    assert [balance.choose(0.0, session="s", tokens=100) for _ in range(4)] == [home] * 4
    assert balance.choose(0.0, session="s", tokens=100) != home


def test_an_endpoint_that_goes_moves_only_its_own_sessions() -> None:
    """Of 600 sessions about a third lived at c; the others stay where they were."""

    def homes(balance: Balance) -> dict[str, str]:
        found = {}
        for number in range(600):
            found[str(number)] = balance.choose(0.0, session=str(number))
            balance.end(found[str(number)], 0, Outcome.ANSWERED, 0.0)
        return found

    balance = Balance(ABC)
    before = homes(balance)
    assert all(150 < count < 250 for count in Counter(before.values()).values())
    balance.replace(["a", "b"])
    after = homes(balance)
    assert {key for key in before if before[key] != after[key]} == {
        key for key in before if before[key] == "c"
    }


def test_three_failures_in_a_row_eject_and_each_time_for_twice_as_long() -> None:
    """1 s, then 2 s after one more failure, 60 s at most; an answer forgets all of it."""
    balance = Balance(ABC)
    fail(balance, "a", 0.0, times=2)
    assert balance.ejected(0.0) == []
    fail(balance, "a", 0.0, times=1)
    assert balance.ejected(0.9) == ["a"]
    assert "a" not in {balance.choose(0.9) for _ in range(9)}
    assert balance.ejected(1.0) == []
    fail(balance, "a", 1.0, times=1)
    assert (balance.ejected(2.9), balance.ejected(3.0)) == (["a"], [])
    now = 3.0
    for _ in range(9):
        fail(balance, "a", now, times=1)
        now += MAX_EJECTION_S
    assert balance.ejected(now - 0.1) == ["a"]
    balance.end("a", 0, Outcome.ANSWERED, now)
    fail(balance, "a", now, times=2)
    assert balance.ejected(now) == []


def test_all_are_never_ejected() -> None:
    """Of three that fail two go; the only one never does; where all but an ejected one were tried, it is asked."""
    balance = Balance(ABC)
    for name in ABC:
        fail(balance, name, 0.0)
    assert balance.ejected(0.5) == ["a", "b"]
    assert balance.choose(0.5, avoid=["c"]) in ("a", "b")
    alone = Balance(["a"])
    fail(alone, "a", 0.0)
    assert alone.choose(0.0, avoid=["a"]) == "a"
    assert alone.ejected(0.0) == []


def test_what_is_known_outlasts_a_change_of_addresses() -> None:
    """a keeps its load; no addresses at all is a name that did not resolve; who went may still end its calls."""
    balance = Balance(["a", "b"])
    assert balance.choose(0.0, tokens=70, avoid=["b"]) == "a"
    balance.replace(["a", "d"])
    assert (balance.load_of("a"), balance.load_of("d")) == (70, 0)
    balance.replace([])
    assert balance.addresses == ["a", "d"]
    balance.end("b", 0, Outcome.UNREACHABLE, 0.0)
