"""Peers and the listener on a running loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from python_backend.messages import AttachInstance, AttachRefused, BridgeToNode
from python_backend.node import peers as peers_module
from python_backend.node.errors import ConfigInvalid
from python_backend.node.peers import Listener, Peer, Process

pytestmark = pytest.mark.integration


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


async def test_a_peer_that_does_not_read_is_dropped_once_its_socket_is_full() -> None:
    """The sender never waits, and its owner hears of it exactly once."""
    ours, theirs = pair()
    lost: list[str] = []
    peer: Peer[BridgeToNode] = Peer(ours, BridgeToNode, lambda message: None, lost.append)
    with theirs:
        sent = 0
        while peer.send(AttachRefused("x" * 1000)):
            sent += 1
        assert sent > 10
        assert not lost, "not inside send: its caller is in the middle of something"
        assert not peer.send(AttachRefused("x"))
        await asyncio.sleep(0)
        assert lost == ["does not read: its socket is full"]
        assert not peer.is_open


async def test_a_closed_peer_is_reported_once_and_a_closing_owner_not_at_all() -> None:
    """`on_lost` is for who did not know."""
    lost: list[str] = []
    ours, theirs = pair()
    Peer(ours, BridgeToNode, lambda message: None, lost.append)
    theirs.close()
    await asyncio.sleep(0.05)
    assert lost == ["closed by the peer"]
    ours, theirs = pair()
    peer: Peer[BridgeToNode] = Peer(ours, BridgeToNode, lambda message: None, lost.append)
    peer.close()
    theirs.close()
    await asyncio.sleep(0.05)
    assert len(lost) == 1


async def test_one_talkative_peer_leaves_the_others_their_turn() -> None:
    """At most a batch of messages, then the loop goes round."""
    order: list[str] = []
    sockets = [pair(), pair()]
    peers: list[Peer[AttachInstance]] = []
    for name, (ours, theirs) in zip("ab", sockets, strict=True):
        peers.append(Peer(ours, BridgeToNode, lambda message, name=name: order.append(name), print))
        for _ in range(100 if name == "a" else 1):
            theirs.send(msgspec.msgpack.encode(AttachInstance("m", "i", 1, 1)))
    await asyncio.sleep(0.05)
    assert len(order) == 101
    assert "b" in order[: 2 * peers_module.MAX_MESSAGES_PER_WAKEUP]
    for peer, (_, theirs) in zip(peers, sockets, strict=True):
        peer.close()
        theirs.close()


async def test_a_connection_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says whose it is; the directory's mode alone is not trusted."""
    connected: list[socket.socket] = []
    listener = Listener(tmp_path / "n.sock", connected.append)
    monkeypatch.setattr(peers_module.os, "getuid", lambda: 12345)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(tmp_path / "n.sock"))
        await asyncio.sleep(0.05)
        client.settimeout(1)
        assert client.recv(10) == b""
    assert not connected
    listener.close()
    assert not (tmp_path / "n.sock").exists()


async def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    """The kernel's own text would be 'AF_UNIX path too long'."""
    with pytest.raises(ConfigInvalid, match="choose a shorter run_dir"):
        Listener(tmp_path / ("x" * 120), lambda sock: None)


async def test_a_process_that_is_not_a_child_of_the_loop_is_watched_and_killed() -> None:
    """Through its pidfd: no other process with the same pid can be hit."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # noqa: ASYNC220 (the watcher is under test, not asyncio's)
    gone = asyncio.Event()
    before = len(os.listdir("/proc/self/fd"))
    process = Process(child.pid, gone.set)
    process.kill()
    await asyncio.wait_for(gone.wait(), 5)
    process.kill()
    process.close()
    assert child.wait(timeout=5) == -signal.SIGKILL
    assert len(os.listdir("/proc/self/fd")) == before
