"""What is learned of one request while its answer comes, and the row that it becomes."""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass, field

from loadtest.call import Call
from loadtest.generating.messages import MAX_ERROR_CHARS, Row
from loadtest.records import Status


class CallFailed(Exception):
    """The server, or the way to it, said no. The text begins with the kind: `http 503: ...`."""


@dataclass(slots=True)
class Answer:
    """Times are CLOCK_MONOTONIC. A sender calls `sent`, `chunk` for each piece with a token, and `ended`."""

    t_sent_s: float = math.nan
    t_first_s: float = math.nan
    t_last_s: float = math.nan
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    instance: str = ""
    text: list[str] = field(default_factory=list)
    """Of a streamed answer: a later turn repeats it."""
    chunk_times_s: array[float] = field(default_factory=lambda: array("d"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("q"))
    is_told: bool = False
    """The server says of each chunk how many tokens it holds."""

    @property
    def is_sent(self) -> bool:
        return not math.isnan(self.t_sent_s)

    def sent(self) -> None:
        self.t_sent_s = time.monotonic()

    def chunk(self, now_s: float, num_tokens: int | None) -> None:
        """`num_tokens`: None where the server does not tell; then it is at least one."""
        if not self.chunk_times_s:
            self.t_first_s = now_s
        self.is_told = num_tokens is not None
        self.chunk_times_s.append(now_s)
        self.chunk_tokens.append(1 if num_tokens is None else num_tokens)

    def ended(self, now_s: float) -> None:
        self.t_last_s = now_s

    def ended_unary(self, now_s: float) -> None:
        """An answer in one piece: its first moment is its last."""
        self.t_first_s = self.t_last_s = now_s

    def count(self, num_output_tokens: int) -> None:
        """The server's total. Where it is all that is told, it is spread evenly: a chunk's mean is right then."""
        self.output_tokens = num_output_tokens
        if self.chunk_tokens and not self.is_told:
            each, more = divmod(num_output_tokens, len(self.chunk_tokens))
            self.chunk_tokens = array("q", [each + (at < more) for at in range(len(self.chunk_tokens))])

    def row(
        self, call: Call, index: int, turn: int, status: Status, error: str, t_intended_s: float, t0_s: float
    ) -> Row:
        """`t_intended_s` is on the run's clock already."""
        return Row(
            index=index,
            user=call.user,
            service=call.service,
            session=call.session,
            turn=turn,
            status=status,
            error=error[:MAX_ERROR_CHARS],
            instance=self.instance,
            t_intended_s=t_intended_s,
            t_sent_s=self.t_sent_s - t0_s,
            t_first_s=self.t_first_s - t0_s,
            t_last_s=self.t_last_s - t0_s,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            chunk_times_s=array("d", [at_s - t0_s for at_s in self.chunk_times_s]).tobytes(),
            chunk_tokens=self.chunk_tokens.tobytes(),
        )
