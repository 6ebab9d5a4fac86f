"""Whether the load generator's own figures are true: against a scripted server, Locust, perf_analyzer and aiperf.

- `stall_p99_error`, `stall_p999_error`: one stall of 2 s in 10 s at 20 calls/s; the reported percentile of
  scheduled latency / the one that follows from the script, less 1. The peers `locust_1`, `locust_20` are Locust's
  `constant_throughput` with so many users on the same server: its own percentiles, and how many calls it sent.
- `arrivals_lost`: calls of the drawn schedule without a row, of 10 minutes at 200/s. `dispatch_delay_p99_ms`,
  `_max_ms`: how late they were sent. Quick: 30 s.
- `gap_p99_error_ms`: 50 streams at once; each gap between chunks as the client saw it, less the same gap by the
  server's own stamps; the 99th percentile of the absolute difference. `gap_p99_ms`, `gap_p99_truth_ms` beside it.
- `p50_over_perf_analyzer`: latency of a model that pauses 40 ms, on the real Triton at 10 calls/s, ours /
  perf_analyzer's, rounds in turn; the median of the rounds. `echo_over_perf_analyzer_ms`: of an echo at 50 calls/s
  ours - perf_analyzer's, which is what Python's gRPC takes more than C++'s. $PERF_ANALYZER names the binary.
- `ttft_p50_over_aiperf`, `latency_...`, `gap_...`: of a chat stream on the mock, ours / aiperf's. $AIPERF names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gateway
from benchmarks.loadtest_peers import aiperf_round, locust_round, perf_analyzer_round
from benchmarks.peers import PeerUnavailable
from benchmarks.report import Figure, Report
from benchmarks.statistics import median, percentile
from loadtest.generating.fleet import Generated, run_task
from loadtest.generating.messages import Target
from loadtest.mock_server import Script
from loadtest.records import Requests, Status
from loadtest.testing import PlainArgument, RunningMock, plain_task, running_mock
from tidegate.testing import running_stack

NAME = "loadtest"
STALL = Script(first_s=0.005, stall_from_s=4.0, stall_to_s=6.0)
STALL_RATE_PER_S, STALL_RUN_S = 20.0, 10.0
ARRIVALS_PER_S, ARRIVALS_S, QUICK_ARRIVALS_S = 200.0, 600.0, 30.0
STREAMS = Script(first_s=0.05, every_s=0.025, num_chunks=160)
NUM_STREAMS, STREAMS_S = 50, 20.0
RATES_PER_S = {"pause": 10.0, "echo": 50.0}
REPOSITORIES = {"pause": Path(__file__).parent / "loadtest_repository", "echo": gateway.REPOSITORY}
CHAT = Script(first_s=0.08, every_s=0.02, num_chunks=32)
CHAT_RATE_PER_S = 10.0

Progress = Callable[[str], None]
Figures = dict[str, Figure]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    rounds, round_s = (1, 8.0) if quick else (5, 15.0)
    figures, peers, skipped = stall(progress)
    figures |= arrivals(QUICK_ARRIVALS_S if quick else ARRIVALS_S, progress)
    figures |= gaps(progress)
    for name, compare in (("perf_analyzer", against_perf_analyzer), ("aiperf", against_aiperf)):
        try:
            ours, theirs = compare(rounds, round_s, progress)
        except PeerUnavailable as exc:
            skipped[name] = str(exc)
        else:
            figures |= ours
            peers[name] = theirs
    return Report(NAME, rounds, figures, peers, skipped).to_dict()


def stall(progress: Progress) -> tuple[Figures, dict[str, Figures], dict[str, str]]:
    argument = PlainArgument("openai_embeddings", rate_per_s=STALL_RATE_PER_S, duration_s=STALL_RUN_S)
    with running_mock(STALL) as mock:
        generated = run_task(plain_task(argument, mock, drain_s=5.0))
        peers, skipped = {}, {}
        for users in (1, 20):
            mock.follow(STALL)
            try:
                peers[f"locust_{users}"] = locust_round(mock.http, users, STALL_RATE_PER_S, STALL_RUN_S)
            except PeerUnavailable as exc:
                skipped[f"locust_{users}"] = str(exc)
    seen_s, truth_s = scheduled_s(checked(generated)), true_latencies_s(STALL, STALL_RATE_PER_S, STALL_RUN_S)
    figures: Figures = {}
    for label, percent in (("p99", 99.0), ("p999", 99.9)):
        seen, truth = percentile(seen_s, percent), percentile(truth_s, percent)
        figures[f"stall_{label}_ms"] = Figure(seen * 1000, "ms")
        figures[f"stall_{label}_truth_ms"] = Figure(truth * 1000, "ms")
        figures[f"stall_{label}_error"] = Figure(seen / truth - 1, "ratio")
        progress(f"stall {label}: {seen * 1000:.0f} ms, truth {truth * 1000:.0f}")
    return figures, peers, skipped


def true_latencies_s(script: Script, rate_per_s: float, duration_s: float) -> list[float]:
    """Of evenly spaced calls to a server without a limit: `first_s`, or until the stall's end."""
    due_s = np.arange(round(rate_per_s * duration_s)) / rate_per_s
    ready_s = due_s + script.first_s
    is_held = (ready_s >= script.stall_from_s) & (ready_s < script.stall_to_s)
    ended_s = np.where(is_held, script.stall_to_s, ready_s)
    return [float(value) for value in ended_s - due_s]


