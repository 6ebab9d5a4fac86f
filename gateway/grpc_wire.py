"""The few fields of KServe's messages that the proxy needs, read from the bytes; tensors are never decoded.

A protobuf message is a row of fields, each a tag, and for strings and messages a length. Skipping a tensor costs as
much as skipping a name. Where a field stands twice the last one holds, so another model's name is set by adding it
at the end (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.errors import InvalidRequest

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG = 2**32 - 1
_MODEL_NAME_TAG = bytes([1 << 3 | _BYTES])
MAX_NAME_BYTES = 255
FINAL_FLAG = b"triton_final_response"


class Truncated(ValueError):
    """The bytes are no protobuf message, or none that everybody reads alike."""


@dataclass(frozen=True)
class RequestHead:
    """Of a ModelInferRequest."""

    model_name: str
    request_id: str


@dataclass(frozen=True)
class ReplyHead:
    """Of a ModelStreamInferResponse."""

    error: str
    request_id: str
    is_final: bool


def read_request(data: bytes) -> RequestHead:
    """Raises InvalidRequest for bytes that are no message, and for a name that no model can have."""
    name = request_id = b""
    try:
        for number, value in fields(data):
            if number == 1:
                name = bytes(value)
            elif number == 3:
                request_id = bytes(value)
        return RequestHead(checked_name(name.decode()), request_id.decode())
    except (Truncated, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the request is no ModelInferRequest: {exc}") from exc


def read_model(data: bytes) -> str:
    """Of a request in `grpc_rpcs.NAMES_A_MODEL`; "": it names none. Raises InvalidRequest."""
    try:
        return next(
            (bytes(value).decode() for number, value in reversed(list(fields(data))) if number == 1), ""
        )
    except (Truncated, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the request is no message of this RPC: {exc}") from exc


def checked_name(name: str) -> str:
    """Raises InvalidRequest. Triton itself answers INTERNAL, or looks where it should not."""
    if not name:
        raise InvalidRequest("model_name is empty", "model_name")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"model_name has {len(name.encode())} bytes, at most {MAX_NAME_BYTES} are taken", "model_name"
        )
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        raise InvalidRequest(f"model_name = {name[:40]!r} is no model's name", "model_name")
    return name


def with_model(data: bytes, name: str) -> bytes:
    """The same request for another model."""
    raw = name.encode()
    return data + _MODEL_NAME_TAG + bytes([len(raw)]) + raw if len(raw) < 128 else data + _long(raw)


def _long(raw: bytes) -> bytes:
    return _MODEL_NAME_TAG + bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw


def with_parameter(data: bytes, key: str, value: str) -> bytes:
    """The same request with one more entry in its parameters; where the key is there already, this one holds."""
    entry = _string(1, key) + _message(2, _string(3, value))
    return data + _message(4, entry)


def _string(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, raw: bytes) -> bytes:
    """Shorter than 128 bytes."""
    return bytes([number << 3 | _BYTES, len(raw)]) + raw


def read_reply(data: bytes) -> ReplyHead:
    """What can't be read is taken as an ordinary response: the client gets it unchanged in any case."""
    error = request_id = b""
    is_final = False
    try:
        for number, value in fields(data):
            if number == 1:
                error = bytes(value)
            elif number == 2:
                for inner, part in fields(value):
                    if inner == 3:
                        request_id = bytes(part)
                    elif inner == 4:
                        is_final = is_final or _is_final(part)
    except Truncated:
        pass
    return ReplyHead(error.decode(errors="replace"), request_id.decode(errors="replace"), is_final)


def _is_final(entry: memoryview) -> bool:
    """One entry of the parameters map: 1 is the key, 2 an InferParameter whose field 1 is a bool."""
    key, flag = b"", False
    for number, value in fields(entry):
        if number == 1:
            key = bytes(value)
        elif number == 2:
            flag = any(inner == 1 and bytes(part) == b"\1" for inner, part in fields(value, _VARINT))
    return flag and key == FINAL_FLAG


def fields(data: bytes | memoryview, wanted: int = _BYTES) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field of the wanted kind in turn; of a number its bytes on the wire.

    Only of that kind, and no tag beyond 32 bits, because Triton skips the first and cuts the second off: a name
    that is read here and not there would let a key into another service than its own. Raises Truncated.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        tag, at = _varint(view, at)
        kind = tag & 7
        if tag > _MAX_TAG:
            raise Truncated(f"a field's tag of more than 32 bits before byte {at}")
        if kind == _BYTES:
            size, at = _varint(view, at)
        elif kind == _VARINT:
            start = at
            _, at = _varint(view, at)
            if wanted == _VARINT:
                yield tag >> 3, view[start:at]
            continue
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Truncated(f"a field of kind {kind} at byte {at}")
        if at + size > end:
            raise Truncated(f"a field of {size} bytes at byte {at} of {end}")
        if kind == wanted:
            yield tag >> 3, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    if at < len(view) and view[at] < 0x80:  # nearly all of them; a streamed response has about 30
        return view[at], at + 1
    value = 0
    for index, byte in enumerate(view[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise Truncated(f"a number without an end at byte {at}")
