"""The plan of a load test, as its YAML file has it: checked whole before anything is sent.

Every key has its default in sight here; an unknown or repeated key is refused with the nearest one that exists.
Relative traces are looked for beside the plan and in $TIDEGATE_TRACES.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from contracts.checked_yaml import load_yaml
from loadtest.planning.launch import Launch
from loadtest.planning.load import ClosedLoop, Load, OpenLoop, Replay, Seconds, Span
from loadtest.planning.strict import Strict, findings
from loadtest.planning.trace_file import FOLDER
from loadtest.planning.users import User

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Address = Annotated[str, Field(pattern=r"^[^/\s]+:[0-9]{1,5}$")]


class PlanError(ValueError):
    """The plan can't be used. `findings`: one sentence each, with key, value and what is allowed."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("; ".join(findings))
        self.findings = tuple(findings)


class Target(Strict):
    """What is tested. Whatever is left out is taken from the stack that runs in `run_dir`."""

    http: Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")] | None = None
    """The gateway, or another OpenAI server: `http://127.0.0.1:9000`."""
    grpc: Address | None = None
    """KServe v2 gRPC, the gateway's or Triton's: `127.0.0.1:9001`."""
    triton_grpc: Address | None = None
    """Triton's own gRPC, for its statistics."""
    triton_metrics: Address | None = None
    """Triton's Prometheus metrics."""
    node_socket: Path | None = None
    """The node daemon's control socket, for the KV cache's figures."""
    run_dir: Path | None = None
    """Of `tidegate up`. None: $TIDEGATE_RUN_DIR or the default."""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The environment variable that holds the gateway's API key; keys never stand in a plan."""
    ca: Path | None = None
    """PEM; whom to believe. None: the system's, or no TLS."""
    cert: Path | None = None
    """PEM of a client certificate (mutual TLS), with `cert_key`."""
    cert_key: Path | None = None
    grpc_tls: bool = False
    """`grpc` speaks TLS. `http` says it by its scheme."""

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> Self:
        if (self.cert is None) != (self.cert_key is None):
            raise ValueError("cert and cert_key go together, one is missing")
        return self


class WarmUp(Strict):
    """What is cut off the beginning before anything is judged."""

    detect: bool = True
    """Find the end of the warm-up in the data (longer than `least_s` where they say so)."""
    least_s: Seconds = 0.0
    """Cut at least this much, a ramp included."""
    most_s: Span | None = None
    """A warm-up that takes longer is INVALID. None: half of the duration."""
    steady: Literal["auto", "required", "off"] = "auto"
    """Whether the rest must be steady. auto: of a hold and of a closed loop, whose load does not change."""


class Generator(Strict):
    """The processes that send."""

    processes: Annotated[int, Field(ge=1, le=256)] | None = None
    """None: as many as the rate and the streams need."""
    streams_per_process: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Measured here: beyond about 50 streams a process, gaps between tokens are the generator's own."""
    request_timeout_s: Span = 120.0
    """A request that takes longer is an error."""


class Memory(Strict):
    """The sampling of the stack's own counters."""

    hz: Annotated[float, Field(ge=4, le=100)] = 10.0
    """Samples a second."""
    processes: bool = True
    """RSS and PSS of the stack's processes."""
    gpu: bool = True
    """GPU memory, where there is a GPU."""
    baseline_s: Seconds = 2.0
    """Sampled before the first request, for the way back to it after the drain."""
    settle_s: Seconds = 5.0
    """Sampled after the last answer: idle workers give blocks back after half a second; PSS is read each 5."""


class Plan(Strict):
    """One load test."""

    name: Name
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1
    """The same seed and plan are the same requests at the same moments."""
    target: Target = Target()
    load: Load
    users: Annotated[tuple[User, ...], Field(min_length=1, max_length=64)]
    warm_up: WarmUp = WarmUp()
    drain_s: Seconds = 30.0
    """After the last intended start: so long requests may still finish before they are censored."""
    slo: Annotated[tuple[str, ...], Field(max_length=200)] = ()
    """One expression a line, as docs/loadtest.md has them."""
    generator: Generator = Generator()
    memory: Memory = Memory()
    launch: Launch = Launch()
    """For `tidegate launch-check`."""
    run: Path | None = None
    """The folder for what the run leaves. None: `runs/NAME-TIME`."""

    @property
    def duration_s(self) -> float:
        """From t0 to the end of the load, without the drain."""
        from loadtest.planning.schedule import duration_of

        return duration_of(self.load)

    @property
    def needs_steady(self) -> bool:
        if self.warm_up.steady != "auto":
            return self.warm_up.steady == "required"
        if isinstance(self.load, OpenLoop):
            return self.load.shape.kind == "hold"
        return isinstance(self.load, ClosedLoop)

    @field_validator("slo")
    @classmethod
    def _said_once(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        seen = set()
        for line in lines:
            if " ".join(line.split()) in seen:
                raise ValueError(f"{line!r} stands twice")
            seen.add(" ".join(line.split()))
        return lines

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [user.name for user in self.users]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"users: {', '.join(twice)} stands twice; names are the report's routes")
        return self

    @model_validator(mode="after")
    def _lengths_have_a_trace(self) -> Self:
        is_replay = isinstance(self.load, Replay)
        for user in self.users:
            if not is_replay and user.follows_replay:
                raise ValueError(
                    f"users: {user.name} takes its lengths from the trace that is replayed, and the load is "
                    f"{self.load.kind}; name a trace in it, or replay one"
                )
            if is_replay and user.max_turns > 1:
                raise ValueError(
                    f"users: {user.name} has turns; a replay has each turn at its recorded moment"
                )
        return self


def load_plan(path: Path) -> Plan:
    """Raises PlanError, which names each key, its value and what is allowed; OSError when there is no such file."""
    return parse_plan(path.read_text(), path.parent)


def parse_plan(text: str, folder: Path) -> Plan:
    """YAML; relative traces begin in `folder`. Raises PlanError."""
    try:
        raw = load_yaml(text)
    except ValueError as exc:
        raise PlanError([str(exc)]) from exc
    return check_plan(raw, folder)


def check_plan(raw: Any, folder: Path) -> Plan:
    """A decoded document. Raises PlanError."""
    if not isinstance(raw, dict):
        raise PlanError([f"the plan is a {type(raw).__name__}, must be a mapping with name, load and users"])
    try:
        return Plan.model_validate(raw, context={FOLDER: folder})
    except ValidationError as exc:
        raise PlanError(findings(exc, raw, Plan.model_json_schema())) from exc