def arrivals(duration_s: float, progress: Progress) -> Figures:
    progress(f"{ARRIVALS_PER_S:g} calls/s for {duration_s:g} s")
    argument = PlainArgument("grpc_tensors", rate_per_s=ARRIVALS_PER_S, duration_s=duration_s, poisson_seed=7)
    with running_mock(Script(first_s=0.01)) as mock:
        task = plain_task(argument, mock, num_processes=2)
        rows = checked(run_task(task)).requests
    lost = len(task.work.t_intended_s) - int(
        np.isin(np.arange(len(task.work.t_intended_s)), rows.index).sum()
    )
    delays_ms = ((rows.t_sent_s - rows.t_intended_s) * 1000).tolist()
    progress(f"{len(rows)} sent, {lost} lost, p99 {percentile(delays_ms, 99):.2f} ms late")
    return {
        "arrivals": Figure(len(rows), "calls"),
        "arrivals_lost": Figure(lost, "calls"),
        "dispatch_delay_p50_ms": Figure(median(delays_ms), "ms"),
        "dispatch_delay_p99_ms": Figure(percentile(delays_ms, 99), "ms"),
        "dispatch_delay_max_ms": Figure(max(delays_ms), "ms"),
    }


def gaps(progress: Progress) -> Figures:
    """Of both doors; the gRPC one carries the plain names."""
    figures: Figures = {}
    for label, protocol in (("", "grpc_generate"), ("http_", "openai_chat")):
        argument = PlainArgument(protocol, slots=NUM_STREAMS, duration_s=STREAMS_S)  # type: ignore[arg-type]
        with running_mock(STREAMS) as mock:
            rows = checked(run_task(plain_task(argument, mock, num_processes=2, drain_s=10.0))).requests
            seen_ms, truth_ms = paired_gaps_ms(rows, mock)
        errors_ms = np.abs(seen_ms - truth_ms).tolist()
        figures |= {
            f"{label}gap_p99_error_ms": Figure(percentile(errors_ms, 99), "ms"),
            f"{label}gap_p50_ms": Figure(median(seen_ms.tolist()), "ms"),
            f"{label}gap_p99_ms": Figure(percentile(seen_ms.tolist(), 99), "ms"),
            f"{label}gap_p99_truth_ms": Figure(percentile(truth_ms.tolist(), 99), "ms"),
        }
        progress(f"{label}gaps: {len(errors_ms)}, p99 error {percentile(errors_ms, 99):.2f} ms")
    return figures


def paired_gaps_ms(rows: Requests, mock: RunningMock) -> tuple[Any, Any]:
    """Each gap as the client and as the server saw it."""
    stamps_s = mock.stamps_s()
    seen, truth = [], []
    for at, index in enumerate(rows.index.tolist()):
        times_s = rows.chunk_times_s[rows.chunk_offsets[at] : rows.chunk_offsets[at + 1]]
        seen.append(np.diff(times_s))
        truth.append(np.diff(stamps_s[f"{index}.0"][: len(times_s)]))
    return np.concatenate(seen) * 1000, np.concatenate(truth) * 1000


