"""A child that runs a whole plan: `python -m loadtest.shell.planned PLAN FOLDER`, JSON lines out.

The same run and verdict as `tidegate loadtest`; Locust shows it. SIGTERM stops the load and judges what there is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from loadtest.generating.collecting import Progress
from loadtest.planning.plan import PlanError, parse_plan
from loadtest.records import Request
from loadtest.run import run_plan
from loadtest.running.errors import RunError
from loadtest.running.stopping import stopped_by_signals
from loadtest.shell.lines import Going, Judged, line_of, told
from loadtest.verdict import Judgement, Verdict
from loadtest.watching.watch import Watch

MAX_REASONS = 20


class _Teller:
    """An Observer that writes lines."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._stage = ""

    def stage(self, text: str) -> None:
        self._stage = text
        self._going(0)

    def began(self, watch: Watch, duration_s: float) -> None:
        self.stage(f"sending for {duration_s:g} s")

    def progress(self, progress: Progress) -> None:
        self._going(progress.num_in_flight)

    def request(self, request: Request) -> None:
        self._pipe.write(line_of(told(request)))

    def _going(self, in_flight: int) -> None:
        self._pipe.write(line_of(Going(self._stage, in_flight)))
        self._pipe.flush()


def main() -> None:
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the lines
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        judgement = _run(path, folder, _Teller(pipe))
        verdict = judgement.verdict
        bad = [f"{row.expression}: {row.why}" for row in judgement.rows if row.verdict.exit_code]
    except (RunError, PlanError, OSError) as exc:
        verdict, bad = Verdict.INVALID, [str(exc)]
    pipe.write(line_of(Judged(verdict.value, verdict.exit_code, str(folder), bad[:MAX_REASONS])))
    pipe.flush()


def _run(path: Path, folder: Path, observer: _Teller) -> Judgement:
    text = path.read_text()
    plan = parse_plan(text, path.parent)
    with stopped_by_signals(lambda said: print(said, file=sys.stderr)) as stop:
        return run_plan(plan, folder, plan_text=text, observer=observer, stop=stop).judgement


if __name__ == "__main__":
    main()
