"""The gateway's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import MIB, ConfigError, read_config

MODEL = {"name": "chat", "kind": "generate", "weights": "w", "path": "p"}


def write(folder: Path, **values: Any) -> Path:
    path = folder / "gateway.json"
    path.write_text(json.dumps({"triton_grpc": "127.0.0.1:8001", "models": [MODEL]} | values))
    return path


def test_defaults_bind_to_loopback(tmp_path: Path) -> None:
    """And take bodies of 8 MiB."""
    config = read_config(write(tmp_path))
    assert (config.host, config.port, config.max_body_bytes) == ("127.0.0.1", 9000, 8 * MIB)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"prot": 1}, "prot"),
        ({"port": 70000}, "port = 70000"),
        ({"port": "x"}, "port"),
        ({"models": [MODEL, MODEL]}, "may stand there once"),
        ({"models": [{"name": "chat"}]}, "kind"),
        ({"max_body_bytes": 0}, "max_body_bytes = 0"),
        ({"head_timeout_s": 0}, "head_timeout_s = 0"),
        ({"tls_cert": "a.pem"}, "one needs the other"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca needs tls_cert"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    """Unknown keys too."""
    with pytest.raises(ConfigError, match=says):
        read_config(write(tmp_path, **values))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        read_config(tmp_path / "nowhere.json")
