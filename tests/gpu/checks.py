"""Runs the GPU checks, each in a process of its own, and sums up. `check.sh` is how to start it.

`checks.py [--fake] [CHECK...]`: all checks, or some. `--fake` takes a driver without a GPU and the CPU: the same
code paths but for the kernels. A check prints its figures as one JSON object; it fails by raising, and skips by
`Skip`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

TOTAL_TIMEOUT_S = 440.0
CHECK_TIMEOUT_S = 120.0
CHECKS = (
    "environment",
    "arena",
    "legacy_ipc",
    "read_only",
    "sharing",
    "kill",
    "attention",
    "generate_fp32",
    "generate_bf16",
    "prefix",
    "graphs",
    "scaleout",
    "fragmentation",
    "loader",
)
SKIPPED_STATUS = 77


def why_no_gpu() -> str:
    """ "" when there is one."""
    from python_backend.cuda import CudaError, CudaUnavailable
    from python_backend.cuda_driver import CudaDriver

    try:
        return "" if CudaDriver().gpus() else "the driver sees no GPU"
    except (CudaError, CudaUnavailable) as exc:
        return str(exc)


def run_check(name: str, is_fake: bool, timeout_s: float) -> dict[str, object]:
    command = [sys.executable, str(Path(__file__).with_name("check_bodies.py")), name]
    started_s = time.monotonic()
    environ = {**os.environ, "TIDEGATE_FAKE_GPU": "1"} if is_fake else dict(os.environ)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environ)
    except subprocess.TimeoutExpired:
        return {"check": name, "result": "failed", "reason": f"not done after {timeout_s:.0f} s"}
    result: dict[str, object] = {"check": name, "seconds": round(time.monotonic() - started_s, 1)}
    lines = done.stdout.strip().splitlines()
    figures = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if done.returncode == 0:
        return result | {"result": "passed"} | figures
    if done.returncode == SKIPPED_STATUS:
        return result | {"result": "skipped"} | figures
    tail = done.stderr.strip().splitlines()[-12:]
    return result | {"result": "failed", "status": done.returncode, "reason": tail}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    args = parser.parse_args()
    if not args.fake and (reason := why_no_gpu()):
        print(json.dumps({"result": "skipped", "reason": f"no GPU: skipped ({reason})"}))
        return 0
    deadline_s = time.monotonic() + TOTAL_TIMEOUT_S
    results = []
    for name in args.checks or CHECKS:
        left_s = deadline_s - time.monotonic()
        if left_s < 5:
            results.append({"check": name, "result": "skipped", "reason": "no time left"})
        else:
            results.append(run_check(name, args.fake, min(left_s, CHECK_TIMEOUT_S)))
        print(json.dumps(results[-1]), flush=True)
    counts = {
        word: sum(each["result"] == word for each in results) for word in ("passed", "failed", "skipped")
    }
    print(json.dumps({"summary": counts}))
    if out := os.environ.get("OUT"):
        Path(out, "gpu-checks.json").write_text(json.dumps({"summary": counts, "checks": results}, indent=1))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
