"""Settings of the scaler process, and how its port is guarded: what is refused before anything is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaler.config import read_config
from scaler.errors import ConfigInvalid

ELSEWHERE = "0.0.0.0"  # noqa: S104 - nothing binds here
TLS = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
PODS = {"workloads": {"chat": "deployment/chat"}}
TOKEN = {"TIDEGATE_SCALER_TOKEN": "a-token-of-some-length"}


def write(folder: Path, **settings: Any) -> Path:
    path = folder / "scaler.json"
    path.write_text(json.dumps({"state_dir": "/state", "triton_grpc": "localhost:8001"} | settings))
    return path


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"prot": 1}, "unknown field `prot`"),
        ({"state_dir": ""}, "state_dir is empty, must name a folder"),
        ({"port": 65536}, "port = 65536, must be from 0 to 65535"),
        ({"tick_s": 0}, "tick_s = 0.0, must be from 0.05 to 60"),
        ({"window_s": 0}, "window_s = 0.0, must be from 1 to 300"),
        ({"triton_grpc": ""}, "triton_grpc is empty, must be host:port"),
        ({"target": "kubernetes"}, "target = kubernetes and the section kubernetes: both or neither"),
        ({"kubernetes": PODS}, "target = triton and the section kubernetes: both or neither"),
        (
            {"target": "both", "kubernetes": {"workloads": {"chat": "chat"}}},
            "kubernetes.workloads[chat]: 'chat'",
        ),
        (
            {"target": "both", "kubernetes": PODS | {"by_keda": True}},
            "keda_address and kubernetes.by_keda go",
        ),
        (
            {
                "target": "both",
                "kubernetes": PODS | {"by_keda": True},
                "keda_address": "x:1",
                "dry_run": True,
            },
            "dry_run = true with by_keda: KEDA acts on whatever it is told",
        ),
        (
            {"target": "both", "kubernetes": PODS | {"by_keda": True}, "keda_address": ":9003"},
            "keda_address = ':9003', must be host:port",
        ),
        (
            {"target": "both", "kubernetes": PODS | {"max_here": {"embed": 2}}},
            "kubernetes.max_here[embed] = 2, must be 0 or more of a model with a workload",
        ),
        ({"target": "nomad"}, "Invalid enum value 'nomad'"),
        ({"models": ["chat", "chat"]}, "each may stand there once"),
        ({"token_file": "/nowhere"}, "token_file /nowhere can't be read: No such file"),
    ],
)
def test_a_setting_that_can_not_be_is_refused_with_its_key(
    tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    """In one line, before a port is opened."""
    with pytest.raises(ConfigInvalid) as caught:
        read_config(write(tmp_path, **settings)).access({})
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """No traceback."""
    with pytest.raises(ConfigInvalid, match=r"none\.json"):
        read_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({}, {}),
        ({"host": "::1"}, {}),
        ({"host": "localhost"}, {}),
        ({"host": ELSEWHERE, "allow_insecure": True}, {}),
        ({"host": ELSEWHERE, **TLS}, TOKEN),
        ({"host": ELSEWHERE, **TLS, "tls_client_ca": "/ca.pem"}, {}),
    ],
)
def test_loopback_needs_no_guard_and_elsewhere_does_with_tls_and_a_caller_who_is_known(
    tmp_path: Path, settings: dict[str, Any], environ: dict[str, str]
) -> None:
    """Both together, or told that the network is trusted."""
    read_config(write(tmp_path, **settings)).access(environ).check()


@pytest.mark.parametrize(
    ("settings", "environ", "problem"),
    [
        ({"host": ELSEWHERE}, {}, "host = 0.0.0.0: beyond loopback the control port needs TLS"),
        ({"host": "scaler.example"}, {}, "host = scaler.example: beyond loopback"),
        ({"host": ELSEWHERE}, TOKEN, "needs TLS"),
        ({"host": ELSEWHERE, **TLS}, {}, "and a token or tls_client_ca"),
        ({"tls_cert": "/c.pem"}, {}, "tls_cert and tls_key go together"),
        ({"tls_client_ca": "/ca.pem"}, {}, "tls_client_ca needs tls_cert and tls_key"),
        ({}, {"TIDEGATE_SCALER_TOKEN": "short"}, "the token has 5 characters, must have at least 16"),
    ],
)
def test_a_port_that_is_open_to_strangers_is_refused(
    tmp_path: Path, settings: dict[str, Any], environ: dict[str, str], problem: str
) -> None:
    """With the way out."""
    with pytest.raises(ConfigInvalid) as caught:
        read_config(write(tmp_path, **settings)).access(environ).check()
    assert problem in str(caught.value)


def test_the_token_comes_from_its_file_and_is_never_shown(tmp_path: Path) -> None:
    """Stripped of its newline; an empty file would let anybody in."""
    token_file = tmp_path / "token"
    token_file.write_text("a-token-of-some-length\n")
    access = read_config(write(tmp_path, token_file=str(token_file))).access({})
    assert access.token == "a-token-of-some-length"  # noqa: S105 - of this test
    assert "a-token" not in repr(access)
    token_file.write_text("\n")
    with pytest.raises(ConfigInvalid, match="is empty; without it anybody would be let in"):
        read_config(write(tmp_path, token_file=str(token_file))).access({})
