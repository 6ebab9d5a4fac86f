"""Which decoder models can be served, found out by a trial forward; the others are refused with the reason.

Whatever a model does with its tokens goes through one attention function. So a forward of a few tokens, on meta
tensors, shows all that serving depends on: the shapes of K and V in every layer, the arguments that the model
passes, and the mask that it means. The mask is not looked at where the few tokens are but at chosen positions up to
the end of the context (a window of 4096 shows at no smaller one), and must be what the layer's arguments say:
causal, within the sliding window. A model that passes is computed as `transformers` computes it; what only looks
like it (chunked masks, attention sinks, layers with a state of their own) must never be served wrong in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from python_backend.worker.errors import ModelRefused
from python_backend.worker.forward_context import forward_context, forward_with

SURVEY_NAME = "tidegate_survey"
_TRIAL_TOKENS = 3
_BY_TOKEN = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
_HARMLESS = frozenset(
    {
        "dropout",  # 0 outside of training
        "position_ids",  # for flash attention's packed sequences; they are in q and k already
        "position_embeddings",
        "cache",
        "past_key_values",
        "cache_position",
        "use_cache",
        "is_causal",  # False is refused
        "layer_idx",
        "logits_to_keep",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "num_items_in_batch",
    }
)
"""Arguments that reach the attention function and do not change what it computes."""


@dataclass(frozen=True)
class KVShape:
    """What one token's K and V look like; the same in every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


def check_arguments(arguments: dict[str, Any]) -> None:
    """Of a call of the attention function, beside those that are implemented. Raises ModelRefused."""
    unknown = [name for name, value in arguments.items() if value is not None and name not in _HARMLESS]
    if unknown:
        raise ModelRefused(
            f"the model passes {', '.join(sorted(unknown))} to its attention: not implemented here, and leaving it "
            "out would change the result"
        )
    if arguments.get("is_causal") is False:
        raise ModelRefused("the model's attention is not causal, so it cannot generate from a KV cache")


def survey(model: PreTrainedModel) -> KVShape:
    """Run the trial and check everything. Raises ModelRefused."""
    _check_class(model)
    calls = _Calls(_edge_positions(model))
    AttentionInterface.register(SURVEY_NAME, _record)
    AttentionMaskInterface.register(SURVEY_NAME, _evaluate_mask)
    with torch.no_grad(), forward_with(calls), _attending_by(model, SURVEY_NAME):
        _try_forward(model, calls)
    shape = calls.shape(model)
    _check_that_only_attention_mixes(model, calls)
    return shape


@contextmanager
def _attending_by(model: PreTrainedModel, name: str) -> Iterator[None]:
    served_by = str(model.config._attn_implementation)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(served_by)


def _check_class(model: PreTrainedModel) -> None:
    config, name = model.config.get_text_config(), type(model).__name__
    if config.is_encoder_decoder:
        raise ModelRefused(
            f"{name} is an encoder-decoder; only decoders can generate from the pool's KV cache"
        )
    if not model._can_set_attn_implementation():
        raise ModelRefused(f"{name} does not dispatch its attention, so its KV cache cannot live in the pool")
    accepted = inspect.signature(model.forward).parameters
    for wanted in ("position_ids", "logits_to_keep"):
        if wanted not in accepted:
            raise ModelRefused(f"{name}.forward takes no {wanted}, so its sequences cannot be packed")
    if shared := getattr(config, "num_kv_shared_layers", 0):
        raise ModelRefused(
            f"{name}: {shared} layers use the K and V of others, which is not implemented here"
        )


def _edge_positions(model: PreTrainedModel) -> Tensor:
    """Where masks may begin to differ: around every number that config.json gives a window, and the ends."""
    config = model.config.get_text_config()
    length = int(getattr(config, "max_position_embeddings", 2048))
    sizes = [
        getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size", "window_size")
    ]
    near = [0, length // 2, length, *(int(size) for size in sizes if isinstance(size, int))]
    edges = {edge + step for edge in near for step in (-2, -1, 0, 1, 2)}
    return torch.tensor(sorted(edge for edge in edges if 0 <= edge <= length + 1))


@dataclass
class _Calls:
    """What the trial forward saw, layer by layer. The context of that forward."""

    positions: Tensor
    shapes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, module: nn.Module, key: Tensor, value: Tensor, mask: Any, window: int | None) -> None:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self.shapes:
            raise ModelRefused(
                f"{type(module).__name__} has the layer index {layer!r}, which names no one layer"
            )
        if key.shape != value.shape:
            raise ModelRefused(
                f"K and V have different shapes, {_dims(key)} and {_dims(value)} (heads x tokens x size), as "
                "latent attention has them; the pool's blocks hold K and V of one shape"
            )
        self._check_mask(layer, mask, window)
        self.shapes[layer] = (int(key.shape[1]), int(key.shape[3]))

    def _check_mask(self, layer: int, mask: Any, window: int | None) -> None:
        queries, keys = self.positions[:, None], self.positions[None, :]
        expected = keys <= queries
        if window is not None:
            expected = expected & (keys > queries - window)
        if not isinstance(mask, Tensor) or mask.shape[-2:] != expected.shape or mask.dtype != torch.bool:
            raise ModelRefused(f"layer {layer} makes an attention mask of its own, which cannot be checked")
        if not torch.equal(mask.expand(1, 1, *expected.shape)[0, 0], expected):
            meant = "causal" if window is None else f"causal within a window of {window}"
            raise ModelRefused(
                f"layer {layer} means another attention mask (chunked, bidirectional, or a window that it does not "
                f"pass on) than what it asks for: {meant}"
            )

    def shape(self, model: PreTrainedModel) -> KVShape:
        """Raises ModelRefused when the layers differ, or some have no K and V."""
        num_layers = int(model.config.get_text_config().num_hidden_layers)
        without = sorted(set(range(num_layers)) - set(self.shapes))
        if without or len(self.shapes) != num_layers:
            raise ModelRefused(
                f"{len(self.shapes)} of {num_layers} layers attend (not: {without[:8]}); layers with a state of "
                "another kind, or none, are not implemented here"
            )
        if len(set(self.shapes.values())) > 1:
            raise ModelRefused(
                "the layers' K and V differ in shape (heads, size): "
                f"{sorted(set(self.shapes.values()))}; one block holds all layers in one shape"
            )
        kv_heads, head_dim = self.shapes[0]
        return KVShape(num_layers, kv_heads, head_dim)


