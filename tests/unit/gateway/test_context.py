"""Conversations that are too long for 256 tokens, a token a byte, against models whose calls are played."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.stack import ServedModel
from gateway.authentication import Authenticator
from gateway.call import Call
from gateway.catalog import Catalog, load_catalog
from gateway.context import ContextManager, Fitted
from gateway.context_calls import Behalf, ContextCalls
from gateway.context_turns import CUT_NOTE
from gateway.errors import ContextLengthExceeded, GatewayError, LimitExceeded, UpstreamUnavailable
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.pipeline import Pipeline
from gateway.principal import Limits, Principal
from gateway.route_table import RouteTable
from gateway.routes import Context
from gateway.testing import write_tiny_model
from gateway.triton_client import Attempts, GenerateCall, GenerateReply
from ledger.calls import CallRow

LIMIT = 256


def talk(num_turns: int, length: int = 20, system: str = "be brief") -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}]
    for turn in range(num_turns):
        messages.append({"role": "user", "content": f"q{turn} ".ljust(length, "x")})
        messages.append({"role": "assistant", "content": f"a{turn} ".ljust(length, "y")})
    return [*messages, {"role": "user", "content": "the newest question"}]


@dataclass
class Rig:
    """`asked` and `embedded`: what went to the models."""

    catalog: Catalog
    asked: list[str] = field(default_factory=list)
    embedded: list[str] = field(default_factory=list)
    rows: list[CallRow] = field(default_factory=list)
    error: GatewayError | None = None
    summary: str = "they counted"
    vectors: dict[str, tuple[float, float]] = field(default_factory=dict)
    principal: Principal = field(default=Principal("tg_a", "acme", frozenset({"infer"})))

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(
            Authenticator(None),
            Limiter(Counters.in_memory()),
            RouteTable(["chat", "embed"]),
            self.rows.append,
        )
        self.manager = ContextManager(
            ContextCalls(self.catalog, self.pipeline, self.generate, self, max_embed_batch=4)
        )

    async def generate(self, call: GenerateCall) -> GenerateReply:
        if self.error is not None:
            raise self.error
        self.asked.append(call.text)
        return GenerateReply(self.summary, 5, "stop")

    async def embed(
        self,
        model: str,
        request_id: str,
        texts: Sequence[str],
        deadline_unix_s: float | None = None,
        attempts: Attempts | None = None,
    ) -> list[bytes]:
        if self.error is not None:
            raise self.error
        self.embedded += texts
        found = [next((v for key, v in self.vectors.items() if key in text), (0.0, 1.0)) for text in texts]
        return [struct.pack("<2f", *vector) for vector in found]

    async def fit(self, messages: list[dict[str, str]], limit: int = LIMIT, **policy: object) -> Fitted:
        model = self.catalog.find("chat")
        text = model.render(messages)
        (count,) = await model.count_tokens([text])
        call = Call("r1", "http", operation="chat", principal=self.principal, service="chat")
        return await self.manager.fit(
            Behalf(call),
            model,
            Context.model_validate({"output_tokens": 40, "summary_tokens": 16} | policy),
            messages,
            Fitted(text, count),
            limit=limit,
            max_output_tokens=None,
        )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    path = str(write_tiny_model(tmp_path / "tiny"))
    (tmp_path / "tiny" / "config.json").write_text('{"max_position_embeddings": 600}')
    kinds = {"chat": "generate", "embed": "embed"}
    return Rig(load_catalog(ServedModel(name=n, kind=k, weights="w", path=path) for n, k in kinds.items()))  # type: ignore[arg-type]


async def test_what_fits_goes_as_it_is(rig: Rig) -> None:
    """And under `reject` what does not fit is left to be refused."""
    short = await rig.fit(talk(1), policy="summarize")
    assert short.done is None
    long = await rig.fit(talk(9), policy="reject")
    assert (long.done, long.num_tokens > LIMIT) == (None, True)


async def test_the_middle_goes_and_a_note_says_so(rig: Rig) -> None:
    """Nine turns of which the newest stay: system prompt first, the note, the newest question last."""
    fitted = await rig.fit(talk(9), policy="truncate")
    assert fitted.num_tokens <= LIMIT - 40
    assert fitted.text.startswith("<|im_start|>system\nbe brief<|im_end|>")
    assert "the newest question" in fitted.text
    assert "q0 " not in fitted.text
    assert fitted.done is not None
    left_out = fitted.done.messages_left_out
    assert f"[{left_out} earlier messages are left out here]\n\nq{left_out // 2} " in fitted.text
    assert fitted.done.words().startswith("truncate: 605 → ")


async def test_a_growing_session_begins_with_the_same_tokens_for_a_while(rig: Rig) -> None:
    """Twenty lengths, steps of about three turns: at most ten different beginnings."""
    notes = set()
    for turns in range(20):
        fitted = await rig.fit(talk(15 + turns, length=8), limit=600, policy="truncate")
        notes.add(fitted.text[: fitted.text.index("]")])
    assert len(notes) <= 10


async def test_a_message_too_long_for_all_is_cut_in_its_middle(rig: Rig) -> None:
    """900 characters: the beginning and the end of it stay."""
    messages = [*talk(3)[:-1], {"role": "user", "content": "BEGIN" + "z" * 900 + "END"}]
    fitted = await rig.fit(messages, policy="truncate")
    assert fitted.num_tokens <= LIMIT - 40
    assert "BEGIN" in fitted.text
    assert f"{CUT_NOTE}z" in fitted.text
    assert "END<|im_end|>" in fitted.text
    assert fitted.done is not None
    assert fitted.done.message_was_cut


async def test_a_system_prompt_that_leaves_no_room_is_refused_with_the_numbers(rig: Rig) -> None:
    """It is never cut: 230 of 216 tokens."""
    with pytest.raises(ContextLengthExceeded, match=r"216 fit the context of 256 .*system prompt \(2"):
        await rig.fit(talk(2, system="s" * 230), policy="truncate")
    with pytest.raises(ContextLengthExceeded):
        await rig.fit([{"role": "system", "content": "s" * 300}], policy="summarize")


async def test_older_turns_become_a_summary_that_is_paid_for_once(rig: Rig) -> None:
    """The second time, and for a session one turn longer within the step, nothing is asked."""
    fitted = await rig.fit(talk(9), policy="summarize")
    assert fitted.num_tokens <= LIMIT - 40
    assert "earlier messages: they counted]\n\nq" in fitted.text
    assert "q0 " in rig.asked[0]
    assert fitted.done is not None
    assert fitted.done.policy == "summarize"
    assert fitted.done.tokens_used > 0
    num_asked = len(rig.asked)
    again = await rig.fit(talk(9), policy="summarize")
    assert (again.text, len(rig.asked)) == (fitted.text, num_asked)
    assert again.done is not None
    assert again.done.tokens_used == 0


async def test_a_longer_session_reads_its_last_summary_and_what_came_since(rig: Rig) -> None:
    """Turn 0 is read by the first call alone."""
    await rig.fit(talk(6), policy="summarize")
    num_asked = len(rig.asked)
    await rig.fit(talk(12), policy="summarize")
    later = rig.asked[num_asked:]
    assert later
    assert all("they counted" in text and "q0 " not in text for text in later)


async def test_another_tenants_summary_is_not_used(rig: Rig) -> None:
    """How fast the answer comes would tell that somebody asked the same."""
    await rig.fit(talk(9), policy="summarize")
    num_asked = len(rig.asked)
    rig.principal = Principal("tg_b", "other", frozenset({"infer"}))
    await rig.fit(talk(9), policy="summarize")
    assert len(rig.asked) == 2 * num_asked


async def test_the_calls_for_a_summary_are_charged_and_logged(rig: Rig) -> None:
    """A row each; where the key's limit is used up, the request is refused as such."""
    await rig.fit(talk(9), policy="summarize")
    assert {(row.request_id, row.why, row.outcome, row.key_id) for row in rig.rows} == {
        ("r1", "summary of older turns", "ok", "tg_a")
    }
    rig.principal = Principal("tg_b", "b", frozenset({"infer"}), limits=Limits(tokens_per_min=100))
    with pytest.raises(LimitExceeded):
        await rig.fit(talk(9), policy="summarize")


