"""Instances of one model read the blocks that others have published: a real node, a real fork server, real torch.

The model is a random Llama of a few kilobytes, drawn wide enough that one wrong slot of the KV memory changes what
it says (the last test shows that); `transformers` says what is right.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from contracts.sampling import SamplingParams
from python_backend.board import Board
from python_backend.channel import FrameChannel, PacketChannel
from python_backend.messages import (
    Attached,
    AttachInstance,
    Delta,
    Generate,
    NodeToBridge,
    StepOutput,
    WorkerReplaced,
    WorkerToBridge,
)
from tests.integration.test_node_models import Node, running_node, until

pytestmark = pytest.mark.integration

VOCABULARY = 512
BLOCK_TOKENS = 16
BLOCK_BYTES = 8192
POOL_BLOCKS = 96
MAX_TOKENS = 24


def write_model(folder: Path) -> Path:
    """Its words are "w0" to "w511": a text is its tokens."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Reference:
    """Greedy tokens by `transformers`, one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None

    def tokens(self, prompt: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens


@dataclass
class Answer:
    """What one request has got so far."""

    tokens: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    is_complete: bool = False

    def add(self, delta: Delta) -> None:
        assert delta.error_code is None, delta.error
        assert not self.is_complete
        self.tokens += [entry.token_id for entry in delta.logprobs]
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.is_complete = delta.finish_reason is not None


class Instance:
    """A stub's side of one instance."""

    def __init__(self, node: Node, name: str) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(15)
        sock.connect(str(node.run_dir / "node.sock"))
        self._node: PacketChannel[NodeToBridge] = PacketChannel(sock, NodeToBridge)
        self._node.send(AttachInstance("chat", name, os.getpid(), 8))
        message, fds = self._node.receive()
        assert isinstance(message, Attached), message
        board_fd, worker_fd = fds
        self._board, self._slot = Board(board_fd), message.slot
        os.close(board_fd)
        self._take(worker_fd)
        self.pid = next(each.worker_pid for each in node.status().instances if each.instance == name)
        self._answers: dict[int, Answer] = {}

    def start(
        self, prompt: list[int], max_tokens: int = MAX_TOKENS, tenant: str = "", priority: int = 0
    ) -> int:
        number = len(self._answers)
        self._answers[number] = Answer()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=0)
        text = " ".join(f"w{token}" for token in prompt)
        self._worker.send(Generate(number, text, sampling, tenant=tenant, priority=priority))
        return number

    def read(self) -> None:
        for message in self._worker.receive():
            assert isinstance(message, StepOutput)
            for delta in message.deltas:
                self._answers[delta.request_id].add(delta)

    def answer(self, number: int) -> Answer:
        """The whole of it."""
        answer = self._answers[number]
        while not answer.is_complete:
            self.read()
        return answer

    def ask(self, prompt: list[int], max_tokens: int = MAX_TOKENS, tenant: str = "") -> Answer:
        return self.answer(self.start(prompt, max_tokens, tenant))

    def kill_worker(self) -> None:
        """And get the next one."""
        os.kill(self.pid, signal.SIGKILL)
        message, fds = self._node.receive()
        assert isinstance(message, WorkerReplaced), message
        self._worker.close()
        self._take(fds.pop())
        self.pid = message.worker_pid

    def close(self) -> None:
        self._node.close()
        self._worker.close()
        self._board.close()

    @property
    def num_preemptions(self) -> int:
        return self._board.read(self._slot).preemptions

    def _take(self, fd: int) -> None:
        sock = socket.socket(fileno=fd)
        sock.settimeout(30)
        self._worker: FrameChannel[WorkerToBridge] = FrameChannel(sock, WorkerToBridge)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Node]:
    with running_node(
        ["-m", "python_backend.node"], folder, pool_bytes=POOL_BLOCKS * BLOCK_BYTES, spares={"chat": 2}
    ) as running:
        assert running.status().models[0].block_bytes == BLOCK_BYTES
        yield running


@pytest.fixture(scope="module")
def instances(node: Node) -> Iterator[list[Instance]]:
    attached = [Instance(node, f"chat-{number}") for number in range(2)]
    yield attached
    for instance in attached:
        instance.close()
    until(lambda: not node.status().instances)


def prompt_of(seed: int, num_tokens: int = 70) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, VOCABULARY) for _ in range(num_tokens)]


def is_at_rest(node: Node) -> bool:
    """Nothing is on lease or read, and nothing is missing: what is not free is cached."""
    pool = node.status().pool
    return pool.leased_bytes == 0 and pool.free_bytes + pool.cached_bytes == pool.total_bytes


