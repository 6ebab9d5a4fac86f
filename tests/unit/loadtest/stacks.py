"""A running stack, as its file says it, for tests that start none."""

from __future__ import annotations

from pathlib import Path

from contracts.stack import Stack


def stack_in(folder: Path) -> Stack:
    return Stack(
        pid=1,
        run_dir=str(folder),
        node_socket="",
        triton_http="",
        triton_grpc="",
        triton_metrics="",
        gateway_http="",
        models=[],
        pids={},
        started_unix_s=0.0,
    )
