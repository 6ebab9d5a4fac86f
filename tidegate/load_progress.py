"""The node's loading, shown at the terminal: its log's progress lines turned into a bar, or a line now and then."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tidegate.models.progress import Progress

# python_backend/node/loading.py writes them: "weights NAME: 120 of 540 MiB (22 %)", and a last one.
_ON_THE_WAY = re.compile(
    r"(?:: |\")(?P<step>(?:weights|comparing weights|KV pool)[^:]*): (?P<done>\d+) of (?P<total>\d+) MiB"
)
_IN_PLACE = re.compile(
    r"(?:: |\")(?P<text>(?P<step>(?:weights|comparing weights|KV pool)[^:]*): \d+ MiB in place[^\"]*)"
)


@dataclass(frozen=True)
class Loading:
    step: str
    done_bytes: int
    total_bytes: int


def newest_loading(log_text: str) -> Loading | None:
    """What is being loaded as the log ends; None: nothing, or it is there."""
    for line in reversed(log_text.splitlines()):
        if _IN_PLACE.search(line):
            return None
        if match := _ON_THE_WAY.search(line):
            return Loading(match["step"], int(match["done"]) << 20, int(match["total"]) << 20)
    return None


def result_of(step: str, log_text: str) -> str:
    """The last line of a step that is done."""
    for line in reversed(log_text.splitlines()):
        if (match := _IN_PLACE.search(line)) and match["step"] == step:
            return match["text"]
    return f"{step}: not finished"


def showing(
    is_ready: Callable[[], Awaitable[bool]], log_text: Callable[[], str], progress: Progress
) -> Callable[[], Awaitable[bool]]:
    """`is_ready`, which also moves `progress` on as often as it is asked. Quick steps are not mentioned."""
    step, done_bytes = "", 0

    async def is_ready_and_shown() -> bool:
        nonlocal step, done_bytes
        text = log_text()
        loading = newest_loading(text)
        if step and (loading is None or loading.step != step):
            progress.say(f"tidegate: {result_of(step, text)}")
            step = ""
        if loading is not None:
            if loading.step != step:
                step, done_bytes = loading.step, 0
                progress.start(step, loading.total_bytes)
            progress.advance(loading.done_bytes - done_bytes)
            done_bytes = loading.done_bytes
        return await is_ready()

    return is_ready_and_shown
