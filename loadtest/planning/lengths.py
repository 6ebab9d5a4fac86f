"""How long prompts and answers are: one draw a request, in tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from loadtest.planning.strict import Strict
from loadtest.planning.trace_file import TraceFile

MAX_TOKENS = 1_000_000

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Fixed(Strict):
    """Always the same. A number alone means this."""

    kind: Literal["fixed"] = "fixed"
    tokens: Tokens


class Uniform(Strict):
    """Every whole number from `min` to `max` alike."""

    kind: Literal["uniform"]
    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_ordered(self.min, self.max)
        return self


class Lognormal(Strict):
    """exp(normal(ln median, sigma)), rounded, and cut to `min`..`max`. The form of most recorded lengths."""

    kind: Literal["lognormal"]
    median: Tokens
    sigma: Annotated[float, Field(gt=0, le=5)]
    """Of the logarithm: 0.5 puts 95 % between 0.38 and 2.7 times the median."""
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_ordered(self.min, self.max)
        return self


class FromTrace(Strict):
    """As recorded. In a replay each request has its own row's length; else a row is drawn, one for both lengths."""

    kind: Literal["trace"]
    trace: TraceFile | None = None
    """None: the trace that is replayed."""
    scale: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Times the recorded length, for models with a smaller context than the recorded one."""
    min: Tokens = 1
    max: Tokens = MAX_TOKENS

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_ordered(self.min, self.max)
        return self


class Part(Strict):
    """One of several kinds of request."""

    weight: Annotated[float, Field(gt=0, le=1e6)]
    tokens: Annotated[
        Fixed | Uniform | Lognormal, Field(discriminator="kind"), BeforeValidator(lambda v: _short(v))
    ]


class Mix(Strict):
    """Short ones with a few long ones between: each request is of one part, by weight."""

    kind: Literal["mix"]
    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=32)]


def _short(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return {"kind": "fixed", "tokens": value} if is_number else value


Length = Annotated[
    Fixed | Uniform | Lognormal | FromTrace | Mix, Field(discriminator="kind"), BeforeValidator(_short)
]


def _check_ordered(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"min = {low}, must be at most max = {high}")
