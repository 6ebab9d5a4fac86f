"""Bugs that other pools and engines had, and the tests that keep them out of ours.

The twenty of the research page "Shared memory pool + engine", section 11, each with the threads it was read in.
The table cannot rot: the first test here looks every named test up. The tests below belong to no file of their own.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from contracts.sampling import SamplingParams
from python_backend.worker.blocks import BlockPool
from python_backend.worker.sequence import Sequence

TESTS = Path(__file__).parents[2]
UNIT, INTEGRATION = "unit/python_backend", "integration"

BUGS: dict[str, list[str]] = {
    "1 a dead client's memory is kept (LMCache #4980; server#7481, #8102)": [
        f"{INTEGRATION}/test_worker_kills.py::test_killed_workers_leak_nothing_and_hurt_nobody_else",
        f"{INTEGRATION}/test_node_daemon.py::test_many_kills_leak_no_byte_no_descriptor_and_no_slot",
        f"{INTEGRATION}/test_prefix_sharing.py::test_readers_outlive_the_publisher",
    ],
    "2 double free, freed on two paths (LMCache #987, sglang-jax#982)": [
        f"{UNIT}/test_allocator.py::test_a_second_free_is_refused_by_name",
        f"{UNIT}/test_pool.py::test_a_second_release_is_refused_and_changes_nothing",
        f"{UNIT}/test_pool.py::test_a_drop_too_many_is_refused",
        f"{INTEGRATION}/test_node_daemon.py::test_a_worker_that_releases_what_it_does_not_hold_is_replaced",
    ],
    "3 partial allocation not rolled back (kvcached #364)": [
        f"{UNIT}/test_blocks.py::test_when_the_pool_is_out_nothing_changes",
        f"{UNIT}/test_blocks.py::test_memory_is_opened_only_when_all_of_it_was_leased",
    ],
    "4 an empty pool crashes or hangs (kvcached #262, LMCache #1330)": [
        f"{UNIT}/test_allocator.py::test_a_full_pool_answers_none_and_changes_nothing",
        f"{INTEGRATION}/test_node_daemon.py::test_an_exhausted_pool_is_an_answer_with_the_largest_extent",
        f"{UNIT}/test_engine_schedules.py::test_a_request_that_waits_too_long_for_others_memory_gets_the_numbers",
    ],
    "5 unbounded wait on a live but silent peer (kvcached #371)": [
        f"{UNIT}/test_lessor.py::test_a_silent_node_ends_the_wait",
        f"{UNIT}/test_desk.py::test_an_idle_worker_that_does_not_answer_holds_nobody_up",
        f"{UNIT}/test_watch.py::test_a_worker_that_stands_still_with_work_hangs_after_the_time_out",
        f"{INTEGRATION}/test_node_daemon.py::test_silent_and_deaf_peers_hold_nobody_up",
        "e2e/test_node_recovery.py::test_a_node_that_does_not_answer_is_replaced",
    ],
    "6 a stale hash on a recycled block (kvcached #362, vllm#44237)": [
        f"{UNIT}/test_pool.py::test_an_evicted_block_is_never_found_again",
        f"{INTEGRATION}/test_prefix_sharing.py::test_an_evicted_block_is_never_found_again",
    ],
    "7 a hash hit unverified, tenants leak (vllm#12621, openvino.genai#3722)": [
        f"{UNIT}/test_pool.py::test_a_hit_is_checked_against_the_tokens",
        f"{UNIT}/test_worker_prefix.py::test_every_part_of_the_identity_and_the_tenant_is_in_every_digest",
        f"{INTEGRATION}/test_prefix_sharing.py::test_tenants_never_share",
    ],
    "8 KV reused while it is still read (vllm#37076)": [
        f"{UNIT}/test_pool.py::test_a_published_block_outlives_its_publisher_while_another_reads_it",
        f"{INTEGRATION}/test_node_daemon.py::test_a_worker_that_ignores_stop_is_killed",
        f"{INTEGRATION}/test_prefix_sharing.py::test_readers_outlive_the_publisher",
    ],
    "9 sizes counted twice, or below zero (sglang#35270, kvcached #377)": [
        f"{UNIT}/test_allocator.py::test_broken_books_are_found",
        f"{UNIT}/test_blocks.py::test_no_order_of_growing_and_freeing_loses_or_doubles_a_block",
        f"{INTEGRATION}/test_worker_kills.py::test_killed_workers_leak_nothing_and_hurt_nobody_else",
    ],
    "10 names that collide, or that an attacher unlinks (kvcached #192, #219, #379; cpython#82300)": [
        f"{INTEGRATION}/test_two_nodes.py::test_two_nodes_with_the_same_models_do_not_meet",
        f"{INTEGRATION}/test_node_daemon.py::test_nothing_is_left_in_dev_shm",
    ],
    "11 the wrong GPU by index (pytorch#149196)": [
        f"{INTEGRATION}/test_cuda_arena.py::test_a_gpu_is_found_by_its_uuid_wherever_it_stands_in_the_order",
    ],
    "12 expandable_segments (pytorch#165685)": [
        f"{INTEGRATION}/test_cuda_arena.py::test_expandable_segments_are_refused",
    ],
    "13 attention that is not causal when no mask is built (transformers#48296)": [
        f"{INTEGRATION}/test_engine_against_transformers.py::test_no_token_sees_a_later_one",
        f"{INTEGRATION}/test_model_families.py::test_no_token_sees_a_later_one",
    ],
    "14 one overflow ends every slot (llama.cpp #23652)": [
        f"{UNIT}/test_engine.py::test_a_sequence_that_outgrows_the_whole_pool_ends_with_the_numbers",
        f"{UNIT}/test_engine.py::test_when_blocks_run_out_every_request_still_finishes_with_its_own_text",
        f"{UNIT}/test_scheduler.py::test_when_blocks_run_out_the_youngest_is_recomputed_later",
    ],
    "15 a request of the largest size fails though all is free (rmm#1957)": [
        f"{UNIT}/test_allocator.py::test_a_request_as_large_as_the_pool_is_served",
        f"{UNIT}/test_pool.py::test_the_whole_arena_can_be_one_lease",
    ],
    "16 fork after OpenMP has run (pytorch#41197)": [
        f"{INTEGRATION}/test_fork_after_openmp.py::test_a_worker_forked_from_the_bound_server_computes_with_threads",
    ],
    "17 a lock left by a dead process in shared memory (server#8882)": [
        f"{UNIT}/test_pool_bugs.py::test_nothing_that_processes_share_has_a_lock",
        f"{UNIT}/test_stats_page.py::test_a_page_that_was_left_half_written_is_refused_not_waited_for",
    ],
    "18 the engine sizes itself and refuses to start (kvcached #110, #181, #210)": [
        f"{UNIT}/test_pool_bugs.py::test_no_worker_asks_the_machine_how_much_memory_it_has",
        f"{INTEGRATION}/test_node_daemon.py::test_a_pool_smaller_than_a_block_ends_the_node_with_a_reason",
    ],
    "19 mismatched weights bound silently": [
        f"{UNIT}/test_node_fingerprint.py::test_differences_are_named",
        f"{UNIT}/test_node_fingerprint.py::test_a_folder_that_changed_is_not_bound_to_its_old_weights",
    ],
    "20 allocations on the scheduler's step (kvcached: 4 ms against 0.5 us)": [
        f"{UNIT}/test_pool_bugs.py::test_a_growing_sequence_asks_the_node_once_for_many_blocks",
        f"{INTEGRATION}/test_kv_mapping.py::test_leased_blocks_are_zero_and_writable",
    ],
}


@cache
def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("bug", BUGS)
def test_every_bug_of_the_table_has_its_tests(bug):
    """Each one named there exists."""
    assert BUGS[bug]
    for test in BUGS[bug]:
        path, name = test.split("::")
        assert name in names_in(TESTS / path), f"{test} is gone; say what keeps bug {bug} out now"


def test_the_table_has_all_twenty():
    """In the order of the research page."""
    assert [int(bug.split()[0]) for bug in BUGS] == list(range(1, 21))


def source_of(*packages: str) -> str:
    root = TESTS.parent / "python_backend"
    files = [path for package in packages for path in (root / package).glob("*.py")]
    assert files
    return "\n".join(path.read_text() for path in files)


def test_no_worker_asks_the_machine_how_much_memory_it_has():
    """It may have what the pool leases it, and learns that from the pool's answers alone."""
    text = source_of("worker")
    for name in ("mem_get_info", "virtual_memory", "psutil", "sysconf", "meminfo"):
        assert name not in text


def test_nothing_that_processes_share_has_a_lock():
    """Every word of the board and of the stats page has one writer. (The one flock, of the run directory, is the
    kernel's: it ends with its holder.)"""
    text = source_of("node", "worker") + (TESTS.parent / "python_backend" / "board.py").read_text()
    for name in ("multiprocessing", "sem_open", "Semaphore", "pthread", "lockf"):
        assert name not in text


class CountingLessor:
    """A pool that is never out."""

    def __init__(self) -> None:
        self.num_asked = 0
        self._next = 0

    def lease(self, num_blocks: int, tenant: str) -> range:
        self.num_asked += 1
        self._next += num_blocks
        return range(self._next - num_blocks, self._next)


def test_a_growing_sequence_asks_the_node_once_for_many_blocks():
    """Eight blocks of 16 tokens, one token a step: one round trip, not eight."""
    lessor = CountingLessor()
    pool = BlockPool(lessor, 16, extent_blocks=8)
    sequence = Sequence(0, [1], 1, SamplingParams())
    for num_tokens in range(1, 8 * 16 + 1):
        assert pool.grow(sequence, num_tokens)
    assert lessor.num_asked == 1
