"""A whole plan under Locust: our generator sends it by the clock, and Locust's tables and charts show it.

Locust's users send nothing here. There are as many as requests are in flight, and its chart of users shows that.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, cast

import gevent
import msgspec
from locust import LoadTestShape, User, task

from loadtest.shell.events import events_of
from loadtest.shell.lines import FromChild, Going, Judged, Told
from loadtest.verdict import Verdict

log = logging.getLogger(__name__)


class InFlight(User):
    """Stands for a request of the plan that is under way."""

    @task
    def wait(self) -> None:
        gevent.sleep(1)


class PlanShape(LoadTestShape):
    """From the start of the child to its verdict; then Locust stops, with the verdict's exit code."""

    def __init__(self, plan: Path, name: str, folder: Path | None) -> None:
        """`folder`: for what the run leaves; None: `runs/NAME-TIME`."""
        super().__init__()
        # It would say two lines whenever a request begins or ends.
        logging.getLogger("locust.runners").setLevel(logging.WARNING)
        self._plan = plan
        self._name = name
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._in_flight = 0
        self.is_over = False

    def reset_time(self) -> None:
        super().reset_time()
        self.stop()
        folder = self._folder or Path("runs") / f"{self._name}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.is_over, self._in_flight = False, 0
        self.runner.environment.process_exit_code = Verdict.INVALID.exit_code
        self._child = subprocess.Popen(
            [sys.executable, "-m", "loadtest.shell.planned", str(self._plan), str(folder)],
            stdout=subprocess.PIPE,
        )
        gevent.spawn(self._read, self._child)

    def tick(self) -> tuple[int, float] | None:
        return None if self.is_over else (max(1, self._in_flight), 100.0)

    def stop(self) -> None:
        """Early: the child judges what there is, and is waited for."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            self._child.wait()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        stage = ""
        for line in cast(IO[bytes], child.stdout):
            message: Any = msgspec.json.decode(line, type=FromChild)
            if isinstance(message, Told):
                for event in events_of(message):
                    self.runner.environment.events.request.fire(**event)
            elif isinstance(message, Going):
                self._in_flight = message.in_flight
                if message.stage != stage:
                    log.info("%s", stage := message.stage)
            elif isinstance(message, Judged):
                self._judged(message)
        self.is_over = True

    def _judged(self, judged: Judged) -> None:
        self.runner.environment.process_exit_code = judged.exit_code
        for reason in judged.reasons:
            log.warning("%s", reason)
        report = Path(judged.folder) / "report.html"
        log.info("%s%s", judged.verdict, f"; the report is {report}" if report.exists() else "")
