"""routes.yaml: which versions a service has, what share of its calls each gets, and where special calls go.

Checked whole, against the models that are served, before any of it is used. A service that it does not name is the
served model of that name.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contracts.checked_yaml import in_words, load_yaml

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Percent = Annotated[float, Field(ge=0, le=100)]
WHOLE = Decimal(100)


class RoutesInvalid(ValueError):
    """`problems`: one line each, with key, value and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Version(_Strict):
    """One of a service's models. `model` is Triton's; left out it is the version's name."""

    name: Name
    model: Name | None = None
    percent: Percent

    @property
    def model_name(self) -> str:
        return self.model or self.name


class LongContext(_Strict):
    """Prompts above `above_tokens` go to a model with instances of their own."""

    above_tokens: Annotated[int, Field(ge=1, le=10_000_000)]
    target: Name


class Degrade(_Strict):
    """What answers while the scaler says "saturated": a simpler model, a shorter answer, or both."""

    target: Name | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.target is None and self.max_output_tokens is None:
            raise ValueError("degrade names neither target nor max_output_tokens, so it changes nothing")
        return self


class Queue(_Strict):
    """While saturated and with nothing to degrade to, calls wait here; past either bound they are refused."""

    max_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 100


class Shadow(_Strict):
    """A copy of so many calls goes to `target`; its answers are thrown away, its rows are in the call log."""

    target: Name
    percent: Percent


class Context(_Strict):
    """What becomes of a chat that is longer than the model's context, less the room for the answer."""

    policy: Literal["reject", "truncate", "summarize", "retrieve"] = "reject"
    """reject: an error with both numbers. truncate: the turns after the system prompt go, oldest first. summarize:
    they become a summary by the model itself. retrieve: those stay that have most to do with the newest one."""
    output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Kept free for the answer; less where less is asked for, and never more than half of the context."""
    summary_tokens: Annotated[int, Field(ge=16, le=8192)] = 256
    """summarize: of the summary, at most."""
    recent_turns: Annotated[int, Field(ge=1, le=1000)] = 4
    """retrieve: so many newest turns stay as they are, if they fit."""
    embed_model: Name | None = None
    """retrieve: a served model that embeds."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.policy == "retrieve" and self.embed_model is None:
            raise ValueError("context: policy retrieve needs embed_model, a served model that embeds")
        return self


class AutoRollback(_Strict):
    """Takes a rollout back by itself when the new version does clearly worse than the one before."""

    max_error_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Of its calls, and more than twice the previous version's."""
    max_ttft_ratio: Annotated[float, Field(gt=1, le=100)] = 2.0
    """Its median time to first token over the previous version's."""
    min_calls: Annotated[int, Field(ge=10, le=1_000_000)] = 50
    window_s: Annotated[float, Field(ge=10, le=86400)] = 300.0


class Rollout(_Strict):
    """Noted by `tidegate rollout`: where the service comes from and goes to. Both stay among the versions."""

    previous: Name
    next: Name


class ServiceRoute(_Strict):
    """One service."""

    versions: Annotated[tuple[Version, ...], Field(min_length=1)]
    long_context: LongContext | None = None
    tenants: dict[str, Name] = {}
    """Tenant -> a model of its own."""
    degrade: Degrade | None = None
    queue: Queue = Queue()
    context: Context = Context()
    shadow: Shadow | None = None
    rollout: Rollout | None = None
    auto_rollback: AutoRollback | None = None

    @field_validator("degrade", mode="before")
    @classmethod
    def _plain_target(cls, value: Any) -> Any:
        return {"target": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _percentages_are_whole(self) -> Self:
        names = [version.name for version in self.versions]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"versions name {', '.join(repeated)} twice")
        total = sum((Decimal(str(version.percent)) for version in self.versions), Decimal(0))
        if total != WHOLE:
            shares = " + ".join(f"{version.percent:g}" for version in self.versions)
            raise ValueError(f"versions' percent: {shares} = {total.normalize():f}, must add up to 100")
        if self.rollout is not None and (unknown := {self.rollout.previous, self.rollout.next} - set(names)):
            raise ValueError(f"rollout names {', '.join(sorted(unknown))}, which is none of the versions")
        return self

    def targets(self) -> Iterator[tuple[str, str]]:
        """(key, Triton's model) of everything that is named."""
        for index, version in enumerate(self.versions):
            yield f"versions[{index}]", version.model_name
        if self.long_context is not None:
            yield "long_context.target", self.long_context.target
        for tenant, model in self.tenants.items():
            yield f"tenants.{tenant}", model
        if self.degrade is not None and self.degrade.target is not None:
            yield "degrade.target", self.degrade.target
        if self.shadow is not None:
            yield "shadow.target", self.shadow.target
        if self.context.embed_model is not None:
            yield "context.embed_model", self.context.embed_model


class Routes(_Strict):
    """All services."""

    services: dict[Name, ServiceRoute] = {}

    @classmethod
    def parse(cls, text: str, models: Collection[str]) -> Routes:
        """`models`: those that Triton serves. Raises RoutesInvalid."""
        try:
            raw = load_yaml(text)
        except ValueError as exc:
            raise RoutesInvalid([str(exc)]) from exc
        return cls.check({} if raw is None else raw, models)

    @classmethod
    def check(cls, raw: Any, models: Collection[str]) -> Routes:
        """A decoded document. Raises RoutesInvalid."""
        try:
            routes = cls.model_validate(raw)
        except ValidationError as exc:
            problems = [in_words(item, _schemas_beside(item["loc"])) for item in exc.errors()]
            raise RoutesInvalid(problems) from exc
        if problems := [*_unknown(routes, models), *_loops(routes)]:
            raise RoutesInvalid(problems)
        return routes

    def of(self, service: str) -> ServiceRoute:
        """A service that is not named is one version, itself."""
        return self.services.get(service) or _alone(service)


@functools.lru_cache(maxsize=1024)
def _alone(service: str) -> ServiceRoute:
    """Kept: checking it took a tenth of the gRPC door's time, thrice a call."""
    return ServiceRoute(versions=(Version(name=service, percent=100),))


def _unknown(routes: Routes, models: Collection[str]) -> Iterator[str]:
    known = ", ".join(sorted(models)) or "none"
    for name, service in routes.services.items():
        for key, model in service.targets():
            if model not in models:
                yield f"services.{name}.{key} = {model!r}: no such model is served; there are {known}"


def _loops(routes: Routes) -> Iterator[str]:
    """A saturated model that degrades to itself would answer nobody."""
    for name, service in routes.services.items():
        target = service.degrade.target if service.degrade else None
        if target is not None and target in {version.model_name for version in service.versions}:
            yield f"services.{name}.degrade.target = {target!r}: that is a version of the service itself"


def _schemas_beside(location: tuple[str | int, ...]) -> dict[str, Any]:
    """JSON schemas of the keys that may stand where `location` points."""
    sections: dict[str | int, type[_Strict]] = {
        "versions": Version,
        "long_context": LongContext,
        "degrade": Degrade,
        "queue": Queue,
        "context": Context,
        "shadow": Shadow,
        "rollout": Rollout,
        "auto_rollback": AutoRollback,
    }
    inner = [sections[part] for part in location[2:-1] if part in sections]
    if not inner and len(location) < 3:
        return {"services": {}}
    schemas: dict[str, Any] = (inner[-1] if inner else ServiceRoute).model_json_schema()["properties"]
    return schemas
