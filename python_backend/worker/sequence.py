"""One request inside the engine, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from contracts.sampling import SamplingParams
from python_backend.worker.timeline import Timeline


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass
class Sequence:
    """Tokens, blocks and progress of one request.

    `tokens` is prompt + output. `num_computed` of them have their K and V in the cache; the next step runs
    from there: one token while decoding, a chunk while prefilling (also after a preemption, which sets it to 0).
    """

    request_id: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    deadline_unix_s: float | None = None
    tenant: str = ""
    priority: int = 0
    """Higher goes first."""
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens whose blocks were found published when the request was first admitted."""
    num_preemptions: int = 0
    timeline: Timeline = field(default_factory=lambda: Timeline(0.0, 0))
    arrival: int = 0
    """Counts up with every request; a preemption does not change it."""
    chain: list[bytes] = field(default_factory=list)
    """Digests of its full blocks, as far as they were needed."""
    num_published: int = 0
    """Leading blocks that were found published, or have been offered."""
    blocks: list[int] = field(default_factory=list)
    slots: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """slots[i]: the cache slot of token i, for every token that the blocks have room for."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the newest token is missing from the cache."""
        return self.num_computed > 0 and self.num_uncomputed == 1

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first: by priority, then by arrival."""
        return (-self.priority, self.arrival)

    def is_expired(self, now_unix_s: float) -> bool:
        return self.deadline_unix_s is not None and now_unix_s >= self.deadline_unix_s
