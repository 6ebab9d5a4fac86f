"""A run that never happened, with all that a report can show: for the page's tests and its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.curve import Curve, Series, Source
from loadtest.measuring.steady import Window
from loadtest.records import Float, Request, Requests, Status, columns_of
from loadtest.reporting.result import ScalingChange
from loadtest.verdict import Judgement, Row, Verdict

NAN = float("nan")


@dataclass(frozen=True)
class MadeResult:
    """Satisfies `Result`."""

    name: str
    requests: Requests
    curve: Curve
    window: Window
    judgement: Judgement
    started_unix_s: float = 1_796_131_200.0
    ended_s: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()
    changes: Sequence[ScalingChange] = ()


def made_result(
    *,
    duration_s: float = 120.0,
    rate: float = 20.0,
    seed: int = 1,
    rows: Sequence[Row] | None = None,
    error: str = "",
) -> MadeResult:
    """Chat streams and unary embeddings at `rate` with a slow spell in the middle, two instances, some errors."""
    random = np.random.default_rng(seed)
    starts_s = np.sort(random.uniform(0, duration_s, int(duration_s * rate)))
    rows_made = [_request(i, at, duration_s, random, error) for i, at in enumerate(starts_s.tolist())]
    return MadeResult(
        name="chat-at-the-peak",
        requests=columns_of(rows_made),
        curve=_curve(duration_s, rate, random),
        window=Window(0.1 * duration_s, duration_s, True, "TTFT and in flight do not grow.", ()),
        judgement=Judgement(tuple(made_rows() if rows is None else rows)),
        ended_s=duration_s + 4,
        machine={
            "processor": "a processor with 2 cores",
            "memory": "16 GiB",
            "commit": "0123456789ab",
            "Triton": "2.51.0",
            "Python": "3.11.2",
        },
        changes=[
            ScalingChange(0.3 * duration_s, "chat", 1, 2, "chat 1→2: utilisation 0.86 above 0.75 for 10 s"),
            ScalingChange(0.8 * duration_s, "chat", 2, 1, "utilisation 0.31 below 0.40 for 20 s"),
        ],
    )


def made_rows() -> list[Row]:
    return [
        Row("ttft.scheduled p99 < 2s @99%", 0.412, 2.0, "s", 0.371, 0.498, 1890, 459, Verdict.PASS,
            "p99 is 412 ms, at 99 % confidence at most 498 ms."),
        Row("latency.scheduled p99.9 < 4s @99%", None, 4.0, "s", None, None, 1890, 4603, Verdict.INVALID,
            "1,890 requests cannot show a p99.9 at 99 % confidence, 4,603 are needed; run longer or ask for p99."),
        Row("errors rate < 0.1%", 0.0021, 0.001, "ratio", 0.0009, 0.0046, 2160, None, Verdict.FAIL,
            "5 of 2,160 requests failed, 0.23 %."),
        Row("kv.used_ratio max < 0.90", 0.81, 0.9, "ratio", None, None, 480, None, Verdict.PASS,
            "The high-water mark was 81 % of the blocks."),
        Row("dispatch_delay p99 < 5ms", 0.0021, 0.005, "s", 0.0019, 0.0024, 2160, 459, Verdict.PASS,
            "The generator was late by at most 2.4 ms at p99."),
    ]  # fmt: skip


def _request(index: int, at_s: float, duration_s: float, random: np.random.Generator, error: str) -> Request:
    is_chat = random.random() < 0.8
    slow = 1 + 3 * np.exp(-(((at_s / duration_s - 0.55) / 0.06) ** 2))
    sent_s = at_s + random.exponential(0.0006)
    first_s = sent_s + slow * random.lognormal(-2.6, 0.5)
    num_tokens = int(random.integers(8, 48)) if is_chat else 0
    gaps_s = random.lognormal(-3.7, 0.35, max(0, num_tokens - 1))
    chunks_s = first_s + np.concatenate([[0.0], np.cumsum(gaps_s)]) if num_tokens else np.array([])
    last_s = float(chunks_s[-1]) if num_tokens else first_s
    status, said = Status.OK, ""
    if random.random() < 0.0025 or (error and index == 0):
        status, said = (
            Status.ERROR,
            error or f"http 503: no instance took the request within {random.integers(1, 9)} s",
        )
    elif last_s > duration_s + 0.5:
        status, last_s = Status.CENSORED, duration_s + 0.5
        chunks_s = chunks_s[chunks_s < last_s]
    is_ok = status is Status.OK
    return Request(
        index=index,
        process=index % 2,
        user="chat" if is_chat else "embed",
        service="chat" if is_chat else "embed",
        session="",
        turn=0,
        status=status,
        error=said,
        instance=f"{'chat' if is_chat else 'embed'}-{index % 2}" if is_ok else "",
        t_intended_s=at_s,
        t_sent_s=sent_s,
        t_first_s=first_s if is_ok else NAN,
        t_last_s=last_s,
        input_tokens=40 if is_chat else 12,
        output_tokens=len(chunks_s),
        cached_tokens=0,
        chunk_times_s=chunks_s.tolist() if is_ok else (),
        chunk_tokens=[1] * len(chunks_s) if is_ok else (),
    )


def _curve(duration_s: float, rate: float, random: np.random.Generator) -> Curve:
    t_s = np.arange(0, duration_s + 4, 0.25) + 0.01
    wave = np.exp(-(((t_s / duration_s - 0.55) / 0.08) ** 2)) * (t_s < duration_s)
    busy = np.clip(t_s / 8, 0, 1) * (t_s < duration_s)
    used = np.round(700 * busy + 780 * wave + random.normal(0, 25, len(t_s)) * busy).clip(0)
    high = np.minimum(2000, used + random.integers(0, 90, len(t_s)) * busy)
    chat = (("model", "chat"),)

    def series(name: str, values: Float, unit: str, labels: tuple[tuple[str, str], ...] = chat) -> Series:
        return Series(name, labels, unit, t_s, values)

    node = Source("node", len(t_s), 0, "")
    triton = Source("triton", len(t_s) - 3, 3, "no answer within 250 ms")
    mib = float(2**20)
    return Curve(
        series=(
            series("kv.used_blocks", used, "blocks"),
            series("kv.high_water_blocks", high, "blocks"),
            series("kv.total_blocks", np.full(len(t_s), 2000.0), "blocks"),
            series(
                "kv.preemptions", np.cumsum((wave > 0.9) & (random.random(len(t_s)) < 0.2)).astype(float), ""
            ),
            series("running", np.round(rate * 0.5 * busy + 9 * wave), ""),
            series("waiting", np.round(12 * wave * random.random(len(t_s))), ""),
            Series(
                "instances.wanted",
                chat,
                "",
                np.array([0.0, 0.3, 0.8]) * duration_s,
                np.array([1.0, 2.0, 1.0]),
            ),
            series("instances.ready", 1.0 + ((t_s > 0.31 * duration_s) & (t_s < 0.81 * duration_s)), ""),
            series("pss_bytes", 310 * mib + 40 * mib * busy, "bytes", (("process", "worker"), ("pid", "11"))),
            series("pss_bytes", 300 * mib + 20 * mib * busy, "bytes", (("process", "worker"), ("pid", "12"))),
            series(
                "pss_bytes", np.full(len(t_s), 88 * mib), "bytes", (("process", "gateway"), ("pid", "13"))
            ),
        ),
        sources=(node, triton),
    )
