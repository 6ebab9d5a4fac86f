"""Models that come and go on one node while others serve: weights shared, dropped, evicted, pinned.

First with workers without torch, then with the real fork server over a random Llama of a few kilobytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from contracts import node_pb2
from contracts.stack import ServedModel
from python_backend.board import Board, Word
from python_backend.channel import PacketChannel, close_fds
from python_backend.messages import Attached, AttachInstance, AttachRefused, NodeToBridge
from scaler.errors import NodeRefused
from scaler.node_client import NodeClient

pytestmark = pytest.mark.integration

FAKE_LAUNCHER = Path(__file__).with_name("node_with_fake_workers.py")
POOL_BYTES = 4 << 20
TIMEOUT_S = 60.0
Answer = TypeVar("Answer")


@dataclass
class Node:
    """A node daemon, asked through the client that the scaler uses."""

    run_dir: Path
    process: subprocess.Popen[bytes]

    def ask(self, call: Callable[[NodeClient], Awaitable[Answer]]) -> Answer:
        async def asked() -> Answer:
            client = NodeClient(str(self.run_dir / "control.sock"))
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(asked())

    def status(self) -> node_pb2.NodeStatus:
        return self.ask(lambda client: client.status())

    def serve(self, served: ServedModel, num_spares: int = 1) -> node_pb2.ModelStatus:
        return self.ask(lambda client: client.serve_model(served, num_spares, TIMEOUT_S))

    def drop(self, model: str) -> None:
        self.ask(lambda client: client.drop_model(model, TIMEOUT_S))

    def evict(self, key: str) -> node_pb2.WeightsStatus:
        return self.ask(lambda client: client.evict_weights(key))

    def pin(self, key: str, is_pinned: bool = True) -> node_pb2.WeightsStatus:
        return self.ask(lambda client: client.pin_weights(key, is_pinned))

    def weights(self) -> dict[str, list[str]]:
        """Key -> models bound."""
        return {each.key: list(each.models) for each in self.status().weights}

    @contextlib.contextmanager
    def attached(self, model: str, instance: str = "x-0") -> Iterator[Any]:
        """What the node answers; the instance stays until the block ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(15)
            sock.connect(str(self.run_dir / "node.sock"))
            channel: PacketChannel[NodeToBridge] = PacketChannel(sock, NodeToBridge)
            channel.send(AttachInstance(model, instance, os.getpid(), 8))
            message, fds = channel.receive()
            number = -1
            if isinstance(message, Attached):
                board = Board(fds[0])
                number = board.get(message.slot, Word.MODEL)
                board.close()
            try:
                yield message if number < 0 else number
            finally:
                close_fds(fds)

    def memfds_of_everybody(self) -> list[str]:
        """Weight sets that the node holds open, or that it, the fork server or a worker maps."""
        found = []
        node = psutil.Process(self.process.pid)
        for process in (node, *node.children(recursive=True)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                found += [line.split("memfd:")[1] for line in maps if "memfd:tidegate-weights" in line]
                for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        found += [os.readlink(fd)] if "tidegate-weights" in os.readlink(fd) else []
        return found

    def log(self) -> str:
        return (self.run_dir / "log").read_text()


def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@contextlib.contextmanager
def running_node(command: list[str], folder: Path, **fields: Any) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="tg-") as name:  # socket paths are short
        run_dir = Path(name)
        chat = {"name": "chat", "kind": "generate", "weights": "w", "path": str(folder)}
        config = {"run_dir": name, "pool_bytes": POOL_BYTES, "num_cpus": 2, "models": [chat], **fields}
        (run_dir / "node.json").write_text(json.dumps(config))
        with (run_dir / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command, "--config", str(run_dir / "node.json")],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        node = Node(run_dir, process)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"tidegate-ready node\n", node.log()
            yield node
            process.terminate()
            assert process.wait(15) == 0, node.log()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def served(folder: Path, name: str = "chat2", **fields: Any) -> ServedModel:
    return ServedModel(name=name, kind="generate", weights="w", path=str(folder), **fields)


