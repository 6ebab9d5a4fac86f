"""Are the ports free? If not: who holds them, where that can be known."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

import psutil

from tidegate.launch_errors import PortTaken, SettingsInvalid


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Raises PortTaken with one line per taken port. `ports`: the setting's name -> port.

    A check, not a reservation: who comes between it and the bind fails there, in its own words.
    """
    taken = [describe(name, port) for name, port in ports.items() if not is_free(host, port)]
    if taken:
        raise PortTaken("\n".join(taken))


def is_free(host: str, port: int) -> bool:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as exc:
        raise SettingsInvalid(f"host = {host!r} is no address of this machine: {exc.strerror}") from exc
    with socket.socket(family, kind, proto) as probe:
        # As the servers do: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                return False
            raise SettingsInvalid(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return True


def any_free(host: str) -> int:
    """One that is free now. A check, not a reservation, as `check_free`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def describe(name: str, port: int) -> str:
    way_out = f"stop it, or choose another: --{name.replace('_', '-')} or TIDEGATE_{name.upper()}"
    return f"{name} {port} is taken by {holder_of(port)}; {way_out}"


def holder_of(port: int) -> str:
    """'pid 4711 (nginx: worker)', or that it can't be known (another user's process)."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return "a process that this user may not see"
    for connection in connections:
        local = connection.laddr
        if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
            return name_process(connection.pid)
    return "a process that this user may not see"


def name_process(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"pid {pid}"
    return f"pid {pid} ({command[:80]})"
