"""A GGUF file -> a Hugging Face folder with float32 safetensors.

Bit for bit what transformers' own GGUF loader gives, without torch and with one tensor in memory at a time
(test_conversion_equals_the_loader_of_transformers). Llama layout and SmolLM's tokenizer only: what is not known to
come out right is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tidegate.models.errors import GgufUnsupported
from tidegate.models.progress import Progress

_TOKEN_NORMAL = 1
_TOKEN_CONTROL = 3

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata:
    """The file's key-value part, with errors that name the key."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        if key not in self._fields:
            raise GgufUnsupported(f"the GGUF file has no {key}; it is not a complete llama model")
        return self.get(key)


@dataclass(frozen=True)
class _Tensor:
    """One tensor on its way. `num_heads`: its rows lie in llama.cpp's rotary order and must go back (0: no)."""

    name: str
    shape: tuple[int, ...]
    num_heads: int
    stored: Any

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * 4

    def values(self) -> NDArray[np.float32]:
        from gguf import dequantize

        values = np.asarray(dequantize(self.stored.data, self.stored.tensor_type), dtype="<f4")
        values = values.reshape(self.shape)
        return np.ascontiguousarray(unpermute(values, self.num_heads) if self.num_heads else values)


def convert(gguf_file: Path, target: Path, progress: Progress) -> None:
    """Write config, weights and tokenizer into the existing folder `target`. Raises GgufUnsupported."""
    from gguf import GGUFReader

    progress.say(f"reading {gguf_file.name}")
    try:
        reader = GGUFReader(gguf_file)
    except (ValueError, OSError, IndexError) as exc:
        raise GgufUnsupported(f"{gguf_file.name} is no readable GGUF file: {exc}") from exc
    metadata = Metadata(reader.fields)
    _check_supported(metadata)
    config = model_config(metadata, is_tied="output.weight" not in {tensor.name for tensor in reader.tensors})
    tensors = [_plan(tensor, config) for tensor in reader.tensors]
    write_tokenizer(metadata, target, config)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", generation_config(config))
    _write_weights(target / "model.safetensors", tensors, progress)


def _check_supported(metadata: Metadata) -> None:
    checks = {
        "general.architecture": ("llama",),
        "tokenizer.ggml.model": ("gpt2",),
        "tokenizer.ggml.pre": ("smollm",),
    }
    for key, known in checks.items():
        if (value := metadata.need(key)) not in known:
            raise GgufUnsupported(
                f"{key} = {value!r}, known here: {', '.join(known)}; convert it with its own tools"
            )
    if metadata.get("llama.rope.scaling.type", "none") != "none":
        raise GgufUnsupported("llama.rope.scaling.type is set; only plain rotary positions are converted")


def model_config(metadata: Metadata, *, is_tied: bool) -> dict[str, Any]:
    """config.json, all from the file's metadata."""
    heads = metadata.need("llama.attention.head_count")
    hidden = metadata.need("llama.embedding_length")
    eos = metadata.need("tokenizer.ggml.eos_token_id")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": metadata.need("llama.feed_forward_length"),
        "num_hidden_layers": metadata.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": metadata.need("llama.context_length"),
        "rms_norm_eps": _shortest(metadata.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", eos),
        "dtype": "float32",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _shortest(value: float) -> float:
    """GGUF stores float32: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _plan(stored: Any, config: dict[str, Any]) -> _Tensor:
    name, num_heads = stored.name, 0
    shape = tuple(int(size) for size in reversed(stored.shape))
    if name in _TOP_NAMES:
        return _Tensor(_TOP_NAMES[name], shape, 0, stored)
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_NAMES:
            if part == "attn_q":
                num_heads = config["num_attention_heads"]
            elif part == "attn_k":
                num_heads = config["num_key_value_heads"]
            return _Tensor(f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", shape, num_heads, stored)
    raise GgufUnsupported(f"tensor {name!r} has no place in a llama model as it is converted here")


def unpermute(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """llama.cpp interleaves the two halves of each head's rows for its rotary code; undo that."""
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _write_weights(path: Path, tensors: list[_Tensor], progress: Progress) -> None:
    """safetensors: u64 length, JSON header, data. The header comes first, so no tensor has to wait in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        progress.start(f"converting {len(tensors)} tensors to float32", offset)
        for tensor in tensors:
            _write_tensor(out, tensor)
            progress.advance(tensor.num_bytes)


def _write_tensor(out: BinaryIO, tensor: _Tensor) -> None:
    values = tensor.values()
    out.write(values.data)


def write_tokenizer(metadata: Metadata, target: Path, config: dict[str, Any]) -> None:
    """tokenizer.json and tokenizer_config.json (chat template included)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata.need("tokenizer.ggml.tokens")
    types: list[int] = metadata.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in metadata.need("tokenizer.ggml.merges")]
    if odd := {kind for kind in types if kind not in (_TOKEN_NORMAL, _TOKEN_CONTROL)}:
        raise GgufUnsupported(
            f"tokenizer.ggml.token_type has kinds {sorted(odd)}, known here: 1 (normal), 3 (control)"
        )
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _TOKEN_CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(target / "tokenizer_config.json", _tokenizer_config(metadata, tokens, config))


def _tokenizer_config(metadata: Metadata, tokens: list[str], config: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
    }
    if config["bos_token_id"] is not None:
        values["bos_token"] = tokens[config["bos_token_id"]]
    if "tokenizer.chat_template" in metadata:
        values["chat_template"] = metadata.get("tokenizer.chat_template")
    return values


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
