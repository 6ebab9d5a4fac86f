"""The engine on real weights, against `transformers` on the same weights."""

import pytest
import tokenizers
import torch
from transformers import AutoModel, AutoModelForCausalLM

from contracts.sampling import SamplingParams
from python_backend.pool_testing import OwnArena
from python_backend.worker import attention
from python_backend.worker.blocks import BlockPool
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.kv import KVLayout, view_arena
from python_backend.worker.scheduler import SchedulerConfig
from python_backend.worker.skeleton import eos_token_ids
from tests.models import CHAT, CHAT_PROMPTS, EMBED, chat_text, model_folder

pytestmark = pytest.mark.integration

NUM_BLOCKS = 600
MAX_TOKENS = 16
TIE_LOGITS = 1e-3


@pytest.fixture(scope="module")
def folder():
    return model_folder(CHAT)


@pytest.fixture(scope="module")
def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def engine_of(folder, scheduler: SchedulerConfig | None = None) -> Engine:
    attention.register()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention.ATTENTION_NAME
    ).eval()
    layout = KVLayout.of(model)
    arena = view_arena(torch.zeros(NUM_BLOCKS * layout.block_bytes, dtype=torch.uint8), layout)
    config = EngineConfig(eos_token_ids(str(folder)), 8192, NUM_BLOCKS, scheduler or SchedulerConfig())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Engine(
        config, tokenizer, DecoderRunner(model, arena), BlockPool(OwnArena(NUM_BLOCKS), layout.block_tokens)
    )


def generate_all(engine: Engine, prompts: list[str]) -> dict[int, list[int]]:
    """All prompts at once; output tokens by index."""
    tokens: dict[int, list[int]] = {}
    engine.on_tokens = tokens.__setitem__
    for index, prompt in enumerate(prompts):
        engine.add(index, prompt, SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0))
    while engine.has_work:
        engine.step(0.0)
    return tokens


@pytest.fixture(scope="module")
def expected(folder, reference):
    """Greedy tokens of every prompt, one at a time."""
    return [greedy_tokens(reference, prompt_ids(folder, chat_text(content))) for content in CHAT_PROMPTS]


def prompt_ids(folder, prompt: str) -> list[int]:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids


def greedy_tokens(reference, ids: list[int]) -> list[int]:
    inputs = torch.tensor([ids])
    with torch.inference_mode():
        output = reference.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            pad_token_id=2,
        )
    return output[0, len(ids) :].tolist()


def assert_same_or_tied(reference, ids: list[int], ours: list[int], theirs: list[int]) -> None:
    """Token for token; where one differs, the reference's two logits must be a true tie."""
    if ours == theirs:
        return
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    with torch.inference_mode():
        logits = reference(torch.tensor([ids + theirs[:first]])).logits[0, -1]
    gap = abs(float(logits[ours[first]] - logits[theirs[first]]))
    assert gap <= TIE_LOGITS, f"token {first}: {ours[first]} instead of {theirs[first]}, logits {gap} apart"
    print(f"tie at token {first} after {len(ids)} of prompt: logits {gap:.1e} apart")


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(SchedulerConfig(), id="default budgets"),
        pytest.param(SchedulerConfig(prefill_tokens=24, mixed_prefill_tokens=7), id="small chunks"),
    ],
)
def test_twenty_prompts_at_once_give_the_greedy_tokens_of_one_at_a_time(
    folder, reference, expected, scheduler
):
    """Batching, chunking and block tables change nothing."""
    prompts = [chat_text(content) for content in CHAT_PROMPTS]
    ours = generate_all(engine_of(folder, scheduler), prompts)

    for index, prompt in enumerate(prompts):
        assert_same_or_tied(reference, prompt_ids(folder, prompt), ours[index], expected[index])


def test_no_token_sees_a_later_one(folder):
    """Causality: a prompt's first output does not depend on how its prefill was cut."""
    prompts = [chat_text(CHAT_PROMPTS[10])]
    whole = generate_all(engine_of(folder, SchedulerConfig(prefill_tokens=4096)), prompts)
    cut = generate_all(engine_of(folder, SchedulerConfig(prefill_tokens=5)), prompts)

    assert whole == cut


def test_embeddings_match_transformers_mean_pooling():
    """Texts of mixed length in one batch, within 1e-4 of one at a time."""
    folder = model_folder(EMBED)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    texts = ["hi", "The tide comes in.", "a longer text " * 20, "你好", "x" * 50]

    vectors, num_tokens, errors = EncoderRunner(model, tokenizer, 512).embed(texts)
    assert errors == {}
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text).ids
        with torch.inference_mode():
            pooled = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        expected = pooled / pooled.norm()
        assert num_tokens[row] == len(ids)
        assert float((vectors[row] - expected).abs().max()) < 1e-4


def test_a_text_over_the_context_is_refused_and_its_neighbours_are_not():
    """513 tokens where 512 fit: an error with both numbers for that row alone."""
    folder = model_folder(EMBED)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    vectors, num_tokens, errors = EncoderRunner(model, tokenizer, 512).embed(["fine", "word " * 511])
    assert list(errors) == [1]
    assert f"{num_tokens[1]} tokens, 512 fit" in errors[1]
    assert float(vectors[0].norm()) == pytest.approx(1.0, abs=1e-5)
    assert float(vectors[1].norm()) == 0.0
