"""Decode steps as CUDA graphs: one per (sequences, keys), replayed with the step's numbers in static memory.

A step with fewer sequences than the graph repeats the first: the same token, slot and pages, so the same K and V
are written to the same place once more, and nothing outside of the batch's own blocks is touched. No null block has
to be leased. Keys beyond a sequence's length are masked, or not read at all.

Capturing runs nothing, so graphs over the node's arena are made before the worker holds a block of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from python_backend.worker.attention_cuda import DecodeIndex, Indices, decode_arrays

if TYPE_CHECKING:  # the GPU checks run where msgspec is not installed
    from python_backend.worker.scheduler import Scheduled

log = logging.getLogger(__name__)

NUM_SEQS = (1, 2, 4, 8, 16, 32, 64)
FIRST_TOKENS = 512
TOKENS_RATIO = 4
"""Padded attention reads as many keys as the graph has: at most four times what is needed, in few graphs."""

MAX_PADDED_KEYS = 64 * 2048
"""In a graph of padded attention, which gathers all of them: 0.5 GB for a layer with 8 heads of 128 in bf16."""


@dataclass(frozen=True, order=True)
class GraphShape:
    num_seqs: int
    max_tokens: int
    """No sequence has more."""


@dataclass(frozen=True)
class GraphLadder:
    """Which shapes are captured, and which of them a step uses. Paged attention reads what is there, whatever the
    graph has room for, so it has one length; padded attention has a few."""

    max_context_tokens: int
    is_paged: bool
    num_seqs: tuple[int, ...] = NUM_SEQS

    def lengths(self) -> list[int]:
        if self.is_paged:
            return [self.max_context_tokens]
        lengths, length = [], FIRST_TOKENS
        while length < self.max_context_tokens:
            lengths.append(length)
            length *= TOKENS_RATIO
        return [*lengths, self.max_context_tokens]

    def shapes(self) -> list[GraphShape]:
        """Largest first: what the smaller ones need of memory, they find in the pool already."""
        shapes = [
            GraphShape(num, length)
            for length in reversed(self.lengths())
            for num in sorted(self.num_seqs, reverse=True)
        ]
        return [
            shape for shape in shapes if self.is_paged or shape.num_seqs * shape.max_tokens <= MAX_PADDED_KEYS
        ]

    def choose(self, num_seqs: int, longest: int) -> GraphShape | None:
        """The smallest that fits; None: run without a graph."""
        fitting = [s for s in self.shapes() if s.num_seqs >= num_seqs and s.max_tokens >= longest]
        return min(fitting, default=None)


@dataclass(frozen=True)
class DecodeInputs:
    """All numbers of a decode step, in one tensor so that one copy brings them."""

    flat: Tensor
    """int64: ids, positions, write slots, lengths [B each], then the table [B, columns]."""
    shape: GraphShape
    columns: int

    @classmethod
    def of(cls, shape: GraphShape, page_tokens: int, device: torch.device) -> DecodeInputs:
        """Zeros: slot 0 and length 0 are never run."""
        columns = -(-shape.max_tokens // page_tokens)
        flat = torch.zeros(shape.num_seqs * (4 + columns), dtype=torch.int64, device=device)
        return cls(flat, shape, columns)

    @property
    def ids(self) -> Tensor:
        return self._part(0)

    @property
    def positions(self) -> Tensor:
        return self._part(1)

    def index(self) -> DecodeIndex:
        num = self.shape.num_seqs
        table = self.flat[4 * num :].view(num, self.columns)
        return DecodeIndex(self._part(2), self._part(3), table, self.shape.max_tokens)

    def fill(self, batch: list[Scheduled], page_tokens: int) -> None:
        """`batch`: decodes only, at most `shape.num_seqs`."""
        host = torch.from_numpy(packed_decodes(batch, self.shape, page_tokens))
        if self.flat.device.type == "cuda":
            host = host.pin_memory()
        self.flat.copy_(host, non_blocking=True)

    def _part(self, number: int) -> Tensor:
        num = self.shape.num_seqs
        return self.flat[number * num : (number + 1) * num]


def packed_decodes(batch: list[Scheduled], shape: GraphShape, page_tokens: int) -> Indices:
    """DecodeInputs.flat of this step; rows that are too many repeat the first."""
    columns = -(-shape.max_tokens // page_tokens)
    ids = np.asarray([entry.sequence.tokens[entry.start] for entry in batch], dtype=np.int64)
    positions = np.asarray([entry.start for entry in batch], dtype=np.int64)
    arrays = [ids, positions, *decode_arrays(batch, page_tokens, columns)]
    missing = shape.num_seqs - len(batch)
    padded = [np.concatenate((array, np.repeat(array[:1], missing, axis=0))) for array in arrays]
    return np.concatenate([array.reshape(-1) for array in padded])


class Capture(Protocol):
    """Makes a function that runs `step` again on the same memory, and returns what it returned."""

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]: ...


class CudaCapture:
    """The real one; all graphs share one memory pool, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = step()
        self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


@dataclass(frozen=True)
class DecodeGraph:
    inputs: DecodeInputs
    replay: Callable[[], Tensor]

    def run(self, batch: list[Scheduled], page_tokens: int) -> Tensor:
        """-> logits [len(batch), vocabulary], overwritten by the next run."""
        self.inputs.fill(batch, page_tokens)
        return self.replay()[: len(batch)]


def capture_all(
    shapes: Sequence[GraphShape],
    page_tokens: int,
    device: torch.device,
    forward: Callable[[DecodeInputs], Tensor],
    capture: Capture,
) -> dict[GraphShape, DecodeGraph]:
    """What can be captured; a model that cannot is served without graphs, which the log says once."""
    graphs: dict[GraphShape, DecodeGraph] = {}
    for shape in shapes:
        inputs = DecodeInputs.of(shape, page_tokens, device)
        try:
            graphs[shape] = DecodeGraph(inputs, capture(lambda inputs=inputs: forward(inputs)))  # type: ignore[misc]
        except (RuntimeError, NotImplementedError) as exc:
            log.warning("no CUDA graph for %s, so decodes run without graphs: %s", shape, exc)
            return {}
    return graphs
