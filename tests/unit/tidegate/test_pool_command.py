"""`tidegate pool` and what the other commands say about models that a stack serves."""

import json
import os

import msgspec
import pytest

from contracts import node_pb2
from contracts.stack import STACK_NAME, ServedModel, Stack
from scaler.errors import NodeRefused, NodeUnreachable
from scaler.node_client import NodeClient
from tidegate import cli, cpu_tiers
from tidegate.commands.pool import age_text
from tidegate.models.testing import write_hf_folder
from tidegate.pool_map import Cell, draw, letters

MIB = 1 << 20


def node_status():
    chat = node_pb2.ModelStatus(
        name="chat",
        kind="generate",
        block_bytes=MIB,
        precision="bf16",
        kv_precision="fp32",
        kv_leased_bytes=32 * MIB,
        kv_published_bytes=16 * MIB,
        kv_floor_bytes=8 * MIB,
        usable_blocks=55,
        prefix_lookup_tokens=200,
        prefix_hit_tokens=150,
    )
    return node_pb2.NodeStatus(
        pool=node_pb2.PoolStatus(
            total_bytes=128 * MIB,
            leased_bytes=32 * MIB,
            cached_bytes=8 * MIB,
            free_bytes=80 * MIB,
            largest_free_bytes=64 * MIB,
            high_water_bytes=99 * MIB,
            recent_high_water_bytes=48 * MIB,
            weights_bytes=60 * MIB,
            weights_budget_bytes=1024 * MIB,
        ),
        models=[chat, node_pb2.ModelStatus(name="embed", kind="embed", precision="fp32")],
        weights=[
            node_pb2.WeightsStatus(
                key="a@bf16", num_bytes=20 * MIB, is_pinned=True, models=["chat", "embed"]
            ),
            node_pb2.WeightsStatus(key="b@int8", num_bytes=40 * MIB, last_used_unix_ms=1000),
        ],
        extents=[
            node_pb2.Extent(offset_bytes=0, num_bytes=32 * MIB, model="chat", state="leased"),
            node_pb2.Extent(offset_bytes=64 * MIB, num_bytes=16 * MIB, model="chat", state="cached"),
        ],
    )


@pytest.fixture
def stack(tmp_path, monkeypatch):
    """A stack that seems to run; its node says what `node_status` has."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(cpu_tiers, "read_cpu_flags", lambda: frozenset({"sse2"}))

    async def status(self, *, with_extents=False):
        assert with_extents
        return node_status()

    monkeypatch.setattr(NodeClient, "status", status)
    served = ServedModel(name="chat", kind="generate", weights="mine", path="/m", precision="bf16")
    running = Stack(
        pid=os.getpid(),
        run_dir=str(tmp_path),
        node_socket=str(tmp_path / "control.sock"),
        triton_http="127.0.0.1:1",
        triton_grpc="127.0.0.1:2",
        triton_metrics="127.0.0.1:3",
        gateway_http="127.0.0.1:4",
        models=[served],
        pids={},
        started_unix_s=0.0,
    )
    (tmp_path / STACK_NAME).write_bytes(msgspec.json.encode(running))
    return running


def test_the_pool_is_shown_in_80_columns(stack, capsys):
    """Bar, numbers, map, a row a model, a row a weight set."""
    assert cli.run(["pool", "show"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    text = shown.out
    assert "32.0 MiB leased, 8.0 MiB prefixes being read, 8.0 MiB cached, 80.0 MiB free" in text
    assert "high water 99.0 MiB (48.0 MiB in the last minute), largest free piece 64.0 MiB" in text
    assert lines[3] == "█" * 18 + "·" * 18 + "░" * 9 + "·" * 27
    assert next(line for line in lines if line.startswith("chat")).split() == (
        ["chat", "bf16,", "KV", "fp32", "32.0", "MiB", "16.0", "MiB", "8.0", "MiB/none", "55", "75%"]
    )
    assert next(line for line in lines if line.startswith("a@bf16")).split() == (
        ["a@bf16", "20.0", "MiB", "pinned", "chat,", "embed", "now"]
    )
    assert "nobody" in next(line for line in lines if line.startswith("b@int8"))
    assert lines[-1] == "weights take 60.0 MiB of 1.0 GiB"
    assert "model 'chat': precision bf16 is slower than fp32 on this CPU" in shown.err


def test_the_pool_is_told_to_scripts(stack, capsys):
    """One object, with the extents and what is worth a warning."""
    assert cli.run(["pool", "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"pool", "models", "weights", "extents", "warnings"}
    assert told["weights"][0]["models"] == ["chat", "embed"]
    assert len(told["extents"]) == 2
    assert len(told["warnings"]) == 1


def test_weights_are_evicted_and_pinned(stack, capsys, monkeypatch):
    """What was done, with the bytes."""

    async def evict(self, key):
        return node_pb2.WeightsStatus(key=key, num_bytes=3 * MIB)

    async def pin(self, key, is_pinned):
        return node_pb2.WeightsStatus(key=key, is_pinned=is_pinned)

    monkeypatch.setattr(NodeClient, "evict_weights", evict)
    monkeypatch.setattr(NodeClient, "pin_weights", pin)
    assert cli.run(["pool", "evict", "a@fp32"]) == 0
    assert cli.run(["pool", "pin", "a@fp32"]) == 0
    assert cli.run(["pool", "pin", "a@fp32", "--off"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a@fp32 is evicted, 3.0 MiB freed",
        "a@fp32 is pinned",
        "a@fp32 is not pinned any more",
    ]
    assert cli.run(["pool", "evict", "a@fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evicted"]["num_bytes"] == 3 * MIB


@pytest.mark.parametrize("error", [NodeRefused("weights a are pinned; unpin"), NodeUnreachable("no answer")])
def test_a_refusal_is_one_line(stack, capsys, monkeypatch, error):
    """The node's own words, exit code 1."""

    async def refuse(self, key):
        raise error

    monkeypatch.setattr(NodeClient, "evict_weights", refuse)
    assert cli.run(["pool", "evict", "a"]) == 1
    assert capsys.readouterr().err == f"tidegate: {error}\n"


