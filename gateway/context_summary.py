"""Summaries of a conversation's older turns, by the model that answers it.

A summary is kept under the hash of the turns it is of. When more turns become old, the model reads the last summary
and what came since, so that a growing session pays for each turn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.catalog import GatewayModel
from gateway.context_cache import Cache, hash_of
from gateway.context_calls import Behalf, ContextCalls
from gateway.context_turns import Turn, as_text, cut_middle
from gateway.errors import InvalidRequest, UpstreamFailed

MAX_CACHED = 4096
MAX_CALLS = 8
"""Of the model for one request. Past that the turns are cut to their share first."""
FULL_PART = 0.9
"""Of the room for turns, that is used: the tokens of texts together are not quite the sum of each alone."""
MIN_ROOM_TOKENS = 64
_TASK = (
    "Summarize the conversation below in at most {num_words} words. Keep names, numbers, decisions, wishes and "
    "open questions. Write only the summary.\n\n{text}"
)
_SO_FAR = "Summary of what came before:\n{summary}\n\nWhat came since:\n"


@dataclass(frozen=True)
class Summary:
    text: str
    num_tokens_used: int
    """By the calls that made it now; 0: it was known."""


class Summarizer:
    """One for the gateway."""

    def __init__(self, calls: ContextCalls) -> None:
        self._calls = calls
        self._known: Cache[str] = Cache(MAX_CACHED)

    async def summarize(
        self, behalf: Behalf, model: GatewayModel, turns: Sequence[Turn], max_tokens: int
    ) -> Summary:
        """Raises what a call of the model raises."""
        keys = _keys(turns, behalf.call.principal.tenant, model.name, str(max_tokens))
        done, text = 0, ""
        for count in range(len(turns), 0, -1):
            if (known := self._known.get(keys[count])) is not None:
                done, text = count, known
                break
        num_used = 0
        for piece in await _pieces(model, turns[done:], await _room(model, max_tokens)):
            text, used = await self._extend(behalf, model, text, piece, max_tokens)
            num_used += used
            done += len(piece)
            self._known.put(keys[done], text)
        return Summary(text, num_used)

    async def _extend(
        self, behalf: Behalf, model: GatewayModel, before: str, piece: Sequence[str], max_tokens: int
    ) -> tuple[str, int]:
        prompt = _prompt(model, before, "\n".join(piece), max_tokens)
        (count,) = await model.count_tokens([prompt])
        reply = await self._calls.summarize(
            behalf, model, prompt, count, min(max_tokens, model.room_for(count, "summary"))
        )
        text = reply.text.strip()
        if not text:
            raise UpstreamFailed("the model wrote an empty summary")
        return text, count + reply.num_output_tokens


def _prompt(model: GatewayModel, before: str, text: str, max_tokens: int) -> str:
    so_far = _SO_FAR.format(summary=before) if before else ""
    # 4 tokens are 3 words in English; the model is told less than it may write.
    task = _TASK.format(num_words=max(8, max_tokens * 2 // 3), text=so_far + text)
    return model.render([{"role": "user", "content": task}])


async def _room(model: GatewayModel, max_tokens: int) -> int:
    """For the turns that one call reads, beside the task, the summary so far and the new one."""
    (frame,) = await model.count_tokens([_prompt(model, "-", "", max_tokens)])
    room = int((model.max_context_tokens - frame - 2 * max_tokens) * FULL_PART)
    if room < MIN_ROOM_TOKENS:
        raise InvalidRequest(
            f"the context of model {model.name!r}, {model.max_context_tokens} tokens, is too small for summaries "
            f"of {max_tokens}: {room} are left for what is read, {MIN_ROOM_TOKENS} are needed"
        )
    return room


def _keys(turns: Sequence[Turn], *context: str) -> list[bytes]:
    """The key of the first n turns stands at n."""
    keys = [hash_of(*context)]
    for turn in turns:
        said = (text for message in turn for text in (message["role"], message["content"]))
        keys.append(hash_of(keys[-1].hex(), *said))
    return keys


async def _pieces(model: GatewayModel, turns: Sequence[Turn], room: int) -> list[list[str]]:
    """The turns as texts, grouped so that each group fits `room` tokens."""
    texts = [as_text(turn) for turn in turns]
    costs = await model.count_tokens(texts)
    room_of_one = room
    if sum(costs) > room * MAX_CALLS:
        room_of_one = max(room * MAX_CALLS // len(texts), 1)
    pieces: list[list[str]] = []
    left = 0
    for text, cost in zip(texts, costs, strict=True):
        if cost > room_of_one:
            text, cost = cut_middle(text, len(text) * room_of_one // cost), room_of_one
        if not pieces or cost > left:
            pieces.append([])
            left = room
        pieces[-1].append(text)
        left -= cost
    return pieces
