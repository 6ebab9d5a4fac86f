"""Rows in order of intended starts, whatever order they came in."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from loadtest.records import Requests

_CHUNKS = ("chunk_offsets", "chunk_times_s", "chunk_tokens")


def in_time_order(requests: Requests) -> Requests:
    """The same when it is sorted already; rows with equal starts go by index, then turn."""
    if _is_sorted(requests):
        return requests
    order = np.lexsort((requests.turn, requests.index, requests.t_intended_s))
    counts = np.diff(requests.chunk_offsets)[order]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    # Place k of the new chunks lies k - (its row's new begin) after its row's old begin.
    chunks = np.repeat(requests.chunk_offsets[:-1][order] - offsets[:-1], counts) + np.arange(offsets[-1])
    columns = {
        field.name: getattr(requests, field.name)[order]
        for field in fields(Requests)
        if field.name not in _CHUNKS
    }
    return Requests(
        **columns,
        chunk_offsets=offsets,
        chunk_times_s=requests.chunk_times_s[chunks],
        chunk_tokens=requests.chunk_tokens[chunks],
    )


def _is_sorted(requests: Requests) -> bool:
    t, index, turn = requests.t_intended_s, requests.index, requests.turn
    later = t[1:] > t[:-1]
    same = t[1:] == t[:-1]
    by_index = (index[1:] > index[:-1]) | ((index[1:] == index[:-1]) & (turn[1:] >= turn[:-1]))
    return bool((later | (same & by_index)).all())
