"""A conversation as turns: split, put together again with notes where some are missing, cut. Pure.

A turn is a user's message and all up to the next one. Turns are left out whole, because many chat templates refuse
two messages of one role in a row; notes stand in the user's message, because many refuse a system message anywhere
but first, and because what users wrote must not come back with a system prompt's weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Message = Mapping[str, str]
Turn = tuple[Message, ...]


@dataclass(frozen=True)
class Conversation:
    system: Turn
    """The messages before the first one of a user or an assistant."""
    turns: tuple[Turn, ...]


def split(messages: Sequence[Message]) -> Conversation:
    start = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    turns: list[list[Message]] = []
    for message in messages[start:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return Conversation(tuple(messages[:start]), tuple(map(tuple, turns)))


def num_messages(turns: Sequence[Turn]) -> int:
    return sum(map(len, turns))


def as_text(turn: Turn) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in turn)


def put_together(
    conversation: Conversation, kept: Sequence[int], notes: Mapping[int, str]
) -> list[dict[str, str]]:
    """`kept`: which turns, in order. `notes`: a text to stand at the beginning of such a turn."""
    messages = [dict(message) for message in conversation.system]
    for index in kept:
        turn = [dict(message) for message in conversation.turns[index]]
        if note := notes.get(index):
            turn[0]["content"] = f"{note}\n\n{turn[0]['content']}"
        messages += turn
    return messages


def gap_notes(conversation: Conversation, kept: Sequence[int]) -> dict[int, str]:
    """A note before each kept turn whose predecessor is missing."""
    notes, before = {}, -1
    for index in kept:
        if missing := conversation.turns[before + 1 : index]:
            notes[index] = gap_note(num_messages(missing))
        before = index
    return notes


def gap_note(count: int) -> str:
    return f"[{count} earlier {'message is' if count == 1 else 'messages are'} left out here]"


def summary_note(summary: str, count: int) -> str:
    return f"[Summary of {count} earlier {'message' if count == 1 else 'messages'}: {summary}]"


CUT_NOTE = "\n[... the middle of this message is left out ...]\n"


def cut_middle(text: str, num_chars: int) -> str:
    """So many of its characters, half from the beginning and half from the end."""
    if len(text) <= num_chars:
        return text
    head = (num_chars + 1) // 2
    tail = num_chars - head
    return text[:head] + CUT_NOTE + (text[-tail:] if tail else "")


def with_last_cut(conversation: Conversation, num_chars: int) -> Conversation:
    """The longest message of the last turn is cut to so many characters."""
    *before, last = conversation.turns
    longest = longest_message(last)
    cut = tuple(
        {**message, "content": cut_middle(message["content"], num_chars)} if at == longest else message
        for at, message in enumerate(last)
    )
    return Conversation(conversation.system, (*before, cut))


def longest_message(turn: Turn) -> int:
    return max(range(len(turn)), key=lambda at: len(turn[at]["content"]))