@pytest.mark.parametrize("policy", ["summarize", "retrieve"])
async def test_a_model_that_can_not_help_is_done_without(rig: Rig, policy: str) -> None:
    """The middle goes then, and the answer says why."""
    rig.error = UpstreamUnavailable("nobody there")
    fitted = await rig.fit(talk(9), policy=policy, embed_model="embed")
    assert fitted.num_tokens <= LIMIT - 40
    assert fitted.done is not None
    assert (fitted.done.policy, fitted.done.problem) == ("truncate", f"can't {policy}: nobody there")


async def test_the_turns_nearest_to_the_question_stay(rig: Rig) -> None:
    """Turns 1 and 3 of twelve point its way; what lies between is told as missing; each turn is embedded once."""
    rig.vectors = {"newest": (1.0, 0.0), "q1 ": (1.0, 0.1), "q3 ": (0.9, 0.2)}
    fitted = await rig.fit(talk(12, length=8), policy="retrieve", embed_model="embed", recent_turns=1)
    assert fitted.num_tokens <= LIMIT - 40
    assert "q1 " in fitted.text
    assert fitted.text.index("[2 earlier messages are left out here]") < fitted.text.index("q1 ")
    assert "q0 " not in fitted.text
    assert fitted.done is not None
    assert fitted.done.turns_retrieved >= 1
    num_embedded = len(rig.embedded)
    assert num_embedded == 13
    await rig.fit(talk(13, length=8), policy="retrieve", embed_model="embed", recent_turns=1)
    assert len(rig.embedded) == num_embedded + 1
