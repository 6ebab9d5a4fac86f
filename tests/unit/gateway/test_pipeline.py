"""A call from its arrival to its row in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gateway.authentication import Authenticator
from gateway.call import Call
from gateway.errors import ClientGone, Forbidden, LimitExceeded, ModelNotFound, UpstreamFailed
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.pipeline import MAX_NAME_CHARS, Pipeline
from gateway.principal import Limits, Principal
from gateway.route_table import RouteTable, Sessions
from ledger.calls import CallRow

WHO = Principal("tg_a", "acme", frozenset({"infer"}), limits=Limits(tokens_per_min=1000))


@dataclass
class Rig:
    rows: list[CallRow] = field(default_factory=list)
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        limiter = Limiter(Counters.in_memory())
        self.pipeline = Pipeline(
            Authenticator(None), limiter, RouteTable(["chat", "embed"]), self.rows.append
        )

    async def begun(self, who: Principal = WHO, prompt: int = 100, output: int = 500) -> Call:
        call = Call("r1", "http", operation="chat", principal=who)
        self.pipeline.enter(call, "chat")
        self.pipeline.route(call, sticky=None, num_prompt_tokens=prompt)
        await self.pipeline.admit(call, prompt, output)
        return call


async def test_a_call_that_ended_well_is_charged_for_what_it_made() -> None:
    """600 reserved, 130 used: 870 are left for the next one."""
    rig = Rig()
    call = await rig.begun()
    call.num_output_tokens, call.finish_reason, call.status, call.endpoint = 30, "stop", 200, "t:1"
    await rig.pipeline.end(call)
    (row,) = rig.rows
    assert (row.outcome, row.tenant, row.service, row.version) == ("ok", "acme", "chat", "chat")
    assert (row.prompt_tokens, row.output_tokens, row.finish_reason) == (100, 30, "stop")
    await rig.begun(prompt=370, output=500)
    with pytest.raises(LimitExceeded):
        await rig.begun(prompt=1, output=1)


async def test_a_stream_that_the_client_left_counts_for_what_it_made() -> None:
    """12 of 500 tokens: cancelled, and 112 charged."""
    rig = Rig()
    call = await rig.begun()
    call.num_output_tokens = 12
    call.fail(ClientGone("left"))
    await rig.pipeline.end(call)
    assert rig.rows[0].outcome == "cancelled"
    await rig.begun(prompt=388, output=500)


async def test_what_never_reached_triton_costs_nothing() -> None:
    """Refused upstream before a token: all of it is given back."""
    rig = Rig()
    call = await rig.begun()
    call.fail(UpstreamFailed("gone"))
    await rig.pipeline.end(call)
    assert rig.rows[0].outcome == "error"
    await rig.begun(prompt=500, output=500)


async def test_a_refused_call_has_a_row_too() -> None:
    """The limit's words are in it."""
    rig = Rig()
    await rig.begun(prompt=1000, output=0)
    call = Call("r2", "http", operation="chat", principal=WHO)
    rig.pipeline.enter(call, "chat")
    with pytest.raises(LimitExceeded) as caught:
        await rig.pipeline.admit(call, 10, 10)
    call.fail(caught.value)
    await rig.pipeline.end(call)
    assert (rig.rows[0].outcome, rig.rows[0].error_code) == ("refused", "rate_limit_exceeded")
    assert "0 left" in rig.rows[0].error


async def test_a_health_check_has_no_row() -> None:
    """No operation, no call."""
    rig = Rig()
    await rig.pipeline.end(Call("r3", "http"))
    assert rig.rows == []


def test_what_a_key_may_not_use_is_not_told() -> None:
    """An unknown model's error lists the caller's own services only."""
    rig = Rig()
    call = Call("r4", "http", principal=Principal("k", "t", frozenset({"infer"}), frozenset({"chat", "no"})))
    with pytest.raises(Forbidden):
        rig.pipeline.enter(call, "embed")
    with pytest.raises(ModelNotFound, match=r"served: chat$"):
        rig.pipeline.enter(call, "no")


async def test_a_name_of_a_megabyte_is_cut_where_it_is_kept() -> None:
    """No such service, so nobody bounds it: each call was a log line and a buffered row of 1 MB."""
    rig = Rig()
    call = Call("r1", "http", operation="chat")
    with pytest.raises(ModelNotFound):
        rig.pipeline.enter(call, "x" * 1_000_000)
    assert len(call.service) == MAX_NAME_CHARS


def test_what_is_kept_of_a_session_does_not_grow_with_its_name() -> None:
    """100,000 sessions with names of 100 kB would be 10 GB."""
    sessions = Sessions()
    for index in range(100):
        sessions.keep("chat", f"{index}" + "s" * 100_000, "v1", 0.0)
    assert sessions.of("chat", "7" + "s" * 100_000, 1.0) == "v1"
    assert sessions.of("chat", "7", 1.0) is None
    assert max(len(key) for key in sessions._kept) <= 16
