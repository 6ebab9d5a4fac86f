"""Every family of decoders through the one attention function, against `transformers` on the same weights.

The models are tiny and random, drawn so wide (std 0.2) that one wrong slot of the KV memory changes the logits (a
test shows that for each), and compute in float64, so that ties vanish. hypothesis drives the schedules: who joins
when, how prompts are cut, who is preempted, who starts on published blocks, in which of two instances.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from contracts.sampling import SamplingParams
from python_backend.worker import attention, skeleton
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.errors import ModelRefused
from python_backend.worker.families import survey
from python_backend.worker.kv import KVCache, KVLayout, view_arena
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence

pytestmark = pytest.mark.integration

VOCABULARY = 61
BLOCK_TOKENS = 4
NUM_BLOCKS = 96
WINDOW = 7

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2_SIZES = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128, "initializer_range": 0.2}


@dataclass(frozen=True)
class Family:
    """`config`: what differs from SIZES. `eager`: its reference is the eager attention, with a float32 softmax."""

    config: dict[str, Any] = field(default_factory=dict)
    eager: bool = False


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(),
    "qwen3": Family({"head_dim": 16}),
    "mistral": Family({"sliding_window": WINDOW}),
    "mixtral": Family({"num_local_experts": 4, "sliding_window": None}),
    "gemma": Family({"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": Family(
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ALTERNATING,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 20.0,
        },
        eager=True,
    ),
    "gemma3_text": Family({"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING}),
    "phi": Family(),
    "phi3": Family({"sliding_window": WINDOW}),
    "gpt_neox": Family(),
    "gpt2": Family(GPT2_SIZES),
    "stablelm": Family(),
    "olmo2": Family(),
    "opt": Family({"ffn_dim": 48, "word_embed_proj_dim": 32}),
}


def config_of(family: str, **changes: Any) -> transformers.PretrainedConfig:
    return transformers.CONFIG_MAPPING[family](**(SIZES | changes))


@dataclass(frozen=True)
class Pair:
    """`theirs`: attention by transformers. `ours`: the same weights over KV blocks."""

    theirs: PreTrainedModel
    ours: PreTrainedModel
    tolerance: float

    def expected(self, tokens: list[int]) -> Tensor:
        """[tokens, vocabulary]"""
        with torch.inference_mode():
            logits: Tensor = self.theirs(torch.tensor([tokens])).logits[0]
        return logits


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models this small only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_pairs: dict[str, Pair] = {}


def pair_of(name: str) -> Pair:
    if name not in _pairs:
        attention.register()
        torch.manual_seed(11)
        family = FAMILIES[name]
        reference = "eager" if family.eager else "sdpa"
        config = config_of(name, **family.config)
        config._experts_implementation = "eager"  # the grouped kernel has no float64
        theirs = AutoModelForCausalLM.from_config(config, attn_implementation=reference).double().eval()
        ours = copy.deepcopy(theirs)
        ours.set_attn_implementation(attention.ATTENTION_NAME)
        _pairs[name] = Pair(theirs, ours, 1e-4 if family.eager else 1e-6)
    return _pairs[name]


def cache_for(model: PreTrainedModel) -> KVCache:
    layout = replace(KVLayout.of(model, torch.float64), block_tokens=BLOCK_TOKENS)
    return view_arena(torch.zeros(NUM_BLOCKS * layout.block_bytes, dtype=torch.uint8), layout)


class Schedule:
    """Requests on two instances over one arena, moved on by the choices of `rng`."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self.rng = rng
        self.cache = cache_for(pair.ours)
        self.runners = [DecoderRunner(pair.ours, self.cache) for _ in range(2)]
        self.free = list(range(NUM_BLOCKS))
        rng.shuffle(self.free)
        self.published: list[tuple[list[int], list[int]]] = []
        """Tokens of full blocks, and the blocks."""
        self.running: list[tuple[int, Sequence]] = []
        self.seen: list[tuple[Sequence, int, Tensor]] = []
        """(sequence, number of tokens seen, logits after them)"""

    def join(self, prompt: list[int]) -> None:
        self.running.append((self.rng.randrange(2), Sequence(0, prompt, len(prompt), SamplingParams())))

    def step(self) -> None:
        for instance, runner in enumerate(self.runners):
            mine = [sequence for where, sequence in self.running if where == instance]
            chosen = [sequence for sequence in mine if self.rng.random() < 0.8]
            if chosen:
                self._run(runner, chosen)

    def _run(self, runner: DecoderRunner, sequences: list[Sequence]) -> None:
        batch = [self._schedule(sequence) for sequence in sequences]
        batch.sort(key=lambda entry: not entry.is_decode)
        logits = iter(runner.run(batch))
        for entry in batch:
            sequence = entry.sequence
            sequence.num_computed = entry.start + entry.count
            if entry.samples:
                row = next(logits)
                self.seen.append((sequence, sequence.num_tokens, row))
                sequence.tokens.append(int(row.argmax()))
            self._publish(sequence)

    def _schedule(self, sequence: Sequence) -> Scheduled:
        if sequence.num_computed == 0 and not sequence.blocks:
            self._start_on_published(sequence)
        while len(sequence.blocks) * BLOCK_TOKENS < sequence.num_tokens:
            sequence.blocks.append(self.free.pop())
        set_slots(sequence)
        return Scheduled(sequence, sequence.num_computed, self.rng.randint(1, sequence.num_uncomputed))

    def _start_on_published(self, sequence: Sequence) -> None:
        for tokens, blocks in self.published:
            if len(tokens) < sequence.num_tokens and sequence.tokens[: len(tokens)] == tokens:
                sequence.blocks, sequence.num_computed = list(blocks), len(tokens)

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.num_computed // BLOCK_TOKENS
        if full and self.rng.random() < 0.3:
            self.published.append((sequence.tokens[: full * BLOCK_TOKENS], sequence.blocks[:full]))

    def preempt(self) -> None:
        """Its blocks stay where they are: others may be reading them."""
        if self.running:
            _, sequence = self.rng.choice(self.running)
            sequence.blocks, sequence.num_computed = [], 0


