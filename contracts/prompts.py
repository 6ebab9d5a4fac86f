"""Prompt text -> token ids, alike in the gateway, which counts them, and in the worker, which runs them."""

from __future__ import annotations

from collections.abc import Sequence


def without_double_start(ids: Sequence[int], added: Sequence[int]) -> Sequence[int]:
    """The prompt's ids with one beginning-of-sequence token where there are two.

    `added`: the ids of the empty text, so what the tokenizer adds by itself. A chat template writes the beginning
    too, and so may a raw prompt; models are trained on one.
    """
    is_doubled = len(ids) >= 2 and bool(added) and ids[0] == ids[1] == added[0]
    return ids[1:] if is_doubled else ids
