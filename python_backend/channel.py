"""How messages travel: packets with descriptors, and framed streams. A closed peer is `PeerLost`, never b"".

- `PacketChannel` wraps a SOCK_SEQPACKET socket: one message is one packet, descriptors ride along
  (SCM_RIGHTS). For the node's conversations: small and rare.
- `FrameChannel` wraps a SOCK_STREAM socket: u32 little-endian length, then the message. For bridge <-> worker,
  where prompts may be larger than a packet can be.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

MAX_PACKET_BYTES = 64 * 1024
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A batch of 400 images of 224 x 224 x 3 floats."""
SEND_BUFFER_BYTES = 4 * 1024 * 1024
LARGE_FRAME_BYTES = 128 * 1024
"""From here on a frame is read right into memory of its size: 0.2 ms per MiB instead of 3 to 5."""
SPIN_S = 100e-6
"""Longer than an answer of the node takes when it need not wait itself (24 µs, and the core's waking up)."""
MAX_FDS = 4
_RIGHTS_SPACE = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
"""A plain int: the enum's `&` and `|` cost as much as the system call."""

T = TypeVar("T")
_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class PeerLost(ConnectionError):
    """The process at the other end is gone."""


class ProtocolError(Exception):
    """The peer sent what is no message of this conversation."""


class PacketChannel(Generic[T]):
    """One message per packet over a SOCK_SEQPACKET socket. `receives` is the union of what may come in."""

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self.sock = sock
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(receives)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Raises PeerLost. The caller keeps its own copies of `fds` and closes them."""
        data = _encoder.encode(message)
        if len(data) > MAX_PACKET_BYTES:
            raise ProtocolError(f"message of {len(data)} bytes, at most {MAX_PACKET_BYTES} fit a packet")
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                self.sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            else:
                self.sock.send(data, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError) as exc:
            raise PeerLost(str(exc)) from exc

    def receive(self, how: int = 0) -> tuple[T, list[int]]:
        """Block for one message and the descriptors that came with it (the caller owns them).

        Raises PeerLost, ProtocolError; BlockingIOError when the socket does not block, or `how` says so, and
        nothing is there; TimeoutError when it has a time-out.
        """
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(MAX_PACKET_BYTES, _RIGHTS_SPACE, how)
        except (ConnectionResetError, BrokenPipeError) as exc:
            raise PeerLost(str(exc)) from exc
        fds = _fds_in(ancillary) if ancillary else []
        if not data:
            close_fds(fds)
            raise PeerLost("closed by the peer")
        try:
            if flags & _CUT:
                raise ProtocolError("packet cut: larger than this conversation allows")
            return self._decoder.decode(data), fds
        except (msgspec.MsgspecError, ProtocolError) as exc:
            close_fds(fds)
            raise ProtocolError(str(exc)) from exc

    def receive_soon(self, timeout_s: float) -> tuple[T, list[int]]:
        """As `receive`, for an answer that is due in microseconds: awake for `SPIN_S`, which leaves out the core's
        own waking up, then asleep. The core goes to whoever else can run. Raises also TimeoutError."""
        until_s = time.perf_counter() + SPIN_S
        while time.perf_counter() < until_s:
            with contextlib.suppress(BlockingIOError):
                return self.receive(socket.MSG_DONTWAIT)
            os.sched_yield()
        self.sock.settimeout(timeout_s)
        try:
            return self.receive()
        finally:
            self.sock.settimeout(None)

    def close(self) -> None:
        self.sock.close()


class FrameChannel(Generic[T]):
    """Length-prefixed messages over a SOCK_STREAM socket. One thread sends, one receives."""

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self.sock = sock
        # The kernel takes what it allows: a batch is to fit while the peer computes the one before.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(receives)
        self._buffer = bytearray()
        self._large: bytearray | None = None
        """The frame that is being read, when it is a large one; `_num_filled` bytes of it are there."""
        self._num_filled = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Send whole, blocking while the peer's buffer is full. Raises PeerLost, ProtocolError."""
        data = _encoder.encode(message)
        if len(data) > MAX_FRAME_BYTES:
            raise ProtocolError(f"message of {len(data)} bytes, at most {MAX_FRAME_BYTES} fit a frame")
        try:
            if len(data) < LARGE_FRAME_BYTES:
                self.sock.sendall(_LENGTH.pack(len(data)) + data)
            else:
                self.sock.sendall(_LENGTH.pack(len(data)))
                self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise PeerLost(str(exc)) from exc

    def receive(self) -> list[T]:
        """Read once, blocking if the socket blocks, and return the messages that are whole by now (maybe none).

        Raises PeerLost, ProtocolError.
        """
        try:
            if self._large is not None:
                return self._fill(self._large)
            data = self.sock.recv(256 * 1024)
        except BlockingIOError:
            return []
        except ConnectionResetError as exc:
            raise PeerLost(str(exc)) from exc
        if not data:
            raise PeerLost("closed by the peer")
        self._buffer += data
        return self._take_whole()

    def _fill(self, large: bytearray) -> list[T]:
        with memoryview(large) as view:
            count = self.sock.recv_into(view[self._num_filled :])
        if not count:
            raise PeerLost("closed by the peer")
        self._num_filled += count
        if self._num_filled < len(large):
            return []
        self._large = None
        return [self._decode(memoryview(large))]

    def _take_whole(self) -> list[T]:
        messages: list[T] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(f"frame of {size} bytes announced, at most {MAX_FRAME_BYTES} are allowed")
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                if size >= LARGE_FRAME_BYTES:
                    self._begin_large(size, start + _LENGTH.size)
                    return messages
                break
            messages.append(self._decode(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages

    def _begin_large(self, size: int, start: int) -> None:
        """Everything from `start` on belongs to the frame."""
        self._large = bytearray(size)
        self._num_filled = len(self._buffer) - start
        self._large[: self._num_filled] = self._buffer[start:]
        self._buffer.clear()

    def _decode(self, data: memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as exc:
            raise ProtocolError(str(exc)) from exc

    def close(self) -> None:
        self.sock.close()


def _fds_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return list(fds)


def close_fds(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