def write_llama(folder: Path, seed: int = 0) -> Path:
    """A random Llama with a tokenizer of one word."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,  # the warm-up looks up small token ids
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))  # noqa: S106
    return folder


# --- without torch ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_llama(root / name, seed) for seed, name in enumerate(("tiny", "other", "third"))]


@pytest.fixture(scope="module")
def shared_fake_node(folders: list[Path]) -> Iterator[Node]:
    with running_node([str(FAKE_LAUNCHER)], folders[0], spares={"chat": 0}) as node:
        yield node


@pytest.fixture
def fake_node(shared_fake_node: Node) -> Iterator[Node]:
    """With `chat` alone; every test gets it back so."""
    yield shared_fake_node
    until(lambda: not shared_fake_node.status().instances)
    for model in shared_fake_node.status().models:
        if model.name != "chat":
            shared_fake_node.drop(model.name)


def test_two_models_and_four_instances_share_one_set(fake_node: Node, folders: list[Path]) -> None:
    """Loaded once, on one descriptor, whoever comes; and it is in use by both."""
    fake_node.serve(served(folders[0]), num_spares=0)
    with contextlib.ExitStack() as stack:
        numbers = [
            stack.enter_context(fake_node.attached(model, f"{model}-{number}"))
            for model in ("chat", "chat2")
            for number in range(2)
        ]
        status = fake_node.status()
        assert numbers[0] == numbers[1] != numbers[2] == numbers[3], "a number on the board for each model"
        assert [(each.key, list(each.models)) for each in status.weights] == [
            ("tiny@fp32", ["chat", "chat2"])
        ]
        assert status.pool.weights_bytes == status.weights[0].num_bytes > 0
        assert status.pool.weights_budget_bytes > status.pool.weights_bytes
        descriptors = [fd for fd in fake_node.memfds_of_everybody() if fd.startswith("/memfd")]
        assert len(descriptors) == 1
        fingerprints = {model.fingerprint for model in status.models}
        assert fingerprints == {status.weights[0].fingerprint}


def test_a_models_number_on_the_board_is_never_anothers(fake_node: Node, folders: list[Path]) -> None:
    """Siblings are told apart by it: who reads a stale slot must not take a new model for the old one."""

    def number_of(model: str) -> int:
        with fake_node.attached(model) as number:
            assert isinstance(number, int)
            return number

    for name in ("one", "two"):
        fake_node.serve(served(folders[0], name))
    before = {name: number_of(name) for name in ("chat", "one", "two")}
    until(lambda: not fake_node.status().instances)
    fake_node.drop("one")
    fake_node.serve(served(folders[0], "three"))
    after = {name: number_of(name) for name in ("chat", "two", "three")}
    assert (after["chat"], after["two"]) == (before["chat"], before["two"])
    assert after["three"] not in before.values()


def test_a_model_with_instances_is_not_dropped(fake_node: Node, folders: list[Path]) -> None:
    """The text names them; nothing has changed."""
    fake_node.serve(served(folders[0]))
    with fake_node.attached("chat2", "chat2-0"):
        with pytest.raises(NodeRefused, match=r"1 instances of chat2 are attached \(chat2-0\)"):
            fake_node.drop("chat2")
        assert [model.name for model in fake_node.status().models] == ["chat", "chat2"]
    until(lambda: not fake_node.status().instances)
    fake_node.drop("chat2")
    assert [model.name for model in fake_node.status().models] == ["chat"]
    with fake_node.attached("chat2") as refused:
        assert refused == AttachRefused("no model 'chat2' on this node, known: chat")
    with pytest.raises(NodeRefused, match="no model 'chat2' on this node"):
        fake_node.drop("chat2")


def test_serving_the_same_again_changes_nothing(fake_node: Node, folders: list[Path]) -> None:
    """A repeated call is answered; another model under that name is refused with the difference."""
    first = fake_node.serve(served(folders[0]), num_spares=1)
    again = fake_node.serve(served(folders[0]), num_spares=2)
    assert (first.name, first.num_spares, again.num_spares) == ("chat2", 1, 2)
    with pytest.raises(NodeRefused, match="'chat2' is served with precision = 'fp32', not 'bf16'"):
        fake_node.serve(served(folders[0], precision="bf16"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"precision": "fp8"}, "precision = 'fp8' needs a GPU"),
        ({"kv_floor_bytes": POOL_BYTES + 1}, f"promise {POOL_BYTES + 1} bytes .* the pool has {POOL_BYTES}"),
        ({"kv_floor_bytes": -1}, "kv_floor_bytes = -1, must be 0 to"),
        ({"kv_floor_bytes": 9, "kv_ceiling_bytes": 8}, "kv_ceiling_bytes = 8, must be 0 or at least"),
        ({"path": "/nowhere"}, "/nowhere: neither model.safetensors nor"),
    ],
)
def test_a_model_that_cannot_serve_leaves_nothing_behind(
    fake_node: Node, folders: list[Path], fields: dict[str, Any], text: str
) -> None:
    """No model, no weights, no descriptor; the reason has the numbers."""
    before = fake_node.status()
    with pytest.raises(NodeRefused, match=text):
        fake_node.serve(served(**({"folder": folders[1]} | _as_arguments(fields))))
    after = fake_node.status()
    assert (list(after.models), list(after.weights)) == (list(before.models), list(before.weights))


def _as_arguments(fields: dict[str, Any]) -> dict[str, Any]:
    return {("folder" if key == "path" else key): value for key, value in fields.items()}


def test_weights_make_room_by_age_but_for_those_that_are_pinned(folders: list[Path]) -> None:
    """A budget of two sets: the unused one goes for the third, a pinned one stays and the load is refused."""
    size = sum(file.stat().st_size for file in folders[0].glob("*.safetensors"))
    with running_node(
        [str(FAKE_LAUNCHER)], folders[0], spares={"chat": 0}, weights_budget_bytes=int(size * 2.5)
    ) as node:
        node.serve(served(folders[1]))
        with pytest.raises(NodeRefused, match=r"no room for .* bytes of weights: the budget is"):
            node.serve(served(folders[2], "chat3"))
        node.drop("chat2")
        assert node.weights() == {"tiny@fp32": ["chat"], "other@fp32": []}
        assert node.pin("other@fp32").is_pinned
        with pytest.raises(NodeRefused, match="drop or unpin one"):
            node.serve(served(folders[2], "chat3"))
        with pytest.raises(NodeRefused, match="are pinned"):
            node.evict("other@fp32")
        node.pin("other@fp32", is_pinned=False)
        node.serve(served(folders[2], "chat3", pinned=True))
        assert node.weights() == {"tiny@fp32": ["chat"], "third@fp32": ["chat3"]}
        assert {each.key: each.is_pinned for each in node.status().weights}["third@fp32"]
        with pytest.raises(NodeRefused, match="in use by chat; they can go when"):
            node.evict("tiny@fp32")
        with pytest.raises(NodeRefused, match="no weights 'x' are resident"):
            node.evict("x")


# --- with the real fork server ---


@pytest.fixture(scope="module")
def real_node(folders: list[Path]) -> Iterator[Node]:
    with running_node(["-m", "python_backend.node"], folders[0]) as node:
        yield node


def test_evicted_weights_are_mapped_by_nobody(real_node: Node, folders: list[Path]) -> None:
    """Served, dropped, evicted: node, fork server and workers have let go, so the memory is the system's again."""

    def of_other() -> list[str]:
        return [text for text in real_node.memfds_of_everybody() if "tidegate-weights-other" in text]

    status = real_node.serve(served(folders[1]), num_spares=1)
    assert (status.num_spares, status.precision) == (1, "fp32")
    assert status.block_bytes > 0
    assert len(of_other()) >= 3, "the node's descriptor, the fork server's and the worker's mapping"
    real_node.drop("chat2")
    assert real_node.weights() == {"tiny@fp32": ["chat"], "other@fp32": []}
    assert len(of_other()) == 1, "resident still, but only the node holds it"
    assert real_node.evict("other@fp32").num_bytes > 0
    assert of_other() == []
    assert len(list(real_node.run_dir.glob("tensors-*.json"))) == 1
    assert not (real_node.status().models[1:])


def test_a_model_that_cannot_be_bound_leaves_nothing_behind(real_node: Node, folders: list[Path]) -> None:
    """Weights of another shape than config.json says: the fork server's words, and no memory kept."""
    broken = folders[2].with_name("broken")
    broken.mkdir()
    for file in folders[2].iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(NodeRefused, match=r"model 'chat2' cannot be bound: ModelRefused: .*lack"):
        real_node.serve(served(broken))
    assert real_node.weights() == {"tiny@fp32": ["chat"]}
    assert [text for text in real_node.memfds_of_everybody() if "broken" in text] == []
    with real_node.attached("chat") as number:
        assert number == 0, "the others serve on"
