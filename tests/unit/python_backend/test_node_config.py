"""The node's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.node import config as config_module
from python_backend.node.config import available_memory_bytes, read_config
from python_backend.node.errors import ConfigInvalid

CHAT = {"name": "chat", "kind": "generate", "weights": "w", "path": "/models/w"}
EMBED = {"name": "embed", "kind": "embed", "weights": "e", "path": "/models/e"}


def written(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps({"run_dir": str(tmp_path), "models": [CHAT, EMBED]} | fields))
    return path


def test_defaults_fill_what_is_not_said(tmp_path: Path) -> None:
    """One spare a model; the pool a quarter of the memory, at most 2 GiB; all CPUs."""
    config = read_config(written(tmp_path, spares={"chat": 2}))
    assert (config.num_spares("chat"), config.num_spares("embed")) == (2, 1)
    assert 0 < config.pool_size_bytes() <= 2 << 30
    assert config.cpu_budget() >= 1


def test_the_pool_is_whole_pages(tmp_path: Path) -> None:
    """10,000 bytes are two pages and a rest that nobody can map."""
    assert read_config(written(tmp_path, pool_bytes=10_000)).pool_size_bytes() == 8192


def test_a_node_without_generate_models_takes_no_pool(tmp_path: Path) -> None:
    """Embedding keeps no KV cache."""
    assert read_config(written(tmp_path, models=[EMBED])).pool_size_bytes() == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"models": []}, "must name at least one model"),
        ({"models": [CHAT, CHAT]}, "names must differ"),
        ({"pool_bytes": 100}, "pool_bytes = 100, must be 0"),
        ({"pool_bytes": -1}, "pool_bytes = -1"),
        ({"num_cpus": -2}, "num_cpus = -2"),
        ({"spares": {"caht": 1}}, "spares names 'caht', known models: chat, embed"),
        ({"spares": {"chat": 65}}, "must be 0 to 64"),
        ({"pool_byts": 1}, "pool_byts"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    """The text has the field, its value and what would do."""
    with pytest.raises(ConfigInvalid, match=text):
        read_config(written(tmp_path, **fields))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(ConfigInvalid, match=r"missing\.json"):
        read_config(tmp_path / "missing.json")


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less memory than the machine has: prefaulting the pool must not get us killed."""
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_memory_bytes(tmp_path) == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(config_module.psutil, "virtual_memory", lambda: type("M", (), {"available": 77})())
    assert available_memory_bytes(tmp_path) == 77
