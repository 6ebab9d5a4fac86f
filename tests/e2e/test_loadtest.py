"""`tidegate loadtest` and `tidegate launch-check` on the session's stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.watching.parquet import read_curve

pytestmark = pytest.mark.e2e

PLAN = """
name: short
target: {{run_dir: "{run_dir}"}}
load: {{kind: open, shape: {{kind: hold, rate_per_s: 4, duration_s: 5}}}}
users:
  - {{name: chat, kind: openai_chat, service: chat, prompt_tokens: 16, output_tokens: 6}}
  - {{name: say, kind: grpc_generate, service: chat, prompt_tokens: 16, output_tokens: 6}}
  - {{name: embed, kind: openai_embeddings, service: embed, weight: 2}}
  - {{name: vectors, kind: grpc_tensors, service: embed}}
warm_up: {{steady: "off"}}
memory: {{baseline_s: 1, settle_s: 3}}
slo: ["errors count == 0", "kv.used_ratio max < 0.9", "kv.preemptions == 0"]
"""
TOUCHED = ("errors count", "kv.used_ratio", "kv.preemptions", "kv back to baseline", "every route answered")


def tidegate(*arguments: str) -> tuple[int, dict[str, object], str]:
    """Exit code, the last line's object, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def run(running, tmp_path_factory) -> tuple[Path, Path, int, dict[str, object]]:
    """The plan, its run's folder, and what the command said."""
    folder = tmp_path_factory.mktemp("loadtest")
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.format(run_dir=running.run_dir))
    code, said, err = tidegate("loadtest", str(plan), "--out", str(folder / "run"), "--json")
    assert said["requests"]["ok"] == said["requests"]["total"] > 0, err
    return plan, folder / "run", code, said


def test_all_four_ways_in_are_answered_and_the_memory_came_back(run):
    """About 20 requests of chat and embeddings, by HTTP and gRPC. How late the generator was on a busy machine is
    the verdict's affair: the exit code follows it, and nothing else was wrong."""
    _, _, code, said = run
    rows = {row["expression"]: row for row in said["rows"]}
    judged = {name: row["verdict"] for name, row in rows.items() if name.startswith(TOUCHED)}
    assert len(judged) == len(TOUCHED), rows
    assert set(judged.values()) == {"PASS"}, rows
    assert code == {"PASS": 0, "FAIL": 1, "INVALID": 2}[said["verdict"]]


def test_the_curve_has_the_stacks_own_counters_from_before_the_load_until_after_it(run):
    """KV blocks with their marks, queues, every process, on the requests' clock."""
    _, folder, _, said = run
    curve = read_curve(folder / "curve.parquet")
    (high,) = curve.named("kv.high_water_blocks")
    assert high.t_s[0] < 0 < said["duration_s"] < high.t_s[-1]
    assert high.values[0] == high.values[-1] == 0 < high.values.max()
    for name in ("pool.used_bytes", "running", "waiting", "triton.pending", "instances.ready", "cpu_s"):
        assert curve.named(name), name
    processes = {dict(series.labels)["process"] for series in curve.named("pss_bytes")}
    assert {"node", "tritonserver", "gateway", "stub", "worker", "forkserver"} <= processes


def test_the_report_is_made_again_from_the_raw_rows(run):
    """The same verdict, and a page."""
    _, folder, code, said = run
    (folder / "report.html").unlink()
    again_code, again, _ = tidegate("loadtest", "report", str(folder), "--json")
    assert (again_code, again["rows"]) == (code, said["rows"])
    assert (folder / "report.html").stat().st_size > 50_000


def test_a_launch_without_evidence_is_invalid_and_each_row_says_how_to_get_some(run):
    """There is a run; no policy, no second version, no backup, no Prometheus."""
    plan, folder, _, _ = run
    code, said, _ = tidegate("launch-check", str(plan), "--run", str(folder), "--json")
    verdicts = {row["name"]: row["verdict"] for row in said["rows"]}
    assert (code, said["verdict"]) == (2, "INVALID")
    assert verdicts["memory"] == "PASS"
    assert [verdicts[name] for name in ("rollback", "backups")] == ["FAIL", "FAIL"]
    assert [verdicts[name] for name in ("scaling", "alerts")] == ["INVALID", "INVALID"]