def set_slots(sequence: Sequence) -> None:
    first = np.asarray(sequence.blocks, dtype=np.int64)[:, None] * BLOCK_TOKENS
    sequence.slots = (first + np.arange(BLOCK_TOKENS)).reshape(-1)


def tokens_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


def in_blocks(tokens: list[int], first_block: int = 0) -> Sequence:
    sequence = Sequence(0, list(tokens), len(tokens), SamplingParams())
    sequence.blocks = list(range(first_block, first_block + len(tokens) // BLOCK_TOKENS + 1))
    set_slots(sequence)
    return sequence


@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # making a failing schedule smaller takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(rng=st.randoms(use_true_random=False))
def test_any_schedule_gives_what_transformers_computes_for_one_sequence_at_a_time(family, rng):
    """Logits and greedy tokens: cut prompts, joins, preemptions, starts on others' blocks, two instances."""
    pair = pair_of(family)
    schedule = Schedule(pair, rng)
    common = tokens_of(rng, 2 * BLOCK_TOKENS)
    for _ in range(rng.randint(4, 9)):
        if len(schedule.running) < 4 and rng.random() < 0.6:
            schedule.join((common if rng.random() < 0.6 else []) + tokens_of(rng, rng.randint(1, 14)))
        schedule.step()
        if rng.random() < 0.15:
            schedule.preempt()

    expected = {id(sequence): pair.expected(sequence.tokens) for _, sequence in schedule.running}
    for sequence, num_tokens, logits in schedule.seen:
        theirs = expected[id(sequence)][num_tokens - 1]
        assert float((logits - theirs).abs().max()) < pair.tolerance * float(theirs.abs().max())
        if num_tokens < sequence.num_tokens:
            assert sequence.tokens[num_tokens] == int(theirs.argmax())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_wrong_slot_shows(family):
    """The check above would notice: with one layer's K and V of one token in reach replaced, logits differ."""
    pair = pair_of(family)
    tokens = tokens_of(random.Random(5), 13)
    for layer, part in itertools.product(range(3), range(2)):
        cache = cache_for(pair.ours)
        runner = DecoderRunner(pair.ours, cache)
        sequence = in_blocks(tokens)
        runner.run([Scheduled(sequence, 0, 12)])
        slots = sequence.slots
        cache.rows[slots[9], layer, part] = cache.rows[slots[10], layer, part]
        theirs = pair.expected(tokens)[-1]
        ours = runner.run([Scheduled(sequence, 12, 1)])[0]
        assert float((ours - theirs).abs().max()) > 100 * pair.tolerance * float(theirs.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_sees_a_later_one(family):
    """What the cache holds of a prefix is the same, whatever follows it in the chunk."""
    pair = pair_of(family)
    rng = random.Random(3)
    prefix = tokens_of(rng, 10)
    held: list[Tensor] = []
    for _ in range(2):
        cache = cache_for(pair.ours)
        sequence = in_blocks(prefix + tokens_of(rng, 6))
        DecoderRunner(pair.ours, cache).run([Scheduled(sequence, 0, 16)])
        held.append(cache.rows[sequence.slots[: len(prefix)]])
    assert torch.allclose(held[0], held[1], rtol=0, atol=1e-12)


def refused(family: str, **changes: Any) -> Callable[[], Any]:
    return lambda: survey(skeleton.new_decoder(config_of(family, **changes)))


REFUSED = {
    "alibi": (refused("bloom"), "does not dispatch its attention"),
    "attention sinks": (refused("gpt_oss", num_local_experts=2, head_dim=8, layer_types=ALTERNATING), "s_aux"),
    "an encoder-decoder": (refused("t5"), "T5Config"),
    "an encoder": (refused("bert"), "not causal"),
    "a recurrence": (refused("mamba"), "takes no position_ids"),
    "a recurrence in some layers": (
        refused("jamba", attn_layer_period=3, attn_layer_offset=1, use_mamba_kernels=False),
        "1 of 3 layers attend",
    ),
    "convolutions in some layers": (
        refused("lfm2", layer_types=["conv", "full_attention", "conv"]),
        "1 of 3 layers attend",
    ),
    "a recurrence beside the attention": (
        refused("falcon_h1", mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16),
        "from token to token beside its attention",
    ),
    "latent attention": (
        refused("deepseek_v3", num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=None, v_head_dim=16,
                n_routed_experts=4, n_group=1, topk_group=1, moe_intermediate_size=16),
        "K and V have different shapes",
    ),
    "chunked attention": (
        refused("llama4_text", attention_chunk_size=16, num_local_experts=2, intermediate_size_mlp=48, head_dim=8),
        "another attention mask",
    ),
    "layers of different shapes": (
        refused("gemma4_text", layer_types=["sliding_attention", "full_attention", "full_attention"]),
        "differ in shape",
    ),
    "two attentions in a layer": (refused("diffllama"), "names no one layer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_right_is_refused_with_the_reason(kind):
    """Never silently wrong."""
    bind, reason = REFUSED[kind]
    with pytest.raises(ModelRefused, match=reason):
        bind()


def test_an_unknown_argument_of_the_attention_is_an_error():
    """A model of tomorrow that passes something new fails loudly at its first forward."""
    with pytest.raises(ModelRefused, match="passes tomorrow to its attention"):
        attention.attend(torch.nn.Module(), *(torch.zeros(1, 1, 1, 1),) * 3, None, tomorrow=3)
