"""From rows to the values of one metric: exact, at least so much (unfinished), or infinite (failed)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.records import Float, Int, Requests, Status

Bool = npt.NDArray[np.bool_]
Scope = tuple[tuple[str, str], ...]
"""`(("user", "chat"),)`; () is all requests."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The values of one metric, shape [n], in order of intended starts.

    Only a request that ended well has an exact value. A failed one is infinite, so that failing fast improves no
    percentile; an unfinished one took at least what is known of it.
    """

    values: Float
    is_lower_bound: Bool
    t_intended_s: Float

    def __len__(self) -> int:
        return len(self.values)

    @property
    def exact(self) -> Float:
        """Those of requests that ended well: what "of the successes" in a report means."""
        kept: Float = self.values[~self.is_lower_bound & np.isfinite(self.values)]
        return kept

    def beyond(self, limit: float, *, limit_itself: bool) -> tuple[int, int]:
        """How many lie beyond the limit for certain, and how many may. `limit_itself`: a value equal to it does."""
        sure = self.values >= limit if limit_itself else self.values > limit
        return int(sure.sum()), int((sure | self.is_lower_bound).sum())


def streams(requests: Requests) -> Bool:
    """Shape [n]: rows of users whose answers come in chunks, or who never had a good answer: nobody knows."""
    has_chunks = np.diff(requests.chunk_offsets) > 0
    is_ok = requests.status == Status.OK
    found = np.zeros(len(requests), dtype=bool)
    for user in set(requests.user.tolist()):
        mine = requests.user == user
        if has_chunks[mine].any() or not is_ok[mine].any():
            found |= mine
    return found


def in_scope(requests: Requests, scope: Scope) -> Bool:
    """Shape [n]. Raises KeyError for a key that rows do not have."""
    columns = {"user": requests.user, "service": requests.service, "instance": requests.instance}
    mask = np.ones(len(requests), dtype=bool)
    for key, value in scope:
        mask &= columns[key] == value
    return mask


def request_values(requests: Requests, metric: str, is_streaming: Bool) -> tuple[Float, Bool]:
    """Of all rows: values with NaN where the metric does not arise, and which are lower bounds.

    `is_streaming`: what `streams` says. Raises KeyError for a metric that has no value a request.
    """
    start = requests.t_sent_s if metric.endswith(".service") else requests.t_intended_s
    was_sent = requests.status != Status.NOT_SENT
    if metric == "dispatch_delay":
        return np.where(was_sent, requests.t_sent_s - requests.t_intended_s, np.nan), ~was_sent
    unfinished = requests.status == Status.CENSORED
    elapsed = requests.t_last_s - start
    match metric:
        case "latency.scheduled" | "latency.service":
            values, known = elapsed, elapsed
            arises = was_sent
        case "ttft.scheduled" | "ttft.service":
            values = requests.t_first_s - start
            known = np.where(np.isnan(values), elapsed, values)
            arises = was_sent & is_streaming
        case "tpot":
            values = time_per_output_token(requests)
            known = np.zeros(len(requests))
            arises = was_sent & is_streaming
        case "gap.worst":
            values, known = worst_gap(requests), open_gap(requests)
            known = np.fmax(values, known)
            arises = was_sent & is_streaming
        case _:
            raise KeyError(metric)
    values = np.where(unfinished, known, np.where(requests.status == Status.ERROR, np.inf, values))
    return np.where(arises, values, np.nan), unfinished


def time_per_output_token(requests: Requests) -> Float:
    """(last token - first token) / (tokens - 1), NaN below 2 tokens or 2 chunks."""
    tokens = np.maximum(requests.output_tokens, tokens_in_chunks(requests))
    first, last, chunks = _first_and_last_chunk(requests)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((tokens >= 2) & (chunks >= 2), (last - first) / (tokens - 1), np.nan)


def tokens_in_chunks(requests: Requests) -> Int:
    tokens = np.zeros(len(requests), dtype=np.int64)
    filled = np.flatnonzero(np.diff(requests.chunk_offsets) > 0)
    if len(filled):
        tokens[filled] = np.add.reduceat(requests.chunk_tokens, requests.chunk_offsets[filled])
    return tokens


def open_gap(requests: Requests) -> Float:
    """From the last chunk, or from the sending, to the end: of an unfinished request the gap it was in."""
    _, last, chunks = _first_and_last_chunk(requests)
    gap: Float = requests.t_last_s - np.where(chunks > 0, last, requests.t_sent_s)
    return gap


def worst_gap(requests: Requests) -> Float:
    """NaN below 2 chunks."""
    worst = np.full(len(requests), np.nan)
    begins, ends = requests.chunk_offsets[:-1], requests.chunk_offsets[1:]
    several = np.flatnonzero(ends - begins >= 2)
    if len(several):
        gaps = np.diff(requests.chunk_times_s)
        # Gap i lies between chunks i and i + 1: a request's are begins .. ends - 2, what lies between is skipped.
        bounds = np.column_stack((begins[several], ends[several] - 1)).ravel()
        bounds = bounds[:-1] if bounds[-1] == len(gaps) else bounds
        worst[several] = np.maximum.reduceat(gaps, bounds)[::2]
    return worst


def _first_and_last_chunk(requests: Requests) -> tuple[Float, Float, Int]:
    """NaN without chunks."""
    begins, ends = requests.chunk_offsets[:-1], requests.chunk_offsets[1:]
    chunks = ends - begins
    filled = np.flatnonzero(chunks > 0)
    first, last = np.full(len(requests), np.nan), np.full(len(requests), np.nan)
    first[filled] = requests.chunk_times_s[begins[filled]]
    last[filled] = requests.chunk_times_s[ends[filled] - 1]
    return first, last, chunks
