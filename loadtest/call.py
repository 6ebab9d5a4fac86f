"""One request that is to be sent: what the plan and its seed say of it, before anything has been sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Protocol = Literal["openai_chat", "openai_embeddings", "grpc_generate", "grpc_tensors"]
"""OpenAI over HTTP streams, or not (`openai_embeddings`); KServe gRPC streams (`grpc_generate`) or is unary."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input of a unary call: contents follow Triton's datatype, rows first."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[float | int | bool | str]


@dataclass(frozen=True, slots=True)
class Call:
    """Each generator process makes its own from (plan, index); none travels between processes."""

    index: int
    t_intended_s: float
    """Seconds after t0; 0 of a later turn, whose start depends on the answer before it."""
    user: str
    protocol: Protocol
    service: str
    messages: Sequence[Mapping[str, str]] = ()
    """`openai_chat`: role and content; of a later turn only what is new: the sender puts the rest before it."""
    texts: Sequence[str] = ()
    """`openai_embeddings`, and the one `text_input` of `grpc_generate`."""
    tensors: Sequence[Tensor] = ()
    max_tokens: int = 0
    force_length: bool = False
    """Exactly `max_tokens` are generated (`ignore_eos`), as a replay of recorded lengths needs."""
    temperature: float = 0.0
    seed: int = 0
    session: str = ""
    later_turns: Sequence[Call] = ()
    """The rest of a conversation: each is due `think_s` after the answer before it ended."""
    think_s: float = 0.0
    headers: Sequence[tuple[str, str]] = ()
