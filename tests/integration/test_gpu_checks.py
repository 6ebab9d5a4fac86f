"""The script that proves the CUDA path, where there is no GPU: it says so, and its own logic runs over fakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(command: list[str], **more: str) -> tuple[int, list[dict[str, object]]]:
    environ = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **more}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environ)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU: run tests/gpu/check.sh")
def test_without_a_gpu_the_script_says_so_and_succeeds() -> None:
    """A machine without one is no failure."""
    status, lines = run(["tests/gpu/check.sh"])
    assert status == 0
    assert [line["result"] for line in lines] == ["skipped"]
    assert str(lines[0]["reason"]).startswith("no GPU: skipped")


def test_checks_share_memory_between_real_processes_over_a_fake_driver(tmp_path: Path) -> None:
    """Results are summed up and written to $OUT."""
    command = [sys.executable, "tests/gpu/checks.py", "--fake", "arena", "fragmentation"]
    status, lines = run(command, OUT=str(tmp_path))
    assert status == 0, lines
    assert lines[-1] == {"summary": {"passed": 2, "failed": 0, "skipped": 0}}
    assert json.loads((tmp_path / "gpu-checks.json").read_text())["checks"] == lines[:-1]


def test_one_failing_check_does_not_lose_the_others() -> None:
    """It is reported with its reason, and the status says so."""
    command = [sys.executable, "tests/gpu/checks.py", "--fake", "no_such_check", "fragmentation"]
    status, lines = run(command)
    assert status == 1
    assert [line.get("result") for line in lines] == ["failed", "passed", None]
    assert "no_such_check" in str(lines[0]["reason"])
