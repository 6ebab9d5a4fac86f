"""Requests' tensors joined, padded and cut back, by what config.pbtxt says."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as st_numpy

from python_backend.bridge.errors import AttachFailed, InvalidRequest
from python_backend.bridge.ragged import (
    Rows,
    TensorShapes,
    buckets_of,
    cut,
    pack,
    read_rows,
    to_array,
    to_data,
)

RAGGED = TensorShapes(
    inputs=("ids", "weight"),
    outputs=("scores", "mean"),
    ragged={"ids": (1,)},
    follows={"scores": {1: 0}},
    pad_value=-1,
    pad_to_multiple=4,
)


def config_of(**changes) -> str:
    config = {
        "max_batch_size": 8,
        "input": [{"name": "ids", "data_type": "TYPE_INT64", "dims": ["-1"], "allow_ragged_batch": True}],
        "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": ["-1"]}],
        "parameters": {},
    }
    return json.dumps(config | changes)


def rows_of(*lengths: int, num_rows: int = 1) -> list[Rows]:
    return [
        read_rows(
            RAGGED,
            {
                "ids": np.full((num_rows, length), index + 1),
                "weight": np.full((num_rows, 2), index, np.float32),
            },
        )
        for index, length in enumerate(lengths)
    ]


def test_rows_are_padded_to_the_longest_rounded_up():
    """With the pad value; lengths say what is real; what is not ragged is only joined."""
    ids, weight, lengths = pack(RAGGED, rows_of(3, 5))
    assert to_array(ids).tolist() == [[1, 1, 1, -1, -1, -1, -1, -1], [2, 2, 2, 2, 2, -1, -1, -1]]
    assert ids.dtype == "int64"
    assert to_array(weight).tolist() == [[0, 0], [1, 1]]
    assert (lengths.name, to_array(lengths).tolist()) == ("lengths", [3, 5])


def test_a_request_of_several_rows_has_its_length_for_each():
    """And its rows lie together."""
    _, _, lengths = pack(RAGGED, rows_of(2, 4, num_rows=2))
    assert to_array(lengths).tolist() == [2, 2, 4, 4]


def test_two_ragged_dimensions_are_padded_apart():
    """Images of different height and width: lengths is [rows, 2]."""
    shapes = TensorShapes(("image",), ("mask",), {"image": (2, 3)}, {"mask": {1: 0, 2: 1}})
    requests = [read_rows(shapes, {"image": np.ones((1, 3, *size), np.uint8)}) for size in ((4, 2), (1, 5))]
    image, lengths = pack(shapes, requests)
    assert image.shape == [2, 3, 4, 5]
    assert to_array(lengths).tolist() == [[4, 2], [1, 5]]
    assert cut(shapes, {"mask": np.zeros((2, 4, 5))}, 1, requests[1])["mask"].shape == (1, 1, 5)


def test_outputs_are_cut_back_to_their_request():
    """Its rows, and of a following output no padding; other outputs keep their width."""
    requests = rows_of(3, 5)
    made = {"scores": np.arange(16.0).reshape(2, 8), "mean": np.arange(6.0).reshape(2, 3)}
    parts = cut(RAGGED, made, 1, requests[1])
    assert parts["scores"].tolist() == [[8, 9, 10, 11, 12]]
    assert parts["mean"].tolist() == [[3, 4, 5]]


def test_a_long_request_goes_apart_from_short_ones():
    """A quarter of the batch's own elements is what a further forward may cost."""
    assert buckets_of(RAGGED, rows_of(4, 400, 4, 8)) == [[0, 2, 3], [1]]


def test_requests_with_other_optional_inputs_go_apart():
    """A batch has one set of tensors."""
    requests = rows_of(4, 4, 4)
    without = Rows({"ids": requests[1].tensors["ids"]}, 1, requests[1].size)
    assert buckets_of(RAGGED, [requests[0], without, requests[2]]) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"ids": np.array([[b"x"]], dtype=object), "weight": np.ones((1, 2))}, "ids is object, only numbers"),
        (
            {"ids": np.ones((2, 3)), "weight": np.ones((1, 2))},
            "different batch sizes: {'ids': 2, 'weight': 1}",
        ),
        ({"ids": np.ones((0, 3)), "weight": np.ones((0, 2))}, "the batch is empty"),
    ],
)
def test_what_is_no_batch_is_refused(tensors, reason):
    """With the numbers, before anything is joined."""
    with pytest.raises(InvalidRequest, match=reason):
        read_rows(RAGGED, tensors)


def test_zero_size_dimensions_pass():
    """A request may have no detections; padded, it is like the others."""
    ids, _, lengths = pack(RAGGED, rows_of(0, 3))
    assert ids.shape == [2, 4]
    assert to_array(lengths).tolist() == [0, 3]
    assert cut(RAGGED, {"scores": np.ones((2, 4))}, 0, rows_of(0, 3)[0])["scores"].shape == (1, 0)


@given(
    st_numpy.arrays(
        st_numpy.scalar_dtypes().filter(lambda d: d.kind in "biuf"),
        st_numpy.array_shapes(min_dims=0, min_side=0),
    )
)
def test_a_tensor_survives_the_way_through_a_message(array):
    """Any numeric type, byte order and shape, also of no elements."""
    back = to_array(to_data("x", array))
    assert back.shape == array.shape
    assert back.dtype.name == array.dtype.name
    np.testing.assert_array_equal(back, array)


def test_shapes_are_read_from_tritons_config():
    """Which dimensions are ragged, what follows them, and the defaults."""
    shapes = TensorShapes.of(config_of(parameters={"ragged_outputs": {"string_value": "scores:1"}}))
    assert shapes.ragged == {"ids": (1,)}
    assert shapes.follows == {"scores": {1: 0}}
    assert (shapes.pad_value, shapes.pad_to_multiple) == (0, 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_batch_size": 0}, "max_batch_size = 0"),
        ({"input": [{"name": "t", "data_type": "TYPE_STRING", "dims": ["1"]}]}, "t is TYPE_STRING"),
        (
            {"input": [{"name": "t", "data_type": "TYPE_FP32", "dims": ["4"], "allow_ragged_batch": True}]},
            "t has allow_ragged_batch but no dimension -1",
        ),
        ({"parameters": {"pad_value": {"string_value": "x"}}}, "pad_value = 'x'"),
        ({"parameters": {"pad_to_multiple": {"string_value": "0"}}}, "pad_to_multiple = '0'.*at least 1"),
        (
            {"parameters": {"ragged_outputs": {"string_value": "score:1"}}},
            "'score:1' is not OUTPUT:DIMENSION",
        ),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_at_load(changes, reason):
    """With the value."""
    with pytest.raises(AttachFailed, match=reason):
        TensorShapes.of(config_of(**changes))
