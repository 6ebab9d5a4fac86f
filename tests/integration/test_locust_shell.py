"""Locust with the locustfile, against the scripted server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
name: short
target: {http: HTTP}
load:
  kind: open
  shape: {kind: hold, rate_per_s: 10, duration_s: 5}
  arrivals: {kind: constant}
users:
  - {name: chat, kind: openai_chat, service: chat, output_tokens: 4}
memory: {processes: false, gpu: false, baseline_s: 0, settle_s: 0}
slo: [ttft.scheduled p99 < 2s]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    """(HTTP, gRPC); an answer is four tokens, 20 ms apart."""
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest.mock_server", "{}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        _, http, grpc = process.stdout.readline().split()
        yield f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        process.terminate()


def _locust(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"]
    return subprocess.run(
        [*command, *arguments, "--only-summary"], capture_output=True, text=True, timeout=90, check=False
    )


def _counts(said: str) -> dict[tuple[str, str], int]:
    """(type, name) -> requests, of the first table."""
    rows = [line.split() for line in said.split("Response time percentiles")[0].splitlines()]
    return {(row[0], row[1]): int(row[2]) for row in rows if len(row) > 8 and row[2].isdigit()}


def test_every_kind_of_user_asks_and_the_shape_moves_their_number(server: tuple[str, str]):
    """Stages of 3, 6, 9 and 12 users, over both doors; streams have rows for first token and rate."""
    http, grpc = server
    users = ("-u", "12", "-t", "6s", "--equal-weights")
    done = _locust("--host", http, "--grpc", grpc, "--shape", "stages", *users)

    counts = _counts(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    for kind, name in (("TTFT", "chat"), ("TPOT", "chat"), ("TTFT", "chat-grpc"), ("TTFT", "session")):
        assert counts[kind, name] > 0, counts
    assert counts["REQUEST", "embed"] > 3
    assert counts["REQUEST", "embed-grpc"] > 3
    for number in (3, 6, 9, 12):
        assert f"Ramping to {number} users" in done.stderr


def test_a_server_that_is_not_there_is_a_failure_and_grpc_users_without_an_address_are_left_out():
    """Nothing listens at port 1: exit code 1 with the reason, and who does not ask is named."""
    done = _locust("--host", "http://127.0.0.1:1", "-u", "2", "-t", "2s")

    assert done.returncode == 1
    assert 'RequestFailed("connection: ' in done.stderr
    assert (
        "GrpcChatUser, GrpcEmbedUser left out: no stack of ours runs at that host; give --grpc" in done.stderr
    )


def test_a_plan_is_sent_by_the_clock_and_its_verdict_is_the_exit_code(
    server: tuple[str, str], tmp_path: Path
):
    """Fifty requests in five seconds, too few to say anything: INVALID, 2; all of them are in Locust's tables."""
    (tmp_path / "plan.yaml").write_text(PLAN.replace("HTTP", server[0]))
    done = _locust("--plan", str(tmp_path / "plan.yaml"), "--plan-out", str(tmp_path / "run"))

    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())["verdict"]
    counts = _counts(done.stdout + done.stderr)
    assert (verdict, done.returncode) == ("INVALID", 2), done.stderr
    assert counts["REQUEST", "chat"] == counts["TTFT", "chat"] == 50
    assert "INVALID; the report is" in done.stderr


def test_a_plan_that_can_not_be_used_is_refused_in_words_and_nothing_is_sent(tmp_path: Path):
    """A rate below 0: Locust does not begin, and says which key, which value and what is allowed."""
    (tmp_path / "plan.yaml").write_text(PLAN.replace("rate_per_s: 10", "rate_per_s: -1"))
    done = _locust("--plan", str(tmp_path / "plan.yaml"))

    assert done.returncode == 2
    assert "load.shape.rate_per_s = -1, must be above 0 and at most 100000" in done.stderr
    assert "Traceback" not in done.stderr
