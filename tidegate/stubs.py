"""Triton's stubs, seen from outside: which live, which died, what a crash leaves behind.

A stub that dies stays READY in Triton and every request to it takes a second to fail; Triton neither notices
nor reaps it, so it shows as a zombie child of tritonserver. And tritonserver's own crash leaves its stubs as
orphans and their regions in /dev/shm, whose names stand on the stubs' command lines only while they live: so
they are written down (RUN_DIR/triton/stubs.json) as they are seen.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil

from contracts.stack import write_whole

STUB_NAME = "triton_python_backend_stub"
SHM_DIR = Path("/dev/shm")  # noqa: S108  # where Triton makes its regions
REGION_NAME = re.compile(r"triton_python_backend_shm_region_[0-9a-f-]+")


class Stub(msgspec.Struct, frozen=True, kw_only=True):
    """One stub. Pids come round again, so a process is its pid and its start time."""

    pid: int
    created_unix_s: float
    model: str
    instance: str
    """The instance group's name: "chat-0", without the counter that Triton appends."""
    region: str
    """Its file in /dev/shm."""


def parse_stub(pid: int, created_unix_s: float, argv: list[str]) -> Stub | None:
    """argv: stub, REPOSITORY/MODEL/VERSION/model.py, region, sizes.., parent, backend folder, .., name, runtime.

    None: not a stub's, or not this version's.
    """
    if len(argv) < 4 or Path(argv[0]).name != STUB_NAME or not REGION_NAME.fullmatch(argv[2]):
        return None
    name = argv[-2] if len(argv) >= 9 else ""
    model = Path(argv[1]).parent.parent.name
    instance = name.rpartition("_")[0] or name
    return Stub(pid=pid, created_unix_s=created_unix_s, model=model, instance=instance, region=argv[2])


def unseen(pid: int) -> Stub:
    """One that was dead when first looked at; a zombie has no command line that would tell its model."""
    return Stub(pid=pid, created_unix_s=0.0, model="", instance="", region="")


class StubBook:
    """What the launcher knows of one tritonserver's stubs. Call `look` a few times a second."""

    def __init__(self, triton_pid: int, record_path: Path) -> None:
        self._triton_pid = triton_pid
        self._record_path = record_path
        self._known: dict[int, Stub] = {}
        self._suspects: set[int] = set()
        self._reported: set[int] = set()

    @property
    def known(self) -> list[Stub]:
        """Those alive at the last look, and dead ones that Triton has not reaped."""
        return list(self._known.values())

    def look(self) -> list[Stub]:
        """Look at the process table and write down what is new. Returns the stubs found dead, each once."""
        before = set(self._known)
        seen = children(self._triton_pid)
        if not is_running(self._triton_pid):
            return []  # its stubs are no longer its children: what is written down is what there was
        dead = self.note(*seen)
        if set(self._known) != before:
            write_record(self._record_path, self._known.values())
        return dead

    def note(self, living: Iterable[Stub], zombies: set[int]) -> list[Stub]:
        """Decides which are dead: zombies at two looks in a row. (One that Triton is just ending is a zombie
        for an instant.)"""
        kept = {pid: stub for pid, stub in self._known.items() if pid in zombies}
        self._known = kept | {stub.pid: stub for stub in living}
        dead = (zombies & self._suspects) - self._reported
        self._reported = (self._reported | dead) & zombies
        self._suspects = zombies
        return [self._known.get(pid) or unseen(pid) for pid in sorted(dead)]

    def serving(self, model: str) -> set[str]:
        """The model's instances whose stubs live."""
        return {
            stub.instance
            for pid, stub in self._known.items()
            if stub.model == model and pid not in self._suspects
        }


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(triton_pid: int) -> tuple[list[Stub], set[int]]:
    """(living stubs, pids of zombie children) of a tritonserver."""
    living: list[Stub] = []
    zombies: set[int] = set()
    try:
        processes = psutil.Process(triton_pid).children()
    except psutil.NoSuchProcess:
        return living, zombies
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                zombies.add(process.pid)
            elif stub := parse_stub(process.pid, process.create_time(), process.cmdline()):
                living.append(stub)
    return living, zombies


def write_record(path: Path, stubs: Iterable[Stub]) -> None:
    write_whole(path, msgspec.json.encode(list(stubs)))


def clear_record(path: Path, shm_dir: Path = SHM_DIR) -> list[str]:
    """After a tritonserver that did not end cleanly: kill the recorded stubs that still live, remove the regions
    they named and the record. Returns what was removed or killed, for the log."""
    try:
        stubs = msgspec.json.decode(path.read_bytes(), type=list[Stub])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError:
        path.unlink()
        return [f"{path.name} was damaged; regions of the stack before may be left in {shm_dir}"]
    done: list[str] = []
    for stub in stubs:
        done += kill_orphan(stub)
        done += remove_region(stub, shm_dir)
    path.unlink()
    return done


def kill_orphan(stub: Stub) -> list[str]:
    try:
        process = psutil.Process(stub.pid)
        if process.create_time() != stub.created_unix_s or process.status() == psutil.STATUS_ZOMBIE:
            return []
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=5)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return []
    return [f"killed orphan stub {stub.pid} of {stub.instance}"]


def remove_region(stub: Stub, shm_dir: Path) -> list[str]:
    if not REGION_NAME.fullmatch(stub.region):  # the record is a file; never remove what only it says
        return []
    try:
        (shm_dir / stub.region).unlink()
    except FileNotFoundError:
        return []
    return [f"removed {shm_dir / stub.region}"]
