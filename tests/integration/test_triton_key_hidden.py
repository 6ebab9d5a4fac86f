"""The key of a child does not stay in its command line."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from contracts.triton_key import TRITON_KEY_NAME
from tidegate.triton_key import hide, make_key, restrictions

pytestmark = pytest.mark.integration


def test_a_childs_command_line_keeps_everything_but_the_key(tmp_path: Path) -> None:
    """`cat` with the two options, then its /proc file: 64 stars twice, the rest as it was."""
    key = make_key(tmp_path)
    options = restrictions(key, also_inference=False)
    with subprocess.Popen(
        ["/bin/sh", "-c", "echo; cat", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert before.count(key.encode()) == 2
        assert hide(child.pid, key)
        after = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        child.communicate(b"", timeout=10)
    assert after == before.replace(key.encode(), b"*" * 64)


def test_each_start_has_a_key_of_its_own_for_its_user_alone(tmp_path: Path) -> None:
    """Mode 0600, also where the last one lies; a process that is gone hides nothing."""
    first, second = make_key(tmp_path), make_key(tmp_path)
    path = tmp_path / TRITON_KEY_NAME
    assert first != second == path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    assert not hide(gone.pid, first)
