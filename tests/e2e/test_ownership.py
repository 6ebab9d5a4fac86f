"""Two scaler processes on one Triton, as from two hosts: they share nothing but its gRPC port."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scaler.acting.ownership import Mark, read_mark
from scaler.triton_client import TritonClient
from tests.e2e.plain_triton import plain_triton, write_plain_model
from tests.e2e.support import closed_loop_clients

pytestmark = pytest.mark.e2e


@contextlib.asynccontextmanager
async def scaler(address: str, run_dir: Path, wanted: int) -> AsyncIterator[str]:
    """What it says of its one change. Killed at the end of the block, without a chance to tidy up."""
    command = [sys.executable, "-m", "tests.e2e.scaler_process", address, str(run_dir), "echo", str(wanted)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def owner_and_count(address: str) -> tuple[Mark | None, int]:
    triton = TritonClient(address)
    config = await triton.config("echo")
    await triton.close()
    return read_mark(config), config.instance_group[0].count


async def test_a_second_scaler_refuses_while_the_first_lives_and_succeeds_it_when_it_is_killed(
    tmp_path: Path,
) -> None:
    """1 -> 2 by the first; the second's 3 is refused; kill -9; the second's 3 is done. No request fails."""
    write_plain_model(tmp_path / "repository", "echo")
    with plain_triton(tmp_path / "repository", "echo") as server:
        async with closed_loop_clients(server.grpc, "echo", 1) as outcomes:
            async with scaler(server.grpc, tmp_path / "first", 2) as first_says:
                assert first_says == "scaled to 2"
                mark, count = await owner_and_count(server.grpc)
                assert mark is not None
                async with scaler(server.grpc, tmp_path / "second", 3) as second_says:
                    assert second_says.startswith(f"refused: another scaler ({mark.owner}) scales 'echo'")
                assert await owner_and_count(server.grpc) == (mark, 2)
            async with scaler(server.grpc, tmp_path / "second", 3) as second_says:
                assert second_says == "scaled to 3"
            successor, count = await owner_and_count(server.grpc)
            assert (successor != mark, count) == (True, 3)
        assert outcomes.failures == []
