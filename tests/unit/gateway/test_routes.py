"""What routes.yaml may say, and where calls go by it."""

from __future__ import annotations

import math

import pytest

from gateway.route_table import RouteTable
from gateway.routes import Routes, RoutesInvalid
from gateway.routing import Target, choose, position

MODELS = ["chat", "v1", "v2", "chat-long", "chat-small", "chat-acme"]

SPLIT = """
services:
  chat:
    versions: [{name: v1, percent: 95}, {name: v2, percent: 5}]
    long_context: {above_tokens: 4096, target: chat-long}
    tenants: {acme: chat-acme}
    degrade: {target: chat-small, max_output_tokens: 64}
"""


def routed(
    text: str = SPLIT,
    *,
    tenant: str = "",
    session: str = "s",
    num_prompt_tokens: int = 10,
    is_saturated: bool = False,
    kept: str | None = None,
) -> Target:
    route = Routes.parse(text, MODELS).of("chat")
    return choose(
        "chat",
        route,
        tenant=tenant,
        session=session,
        num_prompt_tokens=num_prompt_tokens,
        is_saturated=is_saturated,
        kept=kept,
    )


def split(percent: float) -> str:
    versions = f"{{name: v1, percent: {100 - percent}}}, {{name: v2, percent: {percent}}}"
    return f"services: {{chat: {{versions: [{versions}]}}}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{versions: [{name: v1, percent: 60}, {name: v2, percent: 60}]}", "60 + 60 = 120, must add up to 100"),
        ("{versions: [{name: v1, percent: 33.333}, {name: v2, percent: 66.666}]}", "= 99.999, must add up to 100"),
        ("{versions: [{name: v1, percent: 100}], degrade: v1}", "that is a version of the service itself"),
        ("{versions: [{name: nosuch, percent: 100}]}", "versions[0] = 'nosuch': no such model is served"),
        (
            "{versions: [{name: v1, percent: 100}], long_context: {above_tokens: -5, target: chat-long}}",
            "long_context.above_tokens = -5, must be a whole number from 1",
        ),
        ("{version: [{name: v1, percent: 100}]}", "'percent': 100}]: no such key; did you mean versions?"),
        ("{versions: [{name: v1, percent: 50}, {name: v1, percent: 50}]}", "versions name v1 twice"),
        ("{versions: []}", "services.chat.versions"),
        ("{versions: [{name: v1, percent: 100}], degrade: {}}", "changes nothing"),
        ("{versions: [{name: '../x', model: v1, percent: 100}]}", "services.chat.versions[0].name"),
        ("{versions: [{name: v1, percent: 100}], shadow: {target: v2, percent: 101}}", "must be from 0 to 100"),
        ("{versions: [{name: v1, percent: 100}], rollout: {previous: v1, next: v9}}", "rollout names v9"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_key_value_and_reason(text: str, words: str) -> None:
    """Each kind of shared/cases/routes_bad.yaml, and those beside it."""
    with pytest.raises(RoutesInvalid) as caught:
        Routes.parse(f"services: {{chat: {text}}}", MODELS)
    assert words in str(caught.value)


def test_refused_routes_leave_those_that_run() -> None:
    """Revision 1 goes on."""
    table = RouteTable(MODELS)
    table.put(split(5), 1)
    with pytest.raises(RoutesInvalid):
        table.put("services: {chat: {versions: [{name: nosuch, percent: 100}]}}", 2)
    assert table.revision == 1


@pytest.mark.parametrize("percent", [0, 1, 5, 33.3, 50, 99.5, 100])
def test_the_split_is_honoured_over_ten_thousand_calls(percent: float) -> None:
    """Within 3 sigma of the binomial; exactly at 0 and 100 (seldon-core#4067: 100:0 served 50:50)."""
    text = split(percent)
    route = Routes.parse(text, MODELS).of("chat")
    num = 10_000
    got = sum(
        choose("chat", route, tenant="", session=f"r{i}", num_prompt_tokens=1, is_saturated=False).model
        == "v2"
        for i in range(num)
    )
    share = percent / 100
    assert abs(got - num * share) <= 3 * math.sqrt(num * share * (1 - share))


def test_raising_a_percentage_moves_only_what_it_gains() -> None:
    """From 5 to 20 %: nobody who had v2 loses it."""
    before, after = (
        {i for i in range(2000) if routed(split(percent), session=str(i)).model == "v2"}
        for percent in (5, 20)
    )
    assert before < after


def test_a_session_keeps_its_version_while_it_has_any_share() -> None:
    """v1 fell from 95 to 1 %; at 0 even a kept session goes."""
    session = next(str(i) for i in range(100) if 1 < position("chat", str(i)) < 90)
    assert routed(split(99), session=session, kept="v1").model == "v1"
    assert routed(split(100), session=session, kept="v1").model == "v2"


def test_a_session_never_switches_while_the_split_is_changed_around_it() -> None:
    """50 sessions, twenty revisions between 5 and 95 %; a call without a session may go anywhere."""
    table = RouteTable(MODELS)
    seen: dict[str, set[str]] = {}
    for revision in range(1, 21):
        table.put(split(5 + revision * 9 % 91), revision)
        for session in map(str, range(50)):
            target, number = table.choose(
                "chat", tenant="", session=session, is_sticky=True, num_prompt_tokens=1
            )
            assert number == revision
            seen.setdefault(session, set()).add(target.model)
    assert all(len(models) == 1 for models in seen.values())


def test_a_tenant_with_a_model_of_its_own_goes_there_whatever_else_holds() -> None:
    """Long and saturated."""
    target = routed(tenant="acme", num_prompt_tokens=5000, is_saturated=True)
    assert (target.model, target.why) == ("chat-acme", "tenant acme")


def test_a_long_prompt_goes_to_its_own_instances() -> None:
    """4,096 is not above 4,096."""
    assert routed(num_prompt_tokens=4096).model in ("v1", "v2")
    target = routed(num_prompt_tokens=5012)
    assert (target.model, target.why) == ("chat-long", "long context: 5,012 > 4,096 tokens")


def test_a_saturated_service_degrades() -> None:
    """A simpler model and a shorter answer; or the shorter answer alone."""
    target = routed(is_saturated=True)
    assert (target.model, target.max_output_tokens, target.why) == ("chat-small", 64, "degraded: saturated")
    text = "services: {chat: {versions: [{name: v1, percent: 100}], degrade: {max_output_tokens: 32}}}"
    target = routed(text, is_saturated=True)
    assert (target.model, target.version_name, target.max_output_tokens) == ("v1", "v1", 32)


def test_shadows_are_drawn_apart_from_the_split() -> None:
    """10 % of 5,000 calls within 3 sigma, from both versions."""
    text = (
        "services: {chat: {versions: [{name: v1, percent: 50}, {name: v2, percent: 50}], "
        "shadow: {target: chat-small, percent: 10}}}"
    )
    targets = [routed(text, session=str(i)) for i in range(2000)]
    copied = [target for target in targets if target.shadow == "chat-small"]
    assert abs(len(copied) - 200) <= 3 * math.sqrt(2000 * 0.1 * 0.9)
    assert {target.model for target in copied} == {"v1", "v2"}


def test_a_service_that_is_not_named_is_the_model_of_that_name() -> None:
    """`chat` without routes; with routes the models stay callable by their own names."""
    table = RouteTable(MODELS)
    target, revision = table.choose("v2", tenant="", session="s", is_sticky=False, num_prompt_tokens=1)
    assert (target.model, target.why, revision) == ("v2", "only version", 0)
    table.put("services: {shop: {versions: [{name: v1, percent: 100}]}}", 1)
    assert table.services == ["shop", *MODELS]


def test_a_service_is_saturated_when_all_its_versions_with_a_share_are() -> None:
    """v2 has 0 %, and does not count."""
    full = {"v1"}
    table = RouteTable(MODELS, is_saturated=lambda model: model in full)
    table.put(split(0), 1)
    assert table.is_saturated("chat")
    table.put(split(5), 2)
    assert not table.is_saturated("chat")


def test_a_context_policy_is_checked_with_the_rest() -> None:
    """retrieve without a model to embed with; one that is not served; a key that does not exist."""
    head = "services: {chat: {versions: [{name: chat, percent: 100}], context: "
    wanted = Routes.parse(head + "{policy: retrieve, embed_model: v2}}}", ["chat", "v2"]).of("chat").context
    assert (wanted.policy, wanted.output_tokens) == ("retrieve", 256)
    assert Routes().of("chat").context.policy == "reject"
    for text, problem in (
        ("{policy: retrieve}}}", "needs embed_model"),
        ("{policy: retrieve, embed_model: v3}}}", "no such model is served"),
        ("{policy: truncat}}}", "policy"),
        ("{sumary_tokens: 100}}}", "summary_tokens"),
    ):
        with pytest.raises(RoutesInvalid, match=problem):
            Routes.parse(head + text, ["chat", "v2"])
