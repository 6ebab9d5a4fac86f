"""Which Triton: $TRITONSERVER, else the NGC image's, else the one inside the wheel nvidia-pytriton (embedded).

Finds it, checks what the embedded one needs of this Python, and prepares what it runs with (backend folder,
environment). Starts nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.launch_errors import TritonNotFound, TritonUnusable

IMAGE_BINARY = Path("/opt/tritonserver/bin/tritonserver")
STUB_NAME = "triton_python_backend_stub"


@dataclass(frozen=True)
class TritonInstall:
    """One Triton on this machine. `is_embedded`: the wheel's."""

    binary: Path
    is_embedded: bool


def find(environ: Mapping[str, str], image_binary: Path = IMAGE_BINARY) -> TritonInstall:
    """Raises TritonNotFound: $TRITONSERVER names no program, or there is none anywhere."""
    if given := environ.get("TRITONSERVER"):
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise TritonNotFound(f"TRITONSERVER = {given!r} is no program; unset it or name the binary")
        return TritonInstall(Path(given), is_embedded=False)
    if os.access(image_binary, os.X_OK):
        return TritonInstall(image_binary, is_embedded=False)
    wheel = wheel_root()
    if wheel is not None and (binary := wheel / "bin" / "tritonserver").is_file():
        return TritonInstall(binary, is_embedded=True)
    raise TritonNotFound(
        f"no tritonserver: $TRITONSERVER is not set, there is no {image_binary}, and nvidia-pytriton is not "
        "installed in this environment; pip install 'tidegate[embedded]' brings one"
    )


def wheel_root() -> Path | None:
    """`pytriton/tritonserver` of the wheel. Found without importing pytriton, which starts things on import."""
    root = Path(sysconfig.get_paths()["purelib"]) / "pytriton" / "tritonserver"
    return root if root.is_dir() else None


def check_usable(install: TritonInstall) -> None:
    """Raises TritonUnusable. An image's Triton brings its own Python, so only the embedded one is checked."""
    if not install.is_embedded:
        return
    check_numpy(importlib.metadata.version("numpy"))
    if not (stub := wheel_stub(install)).is_file():
        known = sorted(path.name for path in stub.parent.parent.iterdir())
        raise TritonUnusable(
            f"the embedded Triton has no stub for Python {python_version()}, only for {', '.join(known)}; "
            "make the virtual environment with Python 3.11 or 3.12"
        )


def check_numpy(version: str) -> None:
    """With numpy 2 BYTES tensors kill the embedded Triton's stub and INT32 arrives empty."""
    if int(version.split(".")[0]) >= 2:
        raise TritonUnusable(
            f"numpy {version} does not go with the embedded Triton (its stub dies on strings); "
            "pip install 'numpy<2'"
        )


def prepare_backends(install: TritonInstall, target: Path) -> Path | None:
    """The folder for --backend-directory; None: this Triton knows its own.

    The wheel keeps library and stubs apart, so its backend is put together in `target`, afresh each time.
    """
    if not install.is_embedded:
        own = install.binary.parent.parent / "backends"
        return own if own.is_dir() else None
    shutil.rmtree(target, ignore_errors=True)
    python = target / "python"
    python.mkdir(parents=True)
    backend = install.binary.parent.parent / "backends" / "python"
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy2(backend / name, python / name)
    shutil.copy2(wheel_stub(install), python / STUB_NAME)
    return target


def wheel_stub(install: TritonInstall) -> Path:
    return install.binary.parent.parent / "python_backend_stubs" / python_version() / STUB_NAME


def python_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def server_environ(install: TritonInstall, environ: Mapping[str, str], node_socket: Path) -> dict[str, str]:
    """What tritonserver and, through it, the stubs run with."""
    # The stub's interpreter takes its packages from the first `python` on PATH: this virtual environment.
    # PYTHON* must not reach it: an optimisation level or a cache prefix would make it compile model.py anew.
    env = {key: value for key, value in environ.items() if not key.startswith("PYTHON")}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    env["TIDEGATE_NODE_SOCKET"] = str(node_socket)
    if install.is_embedded:
        libraries = [Path(sysconfig.get_paths()["purelib"]) / "nvidia_pytriton.libs"]
        libraries.append(Path(str(sysconfig.get_config_var("LIBDIR"))))
        known = [environ["LD_LIBRARY_PATH"]] if environ.get("LD_LIBRARY_PATH") else []
        env["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, libraries), *known])
    return env
