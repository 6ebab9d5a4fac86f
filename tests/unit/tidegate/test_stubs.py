"""Stubs from outside: reading their command lines, telling the dead, clearing up after a crash."""

from __future__ import annotations

import os
from pathlib import Path

from tidegate import stubs
from tidegate.stubs import Stub, StubBook

REGION = "triton_python_backend_shm_region_b9daf800-f651-4f8e-be22-f92960170e94"
ARGV = [
    "/b/python/triton_python_backend_stub",
    "/r/chat/1/model.py",
    REGION,
    "1048576",
    "1048576",
    "5529",
    "/b/python",
    "336",
    "chat-0_0",
    "DEFAULT",
]


def stub(pid: int, instance: str = "chat-0") -> Stub:
    return Stub(pid=pid, created_unix_s=1.0, model="chat", instance=instance, region=REGION)


def test_a_stubs_command_line_names_model_instance_and_region() -> None:
    """As Triton 2.51 writes it."""
    assert stubs.parse_stub(7, 1.0, ARGV) == stub(7)


def test_other_processes_are_no_stubs() -> None:
    """Neither another program nor a stub whose region is not of Triton's naming."""
    assert stubs.parse_stub(7, 1.0, ["/bin/sleep", "1", "2", "3"]) is None
    assert stubs.parse_stub(7, 1.0, [ARGV[0], ARGV[1], "../etc/passwd", *ARGV[3:]]) is None
    assert stubs.parse_stub(7, 1.0, []) is None


def test_a_stub_is_dead_when_it_is_a_zombie_twice_and_is_told_once(tmp_path: Path) -> None:
    """One that Triton is just ending is a zombie for an instant."""
    book = StubBook(1, tmp_path / "stubs.json")
    assert book.note([stub(7), stub(8, "chat-1")], set()) == []
    assert book.note([stub(8, "chat-1")], {7}) == []
    assert book.note([stub(8, "chat-1")], {7}) == [stub(7)]
    assert book.note([stub(8, "chat-1")], {7}) == []
    assert book.serving("chat") == {"chat-1"}


def test_a_stub_that_triton_ended_is_not_dead(tmp_path: Path) -> None:
    """Seen as a zombie once, then reaped."""
    book = StubBook(1, tmp_path / "stubs.json")
    book.note([stub(7)], set())
    assert book.note([], {7}) == []
    assert book.note([], set()) == []
    assert book.known == []


def test_a_zombie_that_was_never_seen_alive_is_told_too(tmp_path: Path) -> None:
    """Its model has to be found out another way."""
    book = StubBook(1, tmp_path / "stubs.json")
    book.note([], {9})
    (dead,) = book.note([], {9})
    assert (dead.pid, dead.model) == (9, "")


def test_clearing_removes_exactly_the_recorded_regions(tmp_path: Path) -> None:
    """Those of another Triton on the machine stay, and so does whatever a damaged record might name."""
    other = tmp_path / REGION.replace("b9", "aa")
    innocent = tmp_path / "innocent"
    for path in (tmp_path / REGION, other, innocent):
        path.touch()
    record = tmp_path / "stubs.json"
    forged = Stub(pid=2**22 + 1, created_unix_s=1.0, model="x", instance="x", region="innocent")
    stubs.write_record(record, [stub(2**22 + 2), forged])
    assert stubs.clear_record(record, tmp_path) == [f"removed {tmp_path / REGION}"]
    assert other.exists()
    assert innocent.exists()
    assert not record.exists()
    assert stubs.clear_record(record, tmp_path) == []


def test_a_damaged_record_is_said_and_dropped(tmp_path: Path) -> None:
    """It must not keep the next stack from starting."""
    record = tmp_path / "stubs.json"
    record.write_text("{")
    (line,) = stubs.clear_record(record, tmp_path)
    assert "damaged" in line
    assert not record.exists()


def test_a_recycled_pid_is_not_killed(tmp_path: Path) -> None:
    """The process of that number today was started at another time."""
    assert stubs.kill_orphan(stub(os.getpid())) == []
