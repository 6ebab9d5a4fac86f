"""Two scalers on one Triton would undo each other's work (LLMKube#484): the second one refuses.

On one host a file lock, keyed by Triton's address, decides. Across hosts there is only gRPC, so for models that are
not of our node the owner's mark stands in Triton itself, in the name of an instance group, which Triton shows and
compares by nothing: changing it took 1 to 5 ms, restarted no instance and waited for no queue. Who finds another's
mark writes a challenge beside it. A living owner sees it at its next tick and writes its own mark again; a dead one
does not, and is succeeded.

What it cannot see: a second writer that changes the count and keeps the mark. A writer that drops it is noticed,
and twice in ten minutes is refused with the evidence. Models of our node bear no mark, because their groups' names
are their instances'; only a scaler on that node's host may change them.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.acting.plain_update import num_instances, scalable
from scaler.errors import OwnedByOther

OWNER_NAME = "scaler-id"
_MARKED = re.compile(r"(?P<base>.*)\.tg-(?P<owner>[0-9a-f]{8})(-(?P<challenger>[0-9a-f]{8}))?")
INTRUSION_WINDOW_S = 600.0
MAX_INTRUSIONS = 2


@dataclass(frozen=True)
class Mark:
    """Who scales this model, and who asks whether that one still lives."""

    owner: str
    challenger: str = ""


def read_mark(config: ModelConfig) -> Mark | None:
    match = _MARKED.fullmatch(_marked_group_name(config))
    return Mark(match["owner"], match["challenger"] or "") if match else None


def with_mark(config: ModelConfig, mark: Mark) -> ModelConfig:
    """A copy that bears it instead of the one it bore."""
    name = _marked_group_name(config)
    match = _MARKED.fullmatch(name)
    suffix = f"{mark.owner}-{mark.challenger}" if mark.challenger else mark.owner
    changed = ModelConfig()
    changed.CopyFrom(config)
    scalable(changed)[0].name = f"{match['base'] if match else name}.tg-{suffix}"
    return changed


def _marked_group_name(config: ModelConfig) -> str:
    groups = scalable(config)
    return groups[0].name if groups else ""


def owner_id(run_dir: Path) -> str:
    """The same one after a restart in the same run directory, so that nobody has to be challenged."""
    path = run_dir / OWNER_NAME
    if path.exists() and re.fullmatch("[0-9a-f]{8}", text := path.read_text().strip()):
        return text
    made = secrets.token_hex(4)
    path.write_text(made)
    return made


class HostLock:
    """Held while this process lives, by at most one scaler of this host."""

    def __init__(self, path: Path, what: str) -> None:
        """Raises OwnedByOther, with the pid of the one that holds it. `what` it scales, in words."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise OwnedByOther(
                f"another scaler (pid {holder or 'unknown'}) on this host scales {what}; "
                "two would undo each other's work: stop that one, or use it"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    @classmethod
    def of_triton(cls, triton_grpc: str, folder: Path | None = None) -> HostLock:
        """Of this user's scalers: a folder for all could not be trusted."""
        name = re.sub("[^A-Za-z0-9.]", "_", canonical(triton_grpc))
        return cls(own_folder(folder or default_folder()) / f"{name}.lock", f"Triton {triton_grpc}")

    @classmethod
    def of_node(cls, node_socket: str) -> HostLock:
        """Beside its socket, so under whatever name its Triton is known."""
        return cls(Path(node_socket).parent / "scaler.lock", f"the node at {node_socket}")

    def close(self) -> None:
        os.close(self._fd)


def default_folder() -> Path:
    """The same one for all scalers of this user, whatever their run directories."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"tidegate-scalers-{os.getuid()}"


def own_folder(folder: Path) -> Path:
    """Made if need be, and ours: in a folder for all, somebody else could have made it first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.lstat()
    if not S_ISDIR(stat.st_mode) or stat.st_uid != os.getuid():
        raise OwnedByOther(
            f"{folder} is not a folder of this user, so no lock in it can be trusted; remove it"
        )
    return folder


def canonical(address: str) -> str:
    """All names of this host's loopback are one."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0") else address  # noqa: S104  # compared, not bound


@dataclass(frozen=True)
class Intrusion:
    """A change of the instance groups that this scaler did not make, by a writer that knows no marks."""

    at_s: float
    before: int
    after: int


@dataclass
class Watch:
    """What this scaler left in each place, against what it finds there."""

    owner: str
    _left: ModelConfig | None = None
    _intrusions: deque[Intrusion] = field(default_factory=lambda: deque(maxlen=MAX_INTRUSIONS))

    def leave(self, config: ModelConfig) -> None:
        self._left = config

    def lose_sight(self) -> None:
        """Triton did not answer, or has unloaded the model: one that starts again has its repository's config."""
        self._left = None

    def find(self, config: ModelConfig, now: float) -> Intrusion | None:
        """The intrusion that this look found. Only what we left is compared: the first look adopts."""
        left, self._left = self._left, config
        if left is None or list(left.instance_group) == list(config.instance_group):
            return None
        if (mark := read_mark(left)) is None or mark.owner != self.owner or read_mark(config) is not None:
            return None  # a scaler that knows marks goes by the challenge
        intrusion = Intrusion(now, num_instances(left), num_instances(config))
        self._intrusions.append(intrusion)
        return intrusion

    def check(self, model: str, now: float) -> None:
        """Raises OwnedByOther on the second intrusion within the window."""
        recent = [one for one in self._intrusions if now - one.at_s < INTRUSION_WINDOW_S]
        if len(recent) < MAX_INTRUSIONS:
            return
        told = ", ".join(f"{one.before}→{one.after} {now - one.at_s:.0f} s ago" for one in recent)
        raise OwnedByOther(
            f"something else changes the instances of {model!r}: {told}; this scaler keeps off for "
            f"{INTRUSION_WINDOW_S:.0f} s after the last but one; stop the other writer"
        )
