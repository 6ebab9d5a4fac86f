"""Sockets of peers that must never make the daemon wait.

A peer that is gone, breaks the protocol, or does not read (its socket is full) is dropped; whoever owns the peer
learns it once, by `on_lost`. Descriptors that a peer sends are closed: nobody sends the node any.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from python_backend.channel import PacketChannel, PeerLost, ProtocolError, close_fds
from python_backend.messages import Message
from python_backend.node.errors import ConfigInvalid, PoolError

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_WAKEUP = 32
"""Then the other peers have their turn."""
ACCEPT_PAUSE_S = 1.0
"""When descriptors run out the listener stays readable; without a pause the loop would spin on it."""
MAX_SOCKET_PATH_BYTES = 107
_UCRED = struct.Struct("3i")

T = TypeVar("T")


class Peer(Generic[T]):
    """One SOCK_SEQPACKET connection on the running loop; takes the socket over.

    `on_message` may raise ProtocolError or PoolError: the peer is dropped for it. After `close`, or once it was
    called, `on_lost` is not called (again).
    """

    def __init__(
        self,
        sock: socket.socket,
        receives: Any,
        on_message: Callable[[T], None],
        on_lost: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._channel: PacketChannel[T] = PacketChannel(sock, receives)
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """False: the peer is dropped, and `on_lost` comes with the loop's next turn. Keeps no descriptor."""
        if not self.is_open:
            return False
        try:
            self._channel.send(message, fds)
        except PeerLost as exc:
            return self._lose_soon(str(exc))
        except BlockingIOError:
            return self._lose_soon("does not read: its socket is full")
        except OSError as exc:  # descriptors in flight beyond the limit, say
            return self._lose_soon(f"cannot be reached: {exc}")
        return True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()

    def _lose_soon(self, reason: str) -> bool:
        self.close()
        self._loop.call_soon(self._on_lost, reason)
        return False

    def _read(self) -> None:
        for _ in range(MAX_MESSAGES_PER_WAKEUP):
            if not self.is_open:
                return
            try:
                message, fds = self._channel.receive()
                if fds:
                    close_fds(fds)
                self._on_message(message)
            except BlockingIOError:
                return
            except (PeerLost, ProtocolError, PoolError) as exc:
                if self.is_open:
                    self.close()
                    self._on_lost(str(exc))
                return


class Listener:
    """Accepts peers of our own user on a SOCK_SEQPACKET path; `on_connect` owns each socket."""

    def __init__(self, path: Path, on_connect: Callable[[socket.socket], None]) -> None:
        check_socket_path(path)
        self._path = path
        self._on_connect = on_connect
        self._loop = asyncio.get_running_loop()
        path.unlink(missing_ok=True)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._sock.bind(str(path))
        self._sock.listen(256)
        self._listen()

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                logger.error("cannot accept a stub: %s; trying again in %.0f s", exc, ACCEPT_PAUSE_S)
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
            return
        if (uid := peer_uid(sock)) != os.getuid():
            logger.warning("refused a connection of user %d, this node belongs to user %d", uid, os.getuid())
            sock.close()
            return
        self._on_connect(sock)


def peer_uid(sock: socket.socket) -> int:
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


def check_socket_path(path: Path) -> None:
    """Raises ConfigInvalid."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigInvalid(
            f"{path}: {len(os.fsencode(path))} bytes, a socket's path has at most {MAX_SOCKET_PATH_BYTES};"
            " choose a shorter run_dir"
        )


class Process:
    """A process, child or not, held by a pidfd: killing it cannot hit another one with the same pid."""

    def __init__(self, pid: int, on_exit: Callable[[], None]) -> None:
        """Raises ProcessLookupError when it is gone already."""
        self._fd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._loop.add_reader(self._fd, self._exited)

    def kill(self) -> None:
        """SIGKILL; harmless when it is gone already."""
        if self._fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _exited(self) -> None:
        self.close()
        self._on_exit()