def _dims(tensor: Tensor) -> str:
    return " x ".join(str(size) for size in tensor.shape[1:])


def _record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """In the place of `attention.attend`: looks at everything, computes nothing."""
    check_arguments({"is_causal": getattr(module, "is_causal", True)} | others)
    forward_context().add(module, key, value, attention_mask, sliding_window)
    return query.transpose(1, 2).contiguous(), None


def _evaluate_mask(
    *, mask_function: Callable[..., Any], device: torch.device | None = None, **_: Any
) -> Tensor:
    """In the place of a mask builder: the mask at the positions of the trial, [1, 1, positions, positions]."""
    positions = forward_context().positions
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    mask = mask_function(zero, zero, positions[None, None, :, None], positions[None, None, None, :])
    return torch.as_tensor(mask, dtype=torch.bool).expand(1, 1, len(positions), len(positions))


def _try_forward(model: PreTrainedModel, calls: _Calls) -> None:
    """On meta tensors; where the model looks at values (experts are chosen by them), with its weights."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    metas = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    try:
        torch.func.functional_call(model, metas, kwargs=_trial_inputs("meta"))
    except ModelRefused:
        raise
    except Exception:  # whatever a model trips over on tensors without values
        calls.shapes.clear()
        _try_for_real(model, calls)


def _check_that_only_attention_mixes(model: PreTrainedModel, calls: _Calls) -> None:
    """Convolutions and recurrences carry one token's value to the next past the attention function; in a packed
    step they would carry it from one request to another. Recording attention mixes no tokens, so a token's logits
    must not depend on the one before. Run only where a module of an unknown kind owns weights."""
    unknown = [module for module in model.modules() if not _is_by_token(module)]
    if not unknown or next(model.parameters()).is_meta:
        return
    inputs = _trial_inputs(next(model.parameters()).device)
    last: list[Tensor] = []
    for first in (1, 2):
        inputs["input_ids"] = torch.tensor([[first, 3, 3]], device=inputs["input_ids"].device)
        with torch.no_grad(), forward_with(_Calls(calls.positions)), _attending_by(model, SURVEY_NAME):
            last.append(model(**inputs).logits[0, -1].float())
    # Experts compute groups of other sizes, which rounds differently.
    rounding = 2e-2 if model.dtype.itemsize < 4 else 1e-5
    if (last[0] - last[1]).abs().max() > rounding * last[0].abs().max():
        raise ModelRefused(
            f"{type(model).__name__} passes values from token to token beside its attention "
            f"({type(unknown[0]).__name__}); the pool keeps no such state"
        )


def _is_by_token(module: nn.Module) -> bool:
    owns_weights = next(module.parameters(recurse=False), None) is not None
    name = type(module).__name__
    # GPT-2's Conv1D is a linear layer.
    return (
        not owns_weights
        or isinstance(module, _BY_TOKEN)
        or name.endswith(("Norm", "Linear"))
        or name == "Conv1D"
    )


def _try_for_real(model: PreTrainedModel, calls: _Calls) -> None:
    device = next(model.parameters()).device
    try:
        model(**_trial_inputs(device))
    except ModelRefused:
        raise
    except Exception as exc:
        raise ModelRefused(
            f"a trial forward of {_TRIAL_TOKENS} tokens failed: {type(exc).__name__}: {exc}"[:1000]
        ) from exc


def _trial_inputs(device: torch.device | str) -> dict[str, Any]:
    ids = torch.zeros(1, _TRIAL_TOKENS, dtype=torch.long, device=device)
    return {
        "input_ids": ids,
        # With a mask given, models look for no packed sequences in the positions, which needs their values.
        "attention_mask": torch.ones_like(ids),
        "use_cache": False,
        "logits_to_keep": 1,
    }
