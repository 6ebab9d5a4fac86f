"""Triton's command line, and its own words taken out of its log."""

from __future__ import annotations

from pathlib import Path

from tidegate.settings import Settings
from tidegate.triton_process import TritonPaths, argv, error_lines

FAILED = (
    "E1130 23:24:24.626193 9914 model_lifecycle.cc:642] \"failed to load 'bad' version 1: "
    r'Internal: ValueError: say \"no\"\n\nAt:\n  m.py(6): initialize\n"'
)
LOG = "\n".join(
    [
        'E1130 23:24:22.947700 9914 server.cc:241] "CudaDriverHelper has not been initialized."',
        'I1130 23:24:23.172742 9914 model_lifecycle.cc:472] "loading: bad:1"',
        FAILED,
        FAILED,
        "Error: Failed to initialize NVML",
    ]
)


def test_error_lines_are_tritons_own_unescaped_and_once() -> None:
    """Without what every start on a machine without GPU has."""
    text = "failed to load 'bad' version 1: Internal: ValueError: say \"no\"\n\nAt:\n  m.py(6): initialize"
    assert error_lines(LOG) == [text]


def test_the_command_line_makes_scaling_possible_and_stays_on_loopback() -> None:
    """Explicit control, execution-count scheduling, every address given."""
    paths = TritonPaths(Path("/t/tritonserver"), Path("/b"), Path("/r"), Path("/run"))
    command = argv(Settings(), paths, ["chat", "embed"], "secret")
    assert command[0] == "/t/tritonserver"
    for option in (
        "--model-control-mode=explicit",
        "--rate-limit=execution_count",
        "--load-model=chat",
        "--load-model=embed",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--grpc-port=8001",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:tidegate=secret",
    ):
        assert option in command
