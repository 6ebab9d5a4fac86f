"""A transformers model whose parameters are views of the node's weights: zero copy, read-only.

Built once per model in the fork server; workers inherit it by fork.
"""

from __future__ import annotations

import json
import mmap
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from python_backend.messages import BindModel, TensorSpec
from python_backend.worker import attention
from python_backend.worker.errors import ModelRefused
from python_backend.worker.quantized import QUANTIZED


def map_weights(fd: int, nbytes: int) -> Tensor:
    """The weights memfd as a uint8 tensor [nbytes] on read-only memory: a write through it kills the writer."""
    mapped = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    mapped.madvise(mmap.MADV_WILLNEED)
    with warnings.catch_warnings():
        # torch warns that it cannot forbid writes to read-only memory; here the kernel does.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(mapped, dtype=torch.uint8)


def tensor_views(raw: Tensor, table: dict[str, TensorSpec]) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {}
    for name, spec in table.items():
        dtype: torch.dtype = getattr(torch, spec.dtype)
        count = 1
        for size in spec.shape:
            count *= size
        nbytes = count * dtype.itemsize
        views[name] = raw[spec.offset_bytes : spec.offset_bytes + nbytes].view(dtype).view(spec.shape)
    return views


def map_views(bind: BindModel, weights_fd: int) -> dict[str, Tensor]:
    """The weights in the memfd, by name."""
    table = msgspec.json.decode(Path(bind.table_path).read_bytes(), type=dict[str, TensorSpec])
    return tensor_views(map_weights(weights_fd, bind.weights_bytes), table)


def build_skeleton(bind: BindModel, views: dict[str, Tensor]) -> PreTrainedModel:
    """The model of `bind.config_dir` over its weights (or a GPU's stand-ins for them). Raises ModelRefused."""
    try:
        config = AutoConfig.from_pretrained(bind.config_dir, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as exc:
        raise ModelRefused(f"{bind.config_dir}: config.json is not usable: {exc}") from exc
    with torch.device("meta"):
        model = new_encoder(config) if bind.kind == "embed" else new_decoder(config)
    _materialise_buffers(model)
    _assign(model, views, bind)
    model.eval().requires_grad_(False)
    return model


def new_encoder(config: PretrainedConfig) -> PreTrainedModel:
    """On the current default device, weights as they come."""
    config.dtype = torch.float32
    model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="sdpa")
    return model


def new_decoder(config: PretrainedConfig) -> PreTrainedModel:
    """As new_encoder, attending over KV blocks. Raises ModelRefused for a class that cannot even be built so; what
    it computes is looked at by `families.survey`."""
    config.dtype = torch.float32
    attention.register()
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.ATTENTION_NAME
        )
    except Exception as exc:  # classes without dispatch fail in many ways
        raise ModelRefused(
            f"{type(config).__name__} makes no decoder whose KV cache can live in the pool: "
            f"{type(exc).__name__}: {exc}"[:1000]
        ) from exc
    return model


def _materialise_buffers(model: PreTrainedModel) -> None:
    """Buffers are no weights (rope frequencies, position ids, embedding scales): make them for real, as
    `from_pretrained` does after its own start on meta tensors."""
    for module in model.modules():
        metas = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for name, buffer in metas.items():
            setattr(module, name, torch.zeros_like(buffer, device="cpu"))
        if metas:
            model._init_weights(module)


def _assign(model: PreTrainedModel, views: dict[str, Tensor], bind: BindModel) -> None:
    prefix = getattr(model, "base_model_prefix", "")
    modules = dict(model.named_modules())
    # Checkpoints of a head model and of its base model differ by this prefix.
    named = {
        name if name.rpartition(".")[0] in modules else name.removeprefix(f"{prefix}."): view
        for name, view in views.items()
    }
    _quantize(model, named)
    wanted = set(model.state_dict())
    model.load_state_dict({k: v for k, v in named.items() if k in wanted}, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, tensor in _tensors(model) if tensor.is_meta]
    if missing:
        raise ModelRefused(
            f"{bind.model}: the weights lack {len(missing)} of the model's {len(wanted)} tensors, first "
            f"{missing[0]!r}"
        )


def _tensors(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _quantize(model: PreTrainedModel, views: dict[str, Tensor]) -> None:
    """Linear layers that compute with 8-bit weights, where the table has such."""
    for name, view in views.items():
        layer = QUANTIZED.get(view.dtype)
        if layer is None or not name.endswith(".weight"):
            continue
        path = name.removesuffix(".weight")
        module = model.get_submodule(path)
        if not isinstance(module, nn.Linear):
            raise ModelRefused(
                f"{name} is {view.dtype} in the pool, but {type(module).__name__} is no linear layer; serve this "
                "model as fp32 or bf16"
            )
        model.set_submodule(path, layer(module, view.dtype))


def eos_token_ids(config_dir: str) -> frozenset[int]:
    """End-of-sequence tokens of generation_config.json, else of config.json."""
    ids: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        path = Path(config_dir) / file
        values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        eos = values.get("eos_token_id")
        if eos is not None:
            ids.update(eos if isinstance(eos, list) else [eos])
            break
    return frozenset(ids)


def _num_reserved_positions(model: PreTrainedModel) -> int:
    """Rows of the position table that no token gets: RoBERTa and its kin count positions from padding_idx + 1."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def max_context_tokens(model: PreTrainedModel, wanted: int) -> int:
    """The model's own limit, or a smaller wanted one (0: no wish)."""
    own = _longest_context(model.config.get_text_config()) - _num_reserved_positions(model)
    return min(own, wanted) if wanted else own


def _longest_context(config: PretrainedConfig) -> int:
    own = int(getattr(config, "max_position_embeddings", 2048))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return own
    # Beyond this, all frequencies change once the longest sequence of a step is longer: for keys that are in the
    # cache already, and for the others in the step.
    return min(own, int(rope.get("original_max_position_embeddings") or own))