def against_perf_analyzer(rounds: int, round_s: float, progress: Progress) -> tuple[Figures, Figures]:
    """Raises PeerUnavailable."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for model, rate_per_s in RATES_PER_S.items():
        argument = PlainArgument("grpc_tensors", rate_per_s, round_s, service=model, tensor_values=16)
        options = ("--repository", str(REPOSITORIES[model]), f"--model={model}", "--no-scaler")
        with running_stack(*options) as running:
            mine, other = _in_turn(running.stack.triton_grpc, argument, rounds, progress)
        for label, percent in (("p50", 50.0), ("p99", 99.0)):
            ours[f"{model}_{label}_ms"] = [percentile(each, percent) * 1000 for each in mine]
            theirs[f"{model}_{label}_ms"] = [percentile(each, percent) * 1000 for each in other]
    figures = {name: Figure.of_runs(values, "ms") for name, values in ours.items()}
    figures["p50_over_perf_analyzer"] = Figure.of_runs(
        ratios(ours["pause_p50_ms"], theirs["pause_p50_ms"]), "x"
    )
    added_ms = [mine - other for mine, other in zip(ours["echo_p50_ms"], theirs["echo_p50_ms"], strict=True)]
    figures["echo_over_perf_analyzer_ms"] = Figure.of_runs(added_ms, "ms")
    return figures, {name: Figure.of_runs(values, "ms") for name, values in theirs.items()}


def _in_turn(
    address: str, argument: PlainArgument, rounds: int, progress: Progress
) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds of each call, a list a round: ours and perf_analyzer's."""
    ours, theirs = [], []
    for number in range(rounds):
        theirs.append(
            perf_analyzer_round(address, argument.service, argument.rate_per_s, argument.duration_s)
        )
        ours.append(service_s(checked(run_task(plain_task(argument, Target(grpc=address))))))
        progress(
            f"{argument.service}, round {number + 1} of {rounds}: p50/p99 in ms ours {shown_ms(ours[-1])}, "
            f"perf_analyzer {shown_ms(theirs[-1])}"
        )
    return ours, theirs


def against_aiperf(rounds: int, round_s: float, progress: Progress) -> tuple[Figures, Figures]:
    """Raises PeerUnavailable."""
    argument = PlainArgument("openai_chat", rate_per_s=CHAT_RATE_PER_S, duration_s=round_s)
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    with running_mock(CHAT) as mock:
        for number in range(rounds):
            for name, value in aiperf_round(mock.http, CHAT_RATE_PER_S, round_s).items():
                theirs.setdefault(name, []).append(value)
            rows = checked(run_task(plain_task(argument, mock))).requests
            for name, value in chat_figures_ms(rows).items():
                ours.setdefault(name, []).append(value)
            last = {name: (round(ours[name][-1], 2), round(theirs[name][-1], 2)) for name in ours}
            progress(f"round {number + 1} of {rounds}: (ours, aiperf's) in ms {last}")
    figures: Figures = {}
    for name, values in ours.items():
        figures[f"chat_{name}_ms"] = Figure.of_runs(values, "ms")
        figures[f"{name}_over_aiperf"] = Figure.of_runs(ratios(values, theirs[name]), "x")
    return figures, {f"chat_{name}_ms": Figure.of_runs(values, "ms") for name, values in theirs.items()}


def chat_figures_ms(rows: Requests) -> dict[str, float]:
    """From the sending, as aiperf counts; ITL is its (last - first) / (tokens - 1), a mean per request."""
    latency_ms = (rows.t_last_s - rows.t_sent_s) * 1000
    ttft_ms = (rows.t_first_s - rows.t_sent_s) * 1000
    last_chunk_s = rows.chunk_times_s[rows.chunk_offsets[1:] - 1]
    itl_ms = (last_chunk_s - rows.t_first_s) * 1000 / (rows.output_tokens - 1)
    return {
        "ttft_p50": percentile(ttft_ms.tolist(), 50),
        "ttft_p99": percentile(ttft_ms.tolist(), 99),
        "latency_p50": percentile(latency_ms.tolist(), 50),
        "latency_p99": percentile(latency_ms.tolist(), 99),
        "itl_p50": percentile(itl_ms.tolist(), 50),
    }


def checked(generated: Generated) -> Generated:
    """Raises RuntimeError when anything failed: its figures would be of something else."""
    bad = np.flatnonzero(generated.requests.status != Status.OK)
    if len(bad) or not len(generated.requests):
        errors = sorted(set(generated.requests.error[bad].tolist()))
        raise RuntimeError(
            f"{len(bad)} of {len(generated.requests)} calls failed: {errors[:3]}, {generated.problems}"
        )
    return generated


def scheduled_s(generated: Generated) -> list[float]:
    rows = generated.requests
    return [float(value) for value in rows.t_last_s - rows.t_intended_s]


def service_s(generated: Generated) -> list[float]:
    rows = generated.requests
    return [float(value) for value in rows.t_last_s - rows.t_sent_s]


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def shown_ms(values_s: list[float]) -> str:
    return f"{percentile(values_s, 50) * 1000:.2f}/{percentile(values_s, 99) * 1000:.2f}"
