"""A rollout under 100 calls/s on the real Triton: does everyone go where the percentages say, and back at once?

One echo model under two names is one service with two versions. The calls go through the gateway's gRPC port from
the first moment to the last; each fifth belongs to one of 200 sessions. routes.yaml says 0, 5, 50 and 100 % one
after the other, and is changed and taken again all the while; then `tidegate rollout` promotes the new version and
rolls it back, again and again.

- `share_5`, `share_50`: percent of 10,000 calls without a session that the new version answered; `min` and `max`
  are the bounds, 3 sigma of the binomial. `share_0` and `share_100` have to be exact. `num_outside`: those that are
  not within.
- `num_switched`: sessions, of `num_sessions`, that two versions answered from the first call at 5 % to the last at
  50 %.
- `rollback_seen_ms`: from the return of `tidegate rollout rollback` to the beginning of the last call that the new
  version still answered, 0 when there was none. Median, least and greatest; the goal is below 1,000.
  `rollback_from_written_ms`: from the moment when the revision is in the ledger, before the command returns;
  `rollback_from_start_ms`: from the command's start, most of which is Python's own.
- `reload_ms`: from the change of routes.yaml to its being in force.
- `num_failed`: of all `num_calls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gateway import RATE_PER_S, REPOSITORY
from benchmarks.report import Figure, Report
from benchmarks.rollout_calls import Call, Caller
from benchmarks.rollout_figures import (
    Rollback,
    Window,
    between,
    is_within,
    seen_until_s,
    share,
    versions_of_sessions,
)
from contracts.stack import write_whole
from gateway import rollout
from gateway.route_table import KIND
from ledger.revisions import RevisionStore
from ledger.store import Store
from tidegate.testing import RunningStack, running_stack

NAME = "rollout"
SERVICE = OLD = "echo"
NEW = "echo_next"
SPLITS = (5.0, 50.0)
"""Growing: no session has to move."""
REVISION = re.compile(r"^tidegate_gateway_routes_revision (\S+)$", re.MULTILINE)
LOOK_EVERY_S = 0.05
IN_FORCE_TIMEOUT_S = 30.0
LOOKED_AT_S = 1.5
"""After a rollback; and as long again as it takes to be in force."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """Of one run."""

    num_exact: int
    """Calls at 0 and at 100 %."""
    num_split: int
    """Calls at each of the percentages between."""
    num_reloads: int
    num_rollbacks: int


FULL = Size(1_000, 10_000, 50, 20)
QUICK = Size(40, 240, 2, 1)


@dataclass
class Trial:
    """What was done, and when."""

    windows: list[Window] = field(default_factory=list)
    reloads_s: list[float] = field(default_factory=list)
    rollbacks: list[Rollback] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="tg-rollout-") as name:
        folder = Path(name)
        routes = folder / "routes.yaml"
        routes.write_text(routes_text(0, 0))
        for model in (OLD, NEW):
            write_version(folder / "repository" / model)
        options = [*("--repository", str(folder / "repository"), "--routes", str(routes), "--no-scaler")]
        with running_stack(*options, f"--model={OLD}", f"--model={NEW}") as running:
            calls, trial = asyncio.run(_tried(running, routes, size, progress))
    return Report(NAME, 1, figures_of(calls, trial)).to_dict()


def write_version(target: Path) -> None:
    """The echo model under the folder's name."""
    shutil.copytree(REPOSITORY / "echo", target, ignore=shutil.ignore_patterns("__pycache__"))
    config = target / "config.pbtxt"
    config.write_text(config.read_text().replace('"echo', f'"{target.name}'))


def routes_text(percent: float, number: int) -> str:
    """`number` makes each text another one, and nothing else that shows here."""
    versions = [{"name": OLD, "percent": 100 - percent}, {"name": NEW, "percent": percent}]
    route = {"versions": versions, "queue": {"max_waiting": 100 + number}}
    return rollout.write({"services": {SERVICE: route}})


def latest_written_s(ledger_url: str) -> float:
    """The routes' latest revision, by `time.monotonic()`."""
    with contextlib.closing(Store.open(ledger_url)) as store:
        latest = RevisionStore(store).latest(KIND)
    if latest is None:
        raise RuntimeError("the ledger has no revision of the routes")
    return time.monotonic() - (time.time() - latest.made_unix_s)


async def _tried(
    running: RunningStack, routes: Path, size: Size, progress: Progress
) -> tuple[list[Call], Trial]:
    return await Rollouts(running, routes, size, progress).run()


