"""The locustfile against a running stack."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


def test_locust_drives_the_stack_without_a_failure_and_times_the_first_token(running):
    """Three users for six seconds, headless; locust exits 1 when any request failed."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"),
        *(
            "--host",
            f"http://{running.stack.gateway_http}",
            "-u",
            "3",
            "-r",
            "3",
            "-t",
            "6s",
            "--only-summary",
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "TTFT" in done.stderr + done.stdout
