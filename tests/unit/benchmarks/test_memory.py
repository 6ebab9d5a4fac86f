"""The memory benchmark's arithmetic."""

import mmap
import os

import pytest

from benchmarks.memory import MIB, Sizes, instances_ratio, mappings, private_bytes, pss_without_kv

OURS = Sizes(
    pss=[900 * MIB, 950 * MIB, 1000 * MIB, 1050 * MIB], private=[60 * MIB, 40 * MIB, 50 * MIB, 45 * MIB]
)
THEIRS = Sizes(pss=[800 * MIB, 1600 * MIB, 2400 * MIB, 3200 * MIB], private=[780 * MIB] * 4)


def test_the_ratio_counts_how_many_of_ours_fit_where_four_of_theirs_are():
    """3,200 MiB: one of ours is 900, each further one 50, so 47 fit."""
    assert instances_ratio(OURS, THEIRS) == pytest.approx(47 / 4)


def test_the_first_instance_is_not_a_further_one():
    """It is the median of the three that were added."""
    figures = OURS.figures()
    assert figures["private_mib_per_instance"].value == 45
    assert figures["pss_4_over_1"].value == pytest.approx(1050 / 900)


def test_what_is_mapped_shared_is_not_private_and_kv_is_not_counted():
    """Of this process: a memfd with the pool's name changes neither figure."""
    pid = os.getpid()
    fd = os.memfd_create("tidegate-kv")
    os.ftruncate(fd, 32 * MIB)
    before = private_bytes(pid), pss_without_kv(pid)
    with mmap.mmap(fd, 32 * MIB) as kv:
        kv.write(bytes(32 * MIB))
        after = private_bytes(pid), pss_without_kv(pid)
        [mapping] = [each for each in mappings(pid) if "tidegate-kv" in each.name]
    os.close(fd)
    assert mapping.is_shared
    assert mapping.sizes_kib["Rss"] == 32 * 1024
    assert [abs(a - b) < 16 * MIB for a, b in zip(after, before, strict=True)] == [True, True]