def test_what_one_instance_computed_another_reads(instances: list[Instance], reference: Reference) -> None:
    """Prompt and output alike, in whole blocks of 16, and not a token is different for it."""
    first, second = instances
    prompt = prompt_of(1)
    original = first.ask(prompt)
    assert (original.tokens, original.num_cached_tokens) == (reference.tokens(prompt), 0)

    other_end = prompt[:66] + prompt_of(2, 9)
    hit = second.ask(other_end)
    assert (hit.tokens, hit.num_cached_tokens) == (reference.tokens(other_end), 64)

    next_turn = prompt + original.tokens + prompt_of(3, 5)
    hit = second.ask(next_turn)
    # The output's last token was never computed: 70 + 23 of them are five blocks.
    assert (hit.tokens, hit.num_cached_tokens) == (reference.tokens(next_turn), 80)


def test_a_prompt_of_whole_blocks_leaves_a_token_to_compute(
    instances: list[Instance], reference: Reference
) -> None:
    """Logits come from a token that runs: of 64 tokens 48 are taken, not 64."""
    prompt = prompt_of(4, 64)
    instances[0].ask(prompt, max_tokens=2)
    hit = instances[1].ask(prompt)
    assert (hit.tokens, hit.num_cached_tokens) == (reference.tokens(prompt), 48)


def test_readers_outlive_the_publisher(node: Node, instances: list[Instance], reference: Reference) -> None:
    """Killed while another reads its blocks: they stay, also when everything else in the pool is overwritten."""
    publisher, reader = instances
    prompt = prompt_of(5)
    publisher.ask(prompt, max_tokens=2)
    longer = prompt + prompt_of(6, 3)
    number = reader.start(longer, max_tokens=200)
    while not reader._answers[number].tokens:
        reader.read()

    publisher.kill_worker()
    fillers = [publisher.start(prompt_of(100 + index, 400), max_tokens=1) for index in range(6)]
    for filler in fillers:
        publisher.answer(filler)
    answer = reader.answer(number)
    assert (answer.tokens, answer.num_cached_tokens) == (reference.tokens(longer, 200), 64)
    until(lambda: is_at_rest(node))


def test_an_evicted_block_is_never_found_again(
    node: Node, instances: list[Instance], reference: Reference
) -> None:
    """Its memory has been another's since; the prompt is computed anew, rightly."""
    prompt = prompt_of(7)
    instances[0].ask(prompt, max_tokens=2)
    assert instances[1].ask(prompt, max_tokens=2).num_cached_tokens == 64
    for index in range(8):
        instances[index % 2].ask(prompt_of(200 + index, 400), max_tokens=1)
    again = instances[1].ask(prompt)
    assert (again.tokens, again.num_cached_tokens) == (reference.tokens(prompt), 0)
    until(lambda: is_at_rest(node))


def test_tenants_never_share(instances: list[Instance], reference: Reference) -> None:
    """The same text of another tenant, or of nobody, finds nothing; its own finds it."""
    prompt = prompt_of(8)
    instances[0].ask(prompt, tenant="acme")
    cached = {tenant: instances[1].ask(prompt, tenant=tenant) for tenant in ("evil", "", "acme")}
    assert {tenant: hit.num_cached_tokens for tenant, hit in cached.items()} == {"evil": 0, "": 0, "acme": 64}
    assert {tuple(hit.tokens) for hit in cached.values()} == {tuple(reference.tokens(prompt))}


def test_two_instances_short_of_memory_still_say_what_transformers_says(
    node: Node, instances: list[Instance], reference: Reference
) -> None:
    """Twelve requests want twice the blocks that there are: shared starts, preemptions, leases back and forth."""
    starts = [prompt_of(seed, 48) for seed in (9, 10)]
    wanted = []
    for index in range(12):
        prompt = starts[index % 2] + prompt_of(300 + index, 10 + 9 * index)
        instance = instances[index // 2 % 2]
        tenant = "acme" if index % 3 == 0 else ""
        wanted.append((instance, prompt, instance.start(prompt, 120, tenant, priority=index % 4)))
    for instance, prompt, number in wanted:
        assert instance.answer(number).tokens == reference.tokens(prompt, 120)
    assert sum(instance.num_preemptions for instance in instances) > 0
    until(lambda: is_at_rest(node))


def test_one_wrong_slot_changes_what_is_said(
    node: Node, instances: list[Instance], reference: Reference
) -> None:
    """So the comparisons above would notice: in each published block the K and V of one token are negated."""
    prompt = prompt_of(11)
    assert instances[0].ask(prompt).tokens == reference.tokens(prompt)
    negate_one_slot_of_each_block(node)
    hit = instances[1].ask(prompt)
    assert hit.num_cached_tokens == 64
    assert hit.tokens != reference.tokens(prompt)


def negate_one_slot_of_each_block(node: Node) -> None:
    descriptors = Path(f"/proc/{node.process.pid}/fd").iterdir()
    kv = next(path for path in descriptors if "tidegate-kv" in os.readlink(path))
    with kv.open("r+b") as file, mmap.mmap(file.fileno(), POOL_BLOCKS * BLOCK_BYTES) as arena:
        slots = np.frombuffer(bytes(arena), np.float32).reshape(POOL_BLOCKS, BLOCK_TOKENS, -1).copy()
        slots[:, 3] *= -1
        arena[:] = slots.tobytes()
