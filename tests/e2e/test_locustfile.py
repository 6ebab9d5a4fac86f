"""The locustfile against a running stack."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


def test_locust_drives_the_stack_without_a_failure_and_times_the_first_token(running):
    """Chats and embeddings over both doors for six seconds, and what was asked by then is answered; locust exits 1
    when any request failed."""
    stack = running.stack
    command = [
        *(sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"),
        *("--host", f"http://{stack.gateway_http}", "--grpc", stack.gateway_grpc),
        *("-u", "4", "-r", "4", "-t", "6s", "--stop-timeout", "60", "--equal-weights", "--only-summary"),
        *("ChatUser", "GrpcChatUser", "EmbedUser", "GrpcEmbedUser"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for row in ("REQUEST  embed ", "REQUEST  embed-grpc ", "TTFT     chat ", "TTFT     chat-grpc "):
        assert row in said, said