class Rollouts:
    """All that is done to the routes while the calls go on. Make it inside the event loop that runs it."""

    def __init__(self, running: RunningStack, routes: Path, size: Size, progress: Progress) -> None:
        self._stack = running.stack
        self._routes = routes
        self._size = size
        self._progress = progress
        self._caller = Caller(self._stack.gateway_grpc, RATE_PER_S)
        self._trial = Trial()
        self._num_texts = 0

    async def run(self) -> tuple[list[Call], Trial]:
        """Raises RuntimeError when a change does not come in force, or a command fails."""
        async with (
            httpx.AsyncClient(base_url=f"http://{self._stack.gateway_http}") as self._http,
            self._caller.calling(),
        ):
            await self._hold(0, self._size.num_exact, 0)
            self._caller.era += 1
            for percent in SPLITS:
                await self._hold(percent, self._size.num_split, self._size.num_reloads // len(SPLITS))
            await self._hold(100, self._size.num_exact, 0)
            await self._reload(0)
            for number in range(self._size.num_rollbacks):
                again = ("promote", SERVICE)
                await self._roll_back(
                    again if number else ("start", SERVICE, "--to", NEW, "--percent", "100")
                )
                self._progress(f"rollback {number + 1} of {self._size.num_rollbacks}")
        return self._caller.calls, self._trial

    async def _hold(self, percent: float, num_calls: int, num_reloads: int) -> None:
        """So long that so many calls without a session begin, with that many reloads spread over it."""
        await self._reload(percent)
        from_s = time.monotonic()
        until_s = from_s + num_calls / self._caller.single_rate_per_s + 0.5
        for number in range(num_reloads):
            await asyncio.sleep(
                max(0.0, from_s + (until_s - from_s) * number / num_reloads - time.monotonic())
            )
            await self._reload(percent)
        await asyncio.sleep(max(0.0, until_s - time.monotonic()))
        self._trial.windows.append(Window(percent, from_s, time.monotonic(), num_calls))
        self._progress(f"{percent:g} %: {time.monotonic() - from_s:.0f} s, {num_reloads} reloads meanwhile")

    async def _reload(self, percent: float) -> None:
        """Another text in routes.yaml, until it is in force."""
        self._num_texts += 1
        before, started_s = await self._revision(), time.monotonic()
        write_whole(self._routes, routes_text(percent, self._num_texts).encode())
        await self._moved_on(before)
        self._trial.reloads_s.append(time.monotonic() - started_s)

    async def _roll_back(self, forward: Sequence[str]) -> None:
        """`forward` brings all calls to the new version."""
        before = await self._revision()
        await self._command(*forward)
        await self._moved_on(before)
        await asyncio.sleep(0.5)
        before, started_s = await self._revision(), time.monotonic()
        await self._command("rollback", SERVICE)
        returned_s = time.monotonic()
        written_s = await asyncio.to_thread(latest_written_s, self._stack.ledger_url)
        await self._moved_on(before)
        await asyncio.sleep(LOOKED_AT_S)
        self._trial.rollbacks.append(Rollback(started_s, written_s, returned_s, time.monotonic()))

    async def _command(self, *words: str) -> None:
        """`tidegate rollout`. Raises RuntimeError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", "rollout", *words, "--run-dir", self._stack.run_dir),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"tidegate rollout {' '.join(words)}: {said.decode()}")

    async def _revision(self) -> int:
        """Of the routes in force, as the gateway says."""
        found = REVISION.search((await self._http.get("/metrics")).text)
        if found is None:
            raise RuntimeError("the gateway's metrics have no tidegate_gateway_routes_revision")
        return int(float(found[1]))

    async def _moved_on(self, before: int) -> None:
        deadline_s = time.monotonic() + IN_FORCE_TIMEOUT_S
        while await self._revision() == before:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"revision {before} is still in force after {IN_FORCE_TIMEOUT_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)


def figures_of(calls: list[Call], trial: Trial) -> dict[str, Figure]:
    shares = {f"share_{window.percent:g}": share(calls, window, NEW) for window in trial.windows}
    found = {name: figure for name, figure in shares.items() if figure is not None}
    splits = [window for window in trial.windows if window.percent in SPLITS]
    sessions = versions_of_sessions(between(calls, splits[0].from_s, splits[-1].to_s))
    since = {
        "seen": [each.returned_s for each in trial.rollbacks],
        "from_written": [each.written_s for each in trial.rollbacks],
        "from_start": [each.started_s for each in trial.rollbacks],
    }
    seen = {
        f"rollback_{name}_ms": Figure.of_runs(
            [
                seen_until_s(calls, NEW, from_s, each.to_s) * 1000
                for from_s, each in zip(begun_s, trial.rollbacks, strict=True)
            ],
            "ms",
        )
        for name, begun_s in since.items()
    }
    return {
        **found,
        "num_outside": Figure(sum(not is_within(figure) for figure in found.values()), "percentages"),
        "num_switched": Figure(sum(len(versions) > 1 for versions in sessions.values()), "sessions"),
        "num_sessions": Figure(len(sessions), "sessions"),
        **seen,
        "reload_ms": Figure.of_runs([each * 1000 for each in trial.reloads_s], "ms"),
        "num_rollbacks": Figure(len(trial.rollbacks), "rollbacks"),
        "num_reloads": Figure(len(trial.reloads_s), "reloads"),
        "num_failed": Figure(sum(not call.version for call in calls), "calls"),
        "num_calls": Figure(len(calls), "calls"),
    }
