"""Rows written and read again are the same rows."""

import dataclasses
import math

import numpy as np
import pytest

from loadtest.generating.parquet import RequestsUnreadable, read_requests, write_requests
from loadtest.records import Request, Status, columns_of


def request(index, chunks):
    return Request(
        index=index,
        process=index % 2,
        user="chat",
        service="chat",
        session="",
        turn=0,
        status=Status.OK if chunks else Status.ERROR,
        error="" if chunks else 'http 503: "é"\n',
        instance="",
        t_intended_s=index / 10,
        t_sent_s=index / 10 + 0.001,
        t_first_s=index / 10 + 0.1 if chunks else math.nan,
        t_last_s=index / 10 + 1,
        input_tokens=5,
        output_tokens=chunks,
        cached_tokens=0,
        chunk_times_s=[index / 10 + 0.1 + number / 100 for number in range(chunks)],
        chunk_tokens=[1] * chunks,
    )


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_rows_come_back_as_they_were_with_their_chunks(tmp_path, count):
    """Also none at all, and more than one batch of Arrow's; every seventh has no chunk."""
    rows, path = columns_of([request(index, index % 7) for index in range(count)]), tmp_path / "r.parquet"

    write_requests(path, rows)
    found = read_requests(path)

    for field in dataclasses.fields(rows):
        before, after = getattr(rows, field.name), getattr(found, field.name)
        np.testing.assert_array_equal(before, after)
        assert before.dtype.kind == after.dtype.kind
    assert [each.name for each in tmp_path.iterdir()] == ["r.parquet"]


def test_a_file_of_something_else_is_refused(tmp_path):
    """No Parquet, and Parquet without our mark."""
    from arro3.core import Array, Table
    from arro3.io import write_parquet

    (tmp_path / "text").write_text("no parquet")
    write_parquet(Table.from_pydict({"a": Array.from_numpy(np.zeros(2))}), tmp_path / "other")

    for name in ("text", "other"):
        with pytest.raises(RequestsUnreadable):
            read_requests(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_requests(tmp_path / "none")
