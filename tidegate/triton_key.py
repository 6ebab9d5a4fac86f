"""Which of Triton's calls need the stack's key, and how the key reaches Triton without staying in sight.

Triton takes it on its command line alone, which every user of the machine can read. So it is overwritten there as
soon as Triton has read it: some tens of milliseconds after its start.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from contracts.triton_key import GRPC_NAME, HTTP_NAME, TRITON_KEY_NAME

MANAGEMENT = ("model-repository", "shared-memory", "trace", "logging")
INFERENCE = ("inference", "metadata", "model-config", "statistics")
"""With these only health is left to others."""

_ARG_START = 48 - 3
"""proc(5)'s field, among those behind the process's name."""


def make_key(run_dir: Path) -> str:
    """A new one, in the file that our processes read. Raises OSError."""
    key = secrets.token_hex(32)
    path = run_dir / TRITON_KEY_NAME
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)
    return key


def restrictions(key: str, *, also_inference: bool) -> list[str]:
    """Triton's options; without them anybody on the node goes past the gateway."""
    calls = ",".join((*MANAGEMENT, *INFERENCE) if also_inference else MANAGEMENT)
    return [
        f"--grpc-restricted-protocol={calls}:{GRPC_NAME}={key}",
        f"--http-restricted-api={calls}:{HTTP_NAME}={key}",
    ]


def hide(pid: int, key: str) -> bool:
    """Overwrites the key in the command line of a child that has read it. False: the kernel does not allow it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        start, end = (int(field) for field in fields[_ARG_START : _ARG_START + 2])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            hidden = memory.read(end - start).replace(key.encode(), b"*" * len(key))
            memory.seek(start)
            memory.write(hidden)
    except (OSError, ValueError, OverflowError):
        return False
    return key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
