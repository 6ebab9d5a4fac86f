"""Fingerprints name what differs, so that no model is bound to other weights than it was meant for (bug 19)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.stack import ServedModel
from python_backend.node import fingerprint as fingerprint_module
from python_backend.node.arena import CpuArena
from python_backend.node.errors import CheckpointMalformed, WeightsDiffer, WeightsTooLarge
from python_backend.node.fingerprint import Fingerprint
from python_backend.node.loading import fill, plan_load
from python_backend.node.residency import Residency
from python_backend.node.weights import WeightKeeper

CONFIG = {"architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0, "hidden_act": "silu"}


def write_model(folder: Path, values: list[float] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    data = np.array(values or [1.0, 2.0], "<f4").tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


def fingerprint(folder: Path) -> Fingerprint:
    return fill(plan_load(folder, "fp32"), lambda *_: None, lambda *_: None)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"rope_theta": 500000.0}, ["rope", "config"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ["rope", "config"]),
        ({"architectures": ["MistralForCausalLM"]}, ["architecture", "config"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["quantization", "config"]),
        ({"hidden_act": "gelu"}, ["config"]),
        ({"values": [1.0, 3.0]}, ["files.model.safetensors"]),
        ({}, []),
    ],
)
def test_differences_are_named(tmp_path: Path, change: dict[str, Any], fields: list[str]) -> None:
    """One text a field, and equal digests only without any."""
    one = fingerprint(write_model(tmp_path / "one"))
    other = fingerprint(write_model(tmp_path / "other", **change))
    assert [text.split(":")[0] for text in other.differences(one)] == fields
    assert (one.digest() == other.digest()) == (not fields)


def test_another_program_is_a_difference(tmp_path: Path) -> None:
    """A batch model's code beside its weights, or instead of them."""
    folder = write_model(tmp_path / "one")
    (folder / "module.py").write_text("x = 1")
    one = fingerprint(folder)
    (folder / "module.py").write_text("x = 2")
    assert [text.split(":")[0] for text in fingerprint(folder).differences(one)] == ["files.module.py"]


def test_the_order_of_keys_in_the_config_means_nothing(tmp_path: Path) -> None:
    """Another writer, the same model."""
    one, other = write_model(tmp_path / "one"), write_model(tmp_path / "other")
    (other / "config.json").write_text(json.dumps(dict(reversed(CONFIG.items())), indent=2))
    assert fingerprint(one) == fingerprint(other)


def test_another_library_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels may compute otherwise: prefix blocks must not be shared."""
    one = fingerprint(write_model(tmp_path / "one"))
    monkeypatch.setattr(fingerprint_module.importlib.metadata, "version", lambda name: "99.1.2")
    assert fingerprint(tmp_path / "one").differences(one) == [
        f"libraries.torch: '99.1' against '{one.libraries['torch']}'",
        f"libraries.transformers: '99.1' against '{one.libraries['transformers']}'",
    ]


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """With the file's name."""
    write_model(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("[1]")
    with pytest.raises(CheckpointMalformed, match=r"config\.json"):
        fingerprint(tmp_path / "m")


def served(folder: Path, name: str = "chat", **fields: Any) -> ServedModel:
    return ServedModel(name=name, kind="generate", weights="w", path=str(folder), **fields)


def keeper(tmp_path: Path, budget_bytes: int = 1 << 20) -> tuple[WeightKeeper, CpuArena]:
    arena = CpuArena()
    return WeightKeeper(arena, Residency(budget_bytes), tmp_path), arena


def test_equal_folder_and_precision_is_one_set(tmp_path: Path) -> None:
    """Through a link, too; another precision is a set of its own."""
    weights, arena = keeper(tmp_path)
    folder = write_model(tmp_path / "m")
    (tmp_path / "link").symlink_to(folder)

    async def acquire() -> list[str]:
        wanted = (served(folder), served(tmp_path / "link", "other"), served(folder, precision="bf16"))
        return [(await weights.acquire(each)).key for each in wanted]

    assert asyncio.run(acquire()) == ["m@fp32", "m@fp32", "m@bf16"]
    arena.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [({"rope_theta": 1.0}, "rope: "), ({"values": [5.0, 6.0]}, "files.model.safetensors: ")],
)
def test_a_folder_that_changed_is_not_bound_to_its_old_weights(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    """Refused with the field, the users, and what to do; after an eviction the new ones are loaded."""
    weights, arena = keeper(tmp_path)
    folder = write_model(tmp_path / "m")

    async def scenario() -> None:
        first = await weights.acquire(served(folder))
        weights.bind(first.key, "chat")
        write_model(folder, **change)
        with pytest.raises(WeightsDiffer, match=rf"in use by chat\): .*{field}") as caught:
            await weights.acquire(served(folder, "other"))
        assert "tidegate pool evict m@fp32" in str(caught.value)
        weights.unbind("chat")
        weights.evict(first.key)
        again = await weights.acquire(served(folder))
        assert not again.was_resident

    asyncio.run(scenario())
    arena.close()


def test_a_folder_that_was_only_touched_still_fits(tmp_path: Path) -> None:
    """Its files are read again, their content decides."""
    weights, arena = keeper(tmp_path)
    folder = write_model(tmp_path / "m")

    async def scenario() -> None:
        await weights.acquire(served(folder))
        write_model(folder)
        assert (await weights.acquire(served(folder, "other"))).was_resident

    asyncio.run(scenario())
    arena.close()


def test_a_load_evicts_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Two sets of a page fit; the third takes the place of the one that is neither pinned nor bound."""
    weights, arena = keeper(tmp_path, budget_bytes=2 * 4096)
    folders = [write_model(tmp_path / name) for name in "abcd"]

    async def scenario() -> None:
        for folder in folders[:2]:
            weights.bind((await weights.acquire(served(folder))).key, folder.name)
        with pytest.raises(WeightsTooLarge, match="no room for 4096 bytes"):
            await weights.acquire(served(folders[2]))
        weights.unbind("a")
        await weights.acquire(served(folders[2], pinned=True))
        assert [each.key for each in weights.residency.all()] == ["b@fp32", "c@fp32"]
        with pytest.raises(WeightsTooLarge, match="4096, c@fp32 4096"):
            await weights.acquire(served(folders[3]))

    asyncio.run(scenario())
    arena.close()
