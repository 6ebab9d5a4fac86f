"""Makes a conversation that is too long fit its model, the way its service says, or refuses it with the numbers.

What was left out is told: to the model by notes in the prompt, to the client in the answer's `tidegate` field, to
the operator in the call log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.catalog import GatewayModel
from gateway.context_calls import Behalf, ContextCalls
from gateway.context_plan import first_kept, most_relevant, newest_that_fit
from gateway.context_retrieval import Retriever
from gateway.context_summary import Summarizer
from gateway.context_turns import (
    CUT_NOTE,
    Conversation,
    Message,
    gap_note,
    gap_notes,
    longest_message,
    num_messages,
    put_together,
    split,
    summary_note,
    with_last_cut,
)
from gateway.errors import (
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    UpstreamUnavailable,
)
from gateway.routes import Context

logger = logging.getLogger("gateway.context")

MAX_ROUNDS = 6
MIN_MESSAGE_TOKENS = 16
"""A message is not cut to less."""


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done, as the answer's `tidegate.context` says it."""

    policy: str
    """The one that did it: "truncate" also where another one failed."""
    prompt_tokens_before: int
    prompt_tokens: int
    messages_left_out: int = 0
    message_was_cut: bool = False
    turns_retrieved: int = 0
    tokens_used: int = 0
    """By the calls that summarised or embedded; 0 where all was known already."""
    problem: str = ""
    """Why it was not done as the service says."""

    def words(self) -> str:
        """For the call log."""
        text = f"{self.policy}: {self.prompt_tokens_before:,} → {self.prompt_tokens:,} tokens"
        if self.messages_left_out:
            text += f", {self.messages_left_out} messages left out"
        if self.message_was_cut:
            text += ", the newest one cut"
        if self.turns_retrieved:
            text += f", {self.turns_retrieved} older turns retrieved"
        if self.tokens_used:
            text += f", {self.tokens_used:,} tokens used for it"
        return text + (f" ({self.problem})" if self.problem else "")


@dataclass(frozen=True)
class Fitted:
    """The prompt as it goes to the model. `done` None: it fitted as it was."""

    text: str
    num_tokens: int
    done: Done | None = None


@dataclass
class _Draft:
    """One request's way to a prompt that fits."""

    behalf: Behalf
    model: GatewayModel
    policy: Context
    conversation: Conversation
    cost_of_system: int
    costs: list[int]
    """Of the turns."""
    kept: Sequence[int] = ()
    notes: dict[int, str] | None = None
    was_cut: bool = False
    num_retrieved: int = 0
    num_used: int = 0
    problem: str = ""


