"""How long an instance waits for its worker when a warm one stands by: the bridge's part of a scale-out alone."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from python_backend.channel import PacketChannel, close_fds
from python_backend.messages import Attached, AttachInstance, NodeToBridge

TIMEOUT_S = 30.0


def attach_ms(run_dir: Path, model: str, instance: str) -> float:
    """AttachInstance -> Attached on a raw socket, connection included; the instance is gone on return.

    Raises RuntimeError when the node refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(TIMEOUT_S)
        channel: PacketChannel[NodeToBridge] = PacketChannel(sock, NodeToBridge)
        started_s = time.perf_counter()
        sock.connect(str(run_dir / "node.sock"))
        channel.send(AttachInstance(model, instance, os.getpid(), 1))
        message, fds = channel.receive()
        took_ms = (time.perf_counter() - started_s) * 1000
        close_fds(fds)
    if not isinstance(message, Attached):
        raise RuntimeError(f"the node did not attach {instance}: {message}")
    return took_ms
