"""Rows of different lengths split into buckets: never worse than one batch, and the best there is."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from python_backend.buckets import padded_shape, split


def cost_of(buckets, shapes, rows, forward_cost):
    return sum(
        sum(rows[i] for i in bucket) * math.prod(padded_shape([shapes[i] for i in bucket])) + forward_cost
        for bucket in buckets
    )


def test_one_long_text_does_not_make_31_short_ones_long():
    """The long one goes alone; the short ones stay together."""
    shapes = [(16,)] * 10 + [(256,)] + [(16,)] * 21
    assert split(shapes, 48) == [[i for i in range(32) if i != 10], [10]]


def test_texts_of_nearly_one_length_stay_together():
    """The padding is cheaper than a further forward."""
    assert split([(16,), (15,), (17,), (14,)], 48) == [[0, 1, 2, 3]]


def test_nothing_is_split_into_nothing():
    """An empty batch has no bucket."""
    assert split([], 48) == []


def test_without_ragged_dimensions_all_go_together():
    """Shapes of no dimension are all alike."""
    assert split([(), (), ()], 1.0) == [[0, 1, 2]]


def test_a_shape_is_rounded_up_in_every_dimension():
    """To the multiple, from the greatest of each."""
    assert padded_shape([(3, 20), (9, 1)], 8) == (16, 24)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=7),
    st.floats(0, 200),
)
def test_a_split_is_the_cheapest_of_all_cuts_of_the_sorted_lengths(entries, forward_cost):
    """Against every possible cut; and every row is in exactly one bucket."""
    shapes, rows = [(length,) for length, _ in entries], [count for _, count in entries]
    buckets = split(shapes, forward_cost, rows)
    assert sorted(itertools.chain(*buckets)) == list(range(len(shapes)))
    order = sorted(range(len(shapes)), key=lambda i: shapes[i])
    cuts = (
        [order[a:b] for a, b in itertools.pairwise((0, *inner, len(order)))]
        for count in range(len(order))
        for inner in itertools.combinations(range(1, len(order)), count)
    )
    best = min(cost_of(cut, shapes, rows, forward_cost) for cut in cuts)
    assert cost_of(buckets, shapes, rows, forward_cost) <= best + 1e-6
