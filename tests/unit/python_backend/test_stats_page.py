"""The pool's figures on a shared page."""

from __future__ import annotations

import mmap
import struct

import pytest

from python_backend import stats_page
from python_backend.node.pool import Pool
from python_backend.node.pool_status import RecentHighWater, page_of
from python_backend.node.quota import ModelQuota
from python_backend.stats_page import PAGE_BYTES, StatsUnreadable, StatsWriter, read_stats


def page_with(num_models: int = 1):
    pool = Pool(1000)
    names = [f"model-{index}" for index in range(num_models)]
    for name in names:
        pool.add_model(name, 100, ModelQuota())
    pool.lease(1, names[0], "", 3)
    return page_of(pool, names, 12.5)


def test_a_reader_sees_what_the_node_wrote_last(tmp_path):
    """Twice written, once read."""
    writer = StatsWriter(tmp_path / "pool.stats")
    writer.write(page_of(Pool(1), [], 0.0))
    writer.write(page_with())
    page = read_stats(tmp_path / "pool.stats")
    assert page.leased_bytes == 300
    assert page.models[0].usable_blocks == 7


def test_a_page_that_was_left_half_written_is_refused_not_waited_for(tmp_path):
    """The node was killed between the two sequence numbers (server#8882)."""
    path = tmp_path / "pool.stats"
    StatsWriter(path).write(page_with())
    with path.open("r+b") as file, mmap.mmap(file.fileno(), PAGE_BYTES) as page:
        struct.pack_into("<Q", page, 0, 7)
    with pytest.raises(StatsUnreadable, match="is the node alive"):
        read_stats(path)


def test_more_models_than_fit_the_page_are_left_out(tmp_path):
    """The totals are always there."""
    writer = StatsWriter(tmp_path / "pool.stats")
    writer.write(page_with(num_models=2000))
    page = read_stats(tmp_path / "pool.stats")
    assert page.total_bytes == 1000
    assert 100 < len(page.models) < 2000


def test_the_recent_peak_is_forgotten_after_a_minute_and_reading_does_not_reset_it():
    """Two scrapers see the same."""
    recent = RecentHighWater()
    recent.note(500, 0.0)
    recent.note(100, 1.0)
    assert [recent.value(30.0), recent.value(59.0)] == [500, 500]
    recent.note(200, 61.0)
    assert recent.value(61.0) == 200


def test_the_number_turns_even_only_when_length_and_content_are_there(tmp_path, monkeypatch):
    """A reader between any two stores of the writer sees the old page, the new one, or an odd number."""
    writer = StatsWriter(tmp_path / "pool.stats")
    stores = []

    class Recording:
        def __init__(self, name, layout):
            self.name, self.layout, self.size = name, layout, layout.size

        def pack_into(self, buffer, offset, *values):
            stores.append((self.name, *values))
            self.layout.pack_into(buffer, offset, *values)

    monkeypatch.setattr(stats_page, "_SEQUENCE", Recording("sequence", struct.Struct("<Q")))
    monkeypatch.setattr(stats_page, "_LENGTH", Recording("length", struct.Struct("<I")))
    writer.write(page_with())
    assert [name for name, *_ in stores] == ["sequence", "length", "sequence"]
    assert [stores[0][1] % 2, stores[2][1] % 2] == [1, 0]
