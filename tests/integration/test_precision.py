"""Weights and KV memory of lower precision: what the worker computes with them, against float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from contracts.sampling import SamplingParams
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.errors import ModelRefused
from python_backend.worker.kv import KVLayout, dequantize_rows, quantize_rows, view_arena
from python_backend.worker.quantized import Fp8Linear, Int8Linear
from python_backend.worker.scheduler import Scheduled
from python_backend.worker.sequence import Sequence
from tests.integration.test_model_families import FAMILIES, SIZES, in_blocks
from tests.integration.weight_tables import bound

pytestmark = pytest.mark.integration

TOKENS = [3 + (7 * i) % 50 for i in range(40)]


def reference(family: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(3)
    config = transformers.CONFIG_MAPPING[family](**(SIZES | FAMILIES[family].config | changes))
    attention = "eager" if FAMILIES[family].eager else "sdpa"
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def logits_of(model: PreTrainedModel, kv_dtype: torch.dtype = torch.float32) -> Tensor:
    """After a cut prefill and a decode, [2, vocabulary]."""
    layout = KVLayout.of(model, kv_dtype)
    runner = DecoderRunner(model, view_arena(torch.zeros(8 * layout.block_bytes, dtype=torch.uint8), layout))
    sequence = Sequence(0, list(TOKENS), len(TOKENS), SamplingParams())
    sequence.slots = in_blocks(TOKENS * 4).slots[:64]
    runner.run([Scheduled(sequence, 0, 17)])
    runner.run([Scheduled(sequence, 17, 22)])
    decoded = runner.run([Scheduled(sequence, 39, 1)])
    again = runner.run([Scheduled(sequence, 0, 40)])
    return torch.cat((decoded, again))


def error(ours: Tensor, theirs: Tensor) -> float:
    """Root mean square, as a share of the reference's."""
    return float((ours - theirs).pow(2).mean().sqrt() / theirs.pow(2).mean().sqrt())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mixtral"])
def test_a_model_over_the_pools_weights_computes_what_transformers_does(family, tmp_path):
    """Parameters are views, buffers are made anew: scaled embeddings, rope frequencies, position tables."""
    theirs = reference(family)
    with bound(theirs, tmp_path) as ours, torch.inference_mode():
        expected = theirs(torch.tensor([TOKENS])).logits[0, -1]
        for name, buffer in theirs.named_buffers():
            assert torch.equal(buffer, ours.get_buffer(name)), name
        assert error(logits_of(ours), expected.expand(2, -1)) < 1e-4


@pytest.mark.parametrize(("precision", "bound_error"), [("bf16", 0.06), ("int8", 0.06), ("fp8", 0.2)])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox", "phi"])
def test_weights_of_lower_precision_stay_close(family, precision, bound_error, tmp_path):
    """Logits within a bound of float32's; float32 when they reach the sampler."""
    theirs = reference(family, initializer_range=0.1)
    with bound(theirs, tmp_path, precision) as ours, torch.inference_mode():
        logits = logits_of(ours)
        expected = theirs(torch.tensor([TOKENS])).logits[0, -1]
    assert logits.dtype == torch.float32
    assert 1e-4 < error(logits, expected.expand(2, -1)) < bound_error


@pytest.mark.parametrize(("precision", "layer"), [("int8", Int8Linear), ("fp8", Fp8Linear)])
def test_quantized_weights_are_the_pools_own_bytes(precision, layer, tmp_path):
    """No dequantised copy is kept: every linear layer but the head is a view of the memfd."""
    with bound(reference("llama"), tmp_path, precision) as ours:
        layers = [module for module in ours.modules() if isinstance(module, layer)]
        assert len(layers) == 3 * 7
        storages = {module.weight.untyped_storage().data_ptr() for module in layers}
        storages |= {module.weight_scale.untyped_storage().data_ptr() for module in layers}
        assert len(storages) == 1


@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 100])
@pytest.mark.parametrize("bfloat16_units", [False, True])
def test_an_int8_layer_computes_the_same_with_every_kernel(tokens, bfloat16_units, monkeypatch):
    """By torch's int8 kernel, by tiles in bfloat16, by tiles in float32: with bias, of several tiles."""
    monkeypatch.setattr("python_backend.worker.quantized.has_bfloat16_units", lambda: bfloat16_units)
    monkeypatch.setattr("python_backend.worker.quantized._TILE_ELEMENTS", 64 * 20)
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 96)
    layer = Int8Linear(linear, torch.int8)
    layer.weight_scale = linear.weight.abs().amax(dim=1) / 127
    layer.weight = (linear.weight / layer.weight_scale[:, None]).round().to(torch.int8)
    x = torch.randn(1, tokens, 64)
    with torch.inference_mode():
        assert error(layer(x), linear(x)) < 0.015
        assert layer(x).shape == (1, tokens, 96)


def test_eight_bit_weights_of_what_is_no_linear_layer_are_refused(tmp_path, monkeypatch):
    """A name that looked like a linear layer's must not be computed with wrongly."""
    monkeypatch.setattr("tests.integration.weight_tables.LINEAR", (Conv1D,))
    model = reference("gpt2")
    with pytest.raises(ModelRefused, match="Conv1D is no linear layer"), bound(model, tmp_path, "int8"):
        pass


@pytest.mark.parametrize(("dtype", "bound_error"), [(torch.bfloat16, 0.02), (torch.int8, 0.04)])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_a_kv_cache_of_lower_precision_stays_close(family, dtype, bound_error, tmp_path):
    """Close to float32; the same for every way to cut the prompt, since all keys are read as the cache has them."""
    theirs = reference(family)
    with bound(theirs, tmp_path) as ours, torch.inference_mode():
        exact, rounded = logits_of(ours), logits_of(ours, dtype)
    assert 1e-5 < error(rounded, exact) < bound_error
    assert error(rounded[0], rounded[1]) < 1e-5


def test_blocks_of_lower_precision_are_smaller_and_still_whole_pages():
    """SmolLM2-135M's geometry: a half, and a quarter with the scales."""
    sizes = [
        KVLayout(30, 3, 64, dtype=dtype).block_bytes for dtype in (torch.float32, torch.bfloat16, torch.int8)
    ]
    assert sizes == [737_280, 368_640, 196_608]
    assert all(size % 4096 == 0 for size in sizes)


def test_int8_rows_come_back_within_half_a_step():
    """Symmetric by each row's largest magnitude; a row of zeros comes back as zeros."""
    rows = torch.randn(5, 3, 16)
    rows[2] = 0
    steps = rows.abs().amax(dim=-1, keepdim=True) / 127
    back = dequantize_rows(quantize_rows(rows), torch.float32)
    assert bool(((back - rows).abs() <= 0.5001 * steps).all())
    assert not back[2].any()
