"""Tokens of calls at the gRPC door: what a request of a language model may use, and what its answer used.

Only messages of models with a tokenizer are read, with protobuf; those of all others pass as they are. The engine
tells its counts in tensors that a client has to ask for: they are asked for on its behalf, and taken out of the
answer again. Not counted: a text in shared memory, and the output of an answer in one piece that is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from contracts.sampling import DEFAULT_MAX_TOKENS
from gateway.call import Call

TEXT, SAMPLING = "text_input", "sampling_parameters"
OUTPUT_COUNT, CACHED_COUNT = "num_output_tokens", "num_cached_tokens"
_COUNTS = (OUTPUT_COUNT, CACHED_COUNT)


class TokenRequest:
    """A ModelInferRequest of a model that reads text."""

    def __init__(self, message: Any) -> None:
        self._message = message

    @classmethod
    def read(cls, data: bytes) -> TokenRequest | None:
        """None: it can't be read, and Triton will say so."""
        try:
            return cls(service_pb2.ModelInferRequest.FromString(data))
        except DecodeError:
            return None

    @property
    def texts(self) -> list[str]:
        return [raw.decode(errors="replace") for raw in self._elements(TEXT)]

    @property
    def max_tokens(self) -> int:
        """That its answer may have. What the engine will refuse counts as its default."""
        given = self._sampling().get("max_tokens", DEFAULT_MAX_TOKENS)
        is_count = isinstance(given, int) and not isinstance(given, bool) and given > 0
        return given if is_count else DEFAULT_MAX_TOKENS

    def counted(self, max_tokens: int) -> tuple[bytes, TokenCounter]:
        """The request as it goes to Triton, with at most so many tokens to make; and who reads its answers."""
        if max_tokens < self.max_tokens:
            raw = json.dumps({**self._sampling(), "max_tokens": max_tokens}).encode()
            self._put(SAMPLING, "BYTES", len(raw).to_bytes(4, "little") + raw, raw)
        hidden = frozenset(name for name in _COUNTS if not self._asks_for(name))
        for name in hidden:
            self._put(f"return_{name}", "BOOL", b"\1", True)
        wanted = {output.name for output in self._message.outputs}
        for name in _COUNTS if wanted else ():
            if name not in wanted:
                self._message.outputs.add(name=name)
                hidden |= {name}
        return self._message.SerializeToString(), TokenCounter(hidden)

    def _sampling(self) -> dict[str, Any]:
        try:
            found = json.loads(next(iter(self._elements(SAMPLING)), b"{}") or b"{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _asks_for(self, name: str) -> bool:
        at = self._place(f"return_{name}")
        if at is None:
            return False
        tensor, raw = at
        return any(
            self._message.raw_input_contents[raw] if raw is not None else tensor.contents.bool_contents
        )

    def _elements(self, name: str) -> Iterator[bytes]:
        """Of a BYTES tensor; what is cut short ends it."""
        if (at := self._place(name)) is None:
            return
        tensor, index = at
        if index is None:
            yield from tensor.contents.bytes_contents
            return
        raw, start = self._message.raw_input_contents[index], 0
        while start + 4 <= len(raw):
            end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
            yield raw[start + 4 : end]
            start = end

    def _place(self, name: str) -> tuple[Any, int | None] | None:
        """The tensor, and which of the raw contents is its; tensors in shared memory have none of those."""
        index = 0
        for tensor in self._message.inputs:
            if "shared_memory_region" in tensor.parameters:
                continue
            if tensor.name == name:
                return tensor, index if index < len(self._message.raw_input_contents) else None
            index += 1
        return None

    def _put(self, name: str, datatype: str, raw: bytes, value: Any) -> None:
        """In the form that the request's other tensors have."""
        if (at := self._place(name)) is not None:
            tensor, index = at
        else:
            tensor, index = self._message.inputs.add(name=name, datatype=datatype, shape=[1]), None
            if self._message.raw_input_contents:
                self._message.raw_input_contents.append(b"")
                index = len(self._message.raw_input_contents) - 1
        if index is not None:
            self._message.raw_input_contents[index] = raw
            return
        values = tensor.contents.bool_contents if datatype == "BOOL" else tensor.contents.bytes_contents
        del values[:]
        values.append(value)


@dataclass(frozen=True)
class TokenCounter:
    """Reads the answers of one request."""

    hidden: frozenset[str]
    """Outputs that the client has not asked for."""

    def read(self, call: Call, reply: bytes) -> bytes:
        """A ModelStreamInferResponse -> the same as the client gets it. What can't be read passes as it is."""
        try:
            message = service_pb2.ModelStreamInferResponse.FromString(reply)
        except DecodeError:
            return reply
        answer = message.infer_response
        places = {output.name: place for place, output in enumerate(answer.outputs)}
        raws = answer.raw_output_contents
        if len(raws) != len(answer.outputs):
            return reply
        if OUTPUT_COUNT in places:
            call.num_output_tokens = (call.num_output_tokens or 0) + _count(raws[places[OUTPUT_COUNT]])
        if CACHED_COUNT in places:
            call.num_cached_tokens = max(call.num_cached_tokens or 0, _count(raws[places[CACHED_COUNT]]))
        taken_out = sorted((places[name] for name in self.hidden & places.keys()), reverse=True)
        for place in taken_out:
            del answer.outputs[place]
            del raws[place]
        return message.SerializeToString() if taken_out else reply


def _count(raw: bytes) -> int:
    return int.from_bytes(raw[:4], "little")
