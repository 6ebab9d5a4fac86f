"""gRPC channels of a control loop: a server that comes back after an outage is used at once.

grpc waits longer and longer between its tries to connect, up to two minutes, and calls fail without a try
meanwhile. Our servers are few and near: trying each second costs nothing.
"""

from __future__ import annotations

import grpc

_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=_OPTIONS)