class ContextManager:
    """One for the gateway."""

    def __init__(self, calls: ContextCalls) -> None:
        self._summarizer = Summarizer(calls)
        self._retriever = Retriever(calls)

    async def fit(
        self,
        behalf: Behalf,
        model: GatewayModel,
        policy: Context,
        messages: Sequence[Message],
        prompt: Fitted,
        *,
        limit: int,
        max_output_tokens: int | None,
    ) -> Fitted:
        """`prompt`: of all messages. `limit`: of prompt and answer together.

        Raises ContextLengthExceeded, and what a call of a model raises because of the caller's own limits.
        """
        answer = min(policy.output_tokens, max_output_tokens or policy.output_tokens, max(limit // 2, 1))
        room = limit - answer
        if policy.policy == "reject" or prompt.num_tokens <= room:
            return prompt
        draft = await _draft(behalf, model, policy, messages, prompt.num_tokens)
        now = room
        smallest = prompt.num_tokens
        for _ in range(MAX_ROUNDS):
            if not draft.conversation.turns or not await self._shorten(draft, now):
                break
            short = put_together(draft.conversation, draft.kept, draft.notes or {})
            text = model.render(short)
            (count,) = await model.count_tokens([text])
            if count <= room:
                return Fitted(text, count, _done(draft, prompt.num_tokens, count))
            # What single messages cost was an estimate.
            smallest = min(smallest, count)
            now -= count - room
        raise ContextLengthExceeded(
            f"the prompt has {prompt.num_tokens:,} tokens, {room:,} fit the context of {limit:,} tokens with "
            f"{answer:,} for the answer; its system prompt ({draft.cost_of_system:,} tokens) and its newest turn "
            f"({draft.costs[-1] if draft.costs else 0:,}) can't be made to fit; shorten them",
            "messages",
        )

    async def _shorten(self, draft: _Draft, room: int) -> bool:
        """False: it can't be made that short."""
        room -= draft.cost_of_system
        draft.notes, draft.num_retrieved = None, 0
        done = False
        if draft.policy.policy != "truncate" and not draft.problem:
            shorten = self._summarize if draft.policy.policy == "summarize" else self._retrieve
            try:
                done = await shorten(draft, room)
            except (UpstreamUnavailable, InternalError, ModelNotFound, InvalidRequest) as exc:
                draft.problem = f"can't {draft.policy.policy}: {exc.message}"
                logger.warning("request %s: %s", draft.behalf.call.request_id, draft.problem)
        return done or await _truncate(draft, room)

    async def _summarize(self, draft: _Draft, room: int) -> bool:
        """The older turns become a summary in front of the first one that stays."""
        (frame,) = await draft.model.count_tokens([summary_note("", num_messages(draft.conversation.turns))])
        room -= frame + draft.policy.summary_tokens
        if draft.costs[-1] > room:
            return False
        first = first_kept(draft.costs, room)
        if first == 0:
            return False
        older = draft.conversation.turns[:first]
        summary = await self._summarizer.summarize(
            draft.behalf, draft.model, older, draft.policy.summary_tokens
        )
        draft.num_used += summary.num_tokens_used
        draft.kept = range(first, len(draft.costs))
        draft.notes = {first: summary_note(summary.text, num_messages(older))}
        return True

    async def _retrieve(self, draft: _Draft, room: int) -> bool:
        """The newest turns stay, and of the older ones those that have most to do with the last."""
        (gap,) = await draft.model.count_tokens([gap_note(num_messages(draft.conversation.turns))])
        room -= gap
        if draft.costs[-1] > room or len(draft.costs) == 1:
            return False
        first = newest_that_fit(draft.costs, room, draft.policy.recent_turns)
        turns = draft.conversation.turns
        scores, num_used = await self._retriever.scores(
            draft.behalf, draft.policy.embed_model or "", turns[:first], turns[-1]
        )
        draft.num_used += num_used
        found = most_relevant(draft.costs[:first], scores, room - sum(draft.costs[first:]), gap)
        draft.num_retrieved = len(found)
        draft.kept = [*found, *range(first, len(turns))]
        draft.notes = gap_notes(draft.conversation, draft.kept)
        return True


async def _truncate(draft: _Draft, room: int) -> bool:
    """Whole turns after the system prompt go first, then the middle of the newest turn's longest message."""
    turns = draft.conversation.turns
    gap, cut = await draft.model.count_tokens([gap_note(num_messages(turns)), CUT_NOTE])
    if len(turns) > 1:
        room -= gap
    first = first_kept(draft.costs, room)
    draft.kept = range(first, len(turns))
    draft.notes = gap_notes(draft.conversation, draft.kept)
    if first < len(turns) - 1 or draft.costs[-1] <= room:
        return True
    longest = turns[-1][longest_message(turns[-1])]["content"]
    (cost,) = await draft.model.count_tokens([longest])
    left = cost - (draft.costs[-1] - room) - cut
    if left < MIN_MESSAGE_TOKENS or left >= cost:
        return False
    draft.conversation = with_last_cut(draft.conversation, len(longest) * left // cost)
    draft.costs[-1] -= cost - left - cut
    draft.was_cut = True
    return True


async def _draft(
    behalf: Behalf,
    model: GatewayModel,
    policy: Context,
    messages: Sequence[Message],
    num_tokens: int,
) -> _Draft:
    """What the template adds is shared out evenly: a message alone can't be rendered, some templates refuse it."""
    counts = await model.count_tokens([message["content"] for message in messages])
    added = -(-max(0, num_tokens - sum(counts)) // len(messages))
    costs = [count + added for count in counts]
    conversation = split(messages)
    at = len(conversation.system)
    of_turns = []
    for turn in conversation.turns:
        of_turns.append(sum(costs[at : at + len(turn)]))
        at += len(turn)
    of_system = sum(costs[: len(conversation.system)])
    return _Draft(behalf, model, policy, conversation, of_system, of_turns)


def _done(draft: _Draft, before: int, after: int) -> Done:
    did_truncate = draft.was_cut or draft.problem or draft.policy.policy == "truncate"
    kept = num_messages([draft.conversation.turns[index] for index in draft.kept])
    return Done(
        policy="truncate" if did_truncate else draft.policy.policy,
        prompt_tokens_before=before,
        prompt_tokens=after,
        messages_left_out=num_messages(draft.conversation.turns) - kept,
        message_was_cut=draft.was_cut,
        turns_retrieved=draft.num_retrieved,
        tokens_used=draft.num_used,
        problem=draft.problem,
    )
