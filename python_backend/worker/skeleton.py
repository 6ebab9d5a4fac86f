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
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from python_backend.messages import BindModel, TensorSpec
from python_backend.worker import attention
from python_backend.worker.errors import ModelRefused


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


def build_skeleton(bind: BindModel, weights_fd: int) -> PreTrainedModel:
    """The model of `bind.config_dir` over the weights in `weights_fd`. Raises ModelRefused."""
    table = msgspec.json.decode(Path(bind.table_path).read_bytes(), type=dict[str, TensorSpec])
    views = tensor_views(map_weights(weights_fd, bind.weights_bytes), table)
    try:
        config = AutoConfig.from_pretrained(bind.config_dir, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as exc:
        raise ModelRefused(f"{bind.config_dir}: config.json is not usable: {exc}") from exc
    with torch.device("meta"):
        model = _instantiate(config, bind.kind)
    _materialise_buffers(model, config)
    _assign(model, views, bind.model)
    model.eval().requires_grad_(False)
    return model


def _instantiate(config: PretrainedConfig, kind: str) -> PreTrainedModel:
    config.dtype = torch.float32
    if kind == "embed":
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="sdpa")
        return model
    attention.register()
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.ATTENTION_NAME)
    if not model._can_set_attn_implementation():
        raise ModelRefused(
            f"{type(model).__name__} does not dispatch its attention, so its KV cache cannot live in the pool"
        )
    return model


def _materialise_buffers(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Buffers are no weights (rope frequencies, position ids): build the modules that own them for real."""
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(config=config))


def _assign(model: PreTrainedModel, views: dict[str, Tensor], name: str) -> None:
    prefix = getattr(model, "base_model_prefix", "")
    wanted = set(model.state_dict())
    # Checkpoints of a head model and of its base model differ by this prefix.
    named = {key if key in wanted else key.removeprefix(f"{prefix}."): view for key, view in views.items()}
    model.load_state_dict({k: v for k, v in named.items() if k in wanted}, strict=False, assign=True)
    model.tie_weights()
    missing = [key for key, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise ModelRefused(
            f"{name}: the weights lack {len(missing)} of the model's {len(wanted)} tensors, first {missing[0]!r}"
        )


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


def max_context_tokens(model: PreTrainedModel, wanted: int) -> int:
    """The model's own limit, or a smaller wanted one (0: no wish)."""
    own = int(getattr(model.config, "max_position_embeddings", 2048))
    return min(own, wanted) if wanted else own
