"""The board: one shared page of counters, a slot per instance, readable by every process of a node.

A memfd made by the node and mapped by bridges and workers. No lock lies in it: every word has exactly one
writer, and a reader that sees a value one step old is harmless. Words are 32-bit and aligned, so a store is
whole. Writers:

    header   node     magic, number of slots, CPU budget
    slot     node     state, model number, generation
             bridge   in_flight, cap, landed
             worker   running, waiting, blocks used, blocks leased, tokens out, preemptions, cached tokens,
                      heartbeat
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x7469_6465
NUM_SLOTS = 255
SLOT_WORDS = 16
BOARD_BYTES = (NUM_SLOTS + 1) * SLOT_WORDS * 4


class SlotState(IntEnum):
    FREE = 0
    SERVING = 1
    DRAINING = 2


_FREE = int(SlotState.FREE)
"""An enum's comparison costs ten times a number's."""


class Word(IntEnum):
    """Index of a word inside a slot."""

    STATE = 0
    MODEL = 1
    GENERATION = 2
    IN_FLIGHT = 4
    CAP = 5
    LANDED = 6
    RUNNING = 8
    WAITING = 9
    BLOCKS_USED = 10
    BLOCKS_LEASED = 11
    TOKENS_OUT = 12
    PREEMPTIONS = 13
    CACHED_TOKENS = 14
    HEARTBEAT = 15
    """Counts up as long as the worker makes progress or waits for work (`node/watch.py`)."""


class _Header(IntEnum):
    MAGIC = 0
    NUM_SLOTS = 1
    NUM_CPUS = 2


@dataclass(frozen=True)
class Slot:
    """One instance as the board shows it at a moment."""

    index: int
    state: SlotState
    model: int
    in_flight: int
    cap: int
    landed: int
    running: int
    waiting: int
    blocks_used: int
    blocks_leased: int
    tokens_out: int
    preemptions: int
    cached_tokens: int
    """Prompt tokens that were found in published blocks."""


class Board:
    """A mapping of the board. `fd` is duplicated by the mapping; the caller still closes its own."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, BOARD_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._words = memoryview(self._map).cast("I")

    @classmethod
    def create(cls, num_cpus: int) -> tuple[Board, int]:
        """Make a board and return it with its memfd, which the caller owns."""
        fd = os.memfd_create("tidegate-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, BOARD_BYTES)
        board = cls(fd)
        board._words[_Header.MAGIC] = MAGIC
        board._words[_Header.NUM_SLOTS] = NUM_SLOTS
        board._words[_Header.NUM_CPUS] = num_cpus
        return board, fd

    @property
    def num_cpus(self) -> int:
        return self._words[_Header.NUM_CPUS]

    def get(self, slot: int, word: Word) -> int:
        return self._words[(slot + 1) * SLOT_WORDS + word]

    def set(self, slot: int, word: Word, value: int) -> None:
        self._words[(slot + 1) * SLOT_WORDS + word] = value & 0xFFFF_FFFF

    def clear(self, slot: int) -> None:
        """Zero a slot but for its generation, which counts up. The node's alone."""
        generation = self.get(slot, Word.GENERATION)
        for word in range(SLOT_WORDS):
            self._words[(slot + 1) * SLOT_WORDS + word] = 0
        self.set(slot, Word.GENERATION, generation + 1)

    def read(self, slot: int) -> Slot:
        def word(which: Word) -> int:
            return self.get(slot, which)

        return Slot(
            index=slot,
            state=SlotState(word(Word.STATE)),
            model=word(Word.MODEL),
            in_flight=word(Word.IN_FLIGHT),
            cap=word(Word.CAP),
            landed=word(Word.LANDED),
            running=word(Word.RUNNING),
            waiting=word(Word.WAITING),
            blocks_used=word(Word.BLOCKS_USED),
            blocks_leased=word(Word.BLOCKS_LEASED),
            tokens_out=word(Word.TOKENS_OUT),
            preemptions=word(Word.PREEMPTIONS),
            cached_tokens=word(Word.CACHED_TOKENS),
        )

    def least_loaded_sibling(self, slot: int) -> int | None:
        """Requests in flight on the least-loaded serving instance of the same model, without `slot` itself."""
        model = self.get(slot, Word.MODEL)
        loads = [
            self.get(other, Word.IN_FLIGHT)
            for other, state in self._taken()
            if other != slot and state == SlotState.SERVING and self.get(other, Word.MODEL) == model
        ]
        return min(loads, default=None)

    def num_busy(self) -> int:
        """Instances with anything in flight: how many workers share the CPUs right now."""
        return sum(1 for slot, _ in self._taken() if self.get(slot, Word.IN_FLIGHT) > 0)

    def _taken(self) -> list[tuple[int, int]]:
        """Slots that are not free, with their states. One copy of the column: 8 µs instead of 140 word by word,
        and bridges look a thousand times a second."""
        states = self._words[SLOT_WORDS + Word.STATE :: SLOT_WORDS].tolist()
        return [(slot, state) for slot, state in enumerate(states) if state != _FREE]

    def close(self) -> None:
        self._words.release()
        self._map.close()
