"""Who asks: classes of users, mixed by weight. Each draws its own lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from loadtest.planning.lengths import FromTrace, Length, Tokens
from loadtest.planning.load import Seconds
from loadtest.planning.strict import Strict

MAX_TURNS = 200
MAX_VALUES = 1_000_000
"""Of one tensor."""

Weight = Annotated[float, Field(gt=0, le=1e6)]
UserName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Service = Annotated[str, Field(min_length=1, max_length=256)]


class Turns(Strict):
    """How many turns a conversation has: every whole number from `min` to `max` alike."""

    min: Annotated[int, Field(ge=1, le=MAX_TURNS)]
    max: Annotated[int, Field(ge=1, le=MAX_TURNS)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min}, must be at most max = {self.max}")
        return self


def _short_turns(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if is_number else value


class _User(Strict):
    name: UserName
    """A route of the report."""
    service: Service
    """The model or service that is asked."""
    weight: Weight = 1.0
    """Its share of the requests (of the conversations, where it has turns), beside the other users' weights."""
    headers: Mapping[str, str] = {}
    """Sent with every call."""

    @property
    def follows_replay(self) -> bool:
        """Some length is that of the replayed row."""
        return any(isinstance(length, FromTrace) and length.trace is None for length in self.lengths)

    @property
    def lengths(self) -> tuple[Any, ...]:
        return ()

    @property
    def max_turns(self) -> int:
        return 1


class _Generating(_User):
    prompt_tokens: Length = Field(default={"kind": "fixed", "tokens": 64}, validate_default=True)
    """Of the user's own words; without the chat template's."""
    output_tokens: Length = Field(default={"kind": "fixed", "tokens": 32}, validate_default=True)
    """The most that may be generated."""
    force_length: bool = False
    """Exactly so many: the end of sequence is ignored, as a replay of recorded lengths needs."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    system_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """A system prompt of so many tokens, the same for all calls of this user: what a prefix cache lives on."""
    system_prompts: Annotated[int, Field(ge=1, le=10_000)] = 1
    """So many different ones; a conversation has one of them."""

    @property
    def lengths(self) -> tuple[Any, ...]:
        return (self.prompt_tokens, self.output_tokens)


class ChatUser(_Generating):
    """Chats over OpenAI's HTTP API and reads the stream to its end."""

    kind: Literal["openai_chat"]
    turns: Annotated[Turns, BeforeValidator(_short_turns)] = Turns(min=1, max=1)
    """More than one: a conversation, with the earlier answers sent along."""
    think_s: Seconds = 5.0
    """From an answer's end to the next turn, on average (exponential)."""

    @property
    def max_turns(self) -> int:
        return self.turns.max


class GenerateUser(_Generating):
    """Reads a generate model's stream over KServe gRPC: one text in, no chat template."""

    kind: Literal["grpc_generate"]


class EmbedUser(_User):
    """Embeds texts over OpenAI's HTTP API."""

    kind: Literal["openai_embeddings"]
    prompt_tokens: Length = Field(default={"kind": "fixed", "tokens": 32}, validate_default=True)
    """Of each text."""
    texts: Annotated[int, Field(ge=1, le=2048)] = 1
    """In one call."""

    @property
    def lengths(self) -> tuple[Any, ...]:
        return (self.prompt_tokens,)


class TensorInput(Strict):
    """One input tensor. BYTES are texts of `prompt_tokens`; floats go from 0 to 1, whole numbers from 0 to 9."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    datatype: Literal["BYTES", "FP32", "FP64", "INT32", "INT64", "BOOL"]
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...], Field(min_length=1, max_length=8)]
    """With the batch dimension, where the model has one: [1, 1]."""

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        if (size := math.prod(self.shape)) > MAX_VALUES:
            raise ValueError(
                f"shape = {list(self.shape)} has {size:,} values, must have at most {MAX_VALUES:,}"
            )
        return self


class TensorUser(_User):
    """Asks a model over KServe gRPC, one answer a call: embeddings, classifiers, any batch model."""

    kind: Literal["grpc_tensors"]
    inputs: Annotated[tuple[TensorInput, ...], Field(min_length=1, max_length=32)] = (
        TensorInput(name="text_input", datatype="BYTES", shape=(1, 1)),
    )
    prompt_tokens: Length = Field(default={"kind": "fixed", "tokens": 32}, validate_default=True)
    """Of each text in a BYTES input."""

    @property
    def lengths(self) -> tuple[Any, ...]:
        return (self.prompt_tokens,)


User = Annotated[ChatUser | GenerateUser | EmbedUser | TensorUser, Field(discriminator="kind")]

__all__ = ["ChatUser", "EmbedUser", "GenerateUser", "TensorInput", "TensorUser", "Tokens", "Turns", "User"]
