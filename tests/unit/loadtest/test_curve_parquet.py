"""The memory curve as a file."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.curve import Curve, Series, Source
from loadtest.watching.parquet import CurveUnreadable, read_curve, write_curve


def same(one: Series, other: Series) -> bool:
    return (one.name, one.labels, one.unit) == (other.name, other.labels, other.unit) and (
        np.array_equal(one.t_s, other.t_s) and np.array_equal(one.values, other.values)
    )


def test_a_curve_comes_back_as_it_was(tmp_path):
    """Series of different lengths, one of them empty, labels in their order, and why a source failed."""
    curve = Curve(
        (
            Series(
                "kv.used_blocks", (("model", "chat"),), "blocks", np.array([-1.0, 0.5]), np.array([0, 7.0])
            ),
            Series("rss_bytes", (("process", "worker"), ("pid", "4")), "bytes", np.zeros(0), np.zeros(0)),
            Series("pool.used_bytes", (), "bytes", np.array([0.25]), np.array([2.0**52 + 1])),
        ),
        (Source("node", 2, 1, 'no answer from "node"'), Source("triton", 0, 0, "")),
    )
    write_curve(tmp_path / "curve.parquet", curve)
    read = read_curve(tmp_path / "curve.parquet")
    assert all(same(*pair) for pair in zip(curve.series, read.series, strict=True))
    assert read.sources == curve.sources


def test_a_run_without_any_series_has_a_curve_too(tmp_path):
    """A target that is not ours: no source at all."""
    write_curve(tmp_path / "curve.parquet", Curve((), ()))
    assert read_curve(tmp_path / "curve.parquet") == Curve((), ())


def test_a_file_that_is_no_curve_is_named(tmp_path):
    """Cut off in the middle, as a full disk leaves it."""
    path = tmp_path / "curve.parquet"
    write_curve(path, Curve((), ()))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CurveUnreadable, match=r"curve\.parquet can't be read as a memory curve"):
        read_curve(path)