@pytest.mark.parametrize("args", [["show"], ["evict", "a"], ["pin", "a"]])
def test_without_a_stack_the_exit_code_is_3(tmp_path, capsys, monkeypatch, args):
    """And the way out is named."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path))
    assert cli.run(["pool", *args]) == 3
    assert "start one with `tidegate up`" in capsys.readouterr().err


def test_models_that_a_stack_serves_are_listed_and_kept(stack, tmp_path, capsys, monkeypatch):
    """Who would change or remove one is told who serves it."""
    folder = str(write_hf_folder(tmp_path / "mine"))
    assert cli.run(["models", "add", "mine", folder]) == 0
    assert cli.run(["models", "add", "other", folder]) == 0
    capsys.readouterr()
    cli.run(["models", "list", "--json"])
    listed = json.loads(capsys.readouterr().out)["models"]
    assert {each["name"]: each["served_as"] for each in listed} == {"mine": ["chat"], "other": []}
    monkeypatch.setenv("COLUMNS", "160")
    cli.run(["models", "list"])
    rows = {row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines()}
    assert "chat" in rows["mine"]
    assert "(other)" in rows["other"]
    for args in (["remove", "mine"], ["add", "mine", folder, "--replace"]):
        assert cli.run(["models", *args]) == 1
        assert "'mine' is served as chat by the running stack" in capsys.readouterr().err
    assert cli.run(["models", "remove", "other"]) == 0


# --- the map ---


def test_each_cell_shows_what_fills_it_most():
    """Even a small extent is seen; only what is wholly free looks free."""
    extents = [
        {"offset_bytes": 10, "num_bytes": 15, "model": "a", "state": "leased"},
        {"offset_bytes": 25, "num_bytes": 10, "model": "b", "state": "published"},
        {"offset_bytes": 99, "num_bytes": 1, "model": "b", "state": "cached"},
    ]
    cells = draw(extents, 100, 10)
    assert cells[:4] == [Cell("free", ""), Cell("leased", "a"), Cell("leased", "a"), Cell("published", "b")]
    assert cells[4:] == [Cell("free", "")] * 5 + [Cell("cached", "b")]
    assert draw(extents, 100, 3)[0] == Cell("leased", "a"), "15 bytes of one against 8 of the other"


def test_a_map_is_exact_at_sizes_that_do_not_divide():
    """Every byte belongs to one cell: a full arena has no free cell, an empty one only such."""
    for total in (7, 72, 73, 1001):
        whole = [{"offset_bytes": 0, "num_bytes": total, "model": "a", "state": "leased"}]
        assert {cell.state for cell in draw(whole, total, 7)} == {"leased"}
        assert {cell.state for cell in draw([], total, 7)} == {"free"}
    assert draw([], 0, 7) == []


def test_every_model_has_a_letter_of_its_own():
    """Of its name where it can be."""
    assert letters(["chat", "code", "c"]) == {"chat": "c", "code": "o", "c": "a"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s ago"), (59, "59 s ago"), (125, "2 min ago"), (7300, "2 h ago")]
)
def test_ages_are_short(seconds, text):
    """A clock that was set back is no reason for a minus."""
    assert age_text(seconds) == text
