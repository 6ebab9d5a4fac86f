"""The command line as a process: how fast it starts, and what it does when nobody answers or reads."""

import resource
import subprocess
import sys

import pytest

from contracts.stack import Stack
from tidegate import status
from tidegate.models.add import add
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry
from tidegate.models.testing import write_hf_folder

pytestmark = pytest.mark.integration

TIDEGATE = [sys.executable, "-c", "from tidegate.cli import main; main()"]


def test_help_is_quick_and_imports_no_torch():
    """Half a second of CPU, best of five: a command that takes longer feels broken."""
    took_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*TIDEGATE, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took_s) < 0.5

    code = (
        "import sys, tidegate.cli; print([m for m in ('torch', 'transformers', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["status", "doctor", "chat", "models.fetch", "models.add", "up"])
def test_no_command_imports_torch(module):
    """It costs two seconds and a gigabyte of address space; the worker alone needs it."""
    code = f"import sys, tidegate.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("args", [["models", "list"], ["bench", "list"]], ids=["drawn", "plain"])
def test_a_reader_that_leaves_is_no_traceback(args, tmp_path, monkeypatch):
    """`tidegate models list | true`: rich flushes at once, print at the end."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    add(Registry.at_home(), "mine", write_hf_folder(tmp_path / "mine"), Silent())
    with subprocess.Popen(
        [*TIDEGATE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 1


def test_a_silent_node_and_triton_are_problems_not_failures(tmp_path):
    """The rest is still shown."""
    problems = []
    stack = Stack(
        pid=1,
        run_dir=str(tmp_path),
        node_socket="",
        triton_http="127.0.0.1:9",
        triton_grpc="127.0.0.1:9",
        triton_metrics="",
        gateway_http="",
        models=[],
        pids={},
        started_unix_s=0.0,
    )

    assert status.ask_node(str(tmp_path / "nothing.sock"), problems) is None
    assert status.ask_triton(stack, problems) is None
    assert [problem.split(" does not answer")[0] for problem in problems] == ["the node daemon", "Triton"]
