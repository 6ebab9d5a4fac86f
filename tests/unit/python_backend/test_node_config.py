"""The node's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.node import config as config_module
from python_backend.node.config import available_memory_bytes, check_floors, read_config
from python_backend.node.errors import ConfigInvalid, ModelInvalid

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


def test_a_share_of_what_is_free_has_no_ceiling(tmp_path: Path) -> None:
    """Of the device's memory; a size that is said outright counts more."""
    shared = read_config(written(tmp_path, pool_share=0.5))
    assert shared.pool_size_bytes(lambda: 100 << 30) == 50 << 30
    assert read_config(written(tmp_path)).pool_size_bytes(lambda: 100 << 30) == 2 << 30
    assert read_config(written(tmp_path)).pool_size_bytes(lambda: 4 << 30) == 1 << 30
    both = read_config(written(tmp_path, pool_share=0.5, pool_bytes=8192))
    assert both.pool_size_bytes(lambda: 100 << 30) == 8192


def test_floors_cannot_promise_more_than_there_is(tmp_path: Path) -> None:
    """The numbers of all that promise."""
    config = read_config(written(tmp_path, models=[CHAT | {"kv_floor_bytes": 60}, EMBED]))
    check_floors(config.models, 60)
    with pytest.raises(ModelInvalid, match=r"promise 60 bytes \(chat 60\), the pool has 59"):
        check_floors(config.models, 59)


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
        ({"pool_share": 0.96}, r"pool_share = 0.96, must be 0 \(default\) to 0.95"),
        ({"weights_budget_bytes": -1}, "weights_budget_bytes = -1, must be 0"),
        ({"device": "gpu0"}, "device = 'gpu0', must be cpu, cuda or cuda:GPU-UUID"),
        ({"models": [CHAT | {"kv_floor_bytes": -1}]}, "model 'chat': kv_floor_bytes = -1, must be 0 to"),
        ({"models": [CHAT | {"max_output_tokens": 2**31}]}, "max_output_tokens = 2147483648, must be 0 to"),
        ({"models": [CHAT | {"precision": "fp16"}]}, "fp16"),
        (
            {"models": [CHAT | {"kv_floor_bytes": 5, "kv_ceiling_bytes": 4}]},
            "kv_ceiling_bytes = 4, must be 0 or at least kv_floor_bytes = 5",
        ),
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
