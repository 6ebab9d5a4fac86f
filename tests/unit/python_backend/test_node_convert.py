"""Precisions: bit for bit as torch rounds, and only where a name says that it may be rounded."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from contracts.stack import Precision
from python_backend.messages import TensorSpec
from python_backend.node import convert, loading
from python_backend.node.arena import CpuArena
from python_backend.node.errors import PrecisionImpossible
from python_backend.node.layout import is_linear_weight, lay_out
from python_backend.node.loading import fill, find_copies, plan_load

EDGES = [0.0, -0.0, 1.0, -1.0, 2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, 448.0, 464.0, 463.9, 1e-30, 240.5]


def every_16_bit_float(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()


def random_floats() -> np.ndarray:
    """Every exponent that a weight may have, and a few beyond."""
    generator = np.random.default_rng(7)
    return (generator.standard_normal(100_000) * 2.0 ** generator.integers(-40, 40, 100_000)).astype(
        np.float32
    )


def test_bf16_is_rounded_as_torch_rounds() -> None:
    """Ties to even, infinities stay, NaN stays NaN, the largest float32 overflows to infinity."""
    halves = every_16_bit_float(torch.bfloat16).numpy()
    between = (halves.view(np.uint32) | np.uint32(0x8000)).view(np.float32)  # ties, exactly
    special = np.array([np.inf, -np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    values = np.concatenate([halves, between, random_floats(), special])
    ours = torch.from_numpy(convert.to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(torch.nan_to_num(ours.float()), torch.nan_to_num(theirs.float()))
    assert torch.equal(ours.isnan(), theirs.isnan())


def test_float8_is_rounded_as_torch_rounds() -> None:
    """Every fp16 value up to 448 and every tie between two e4m3fn values, subnormals included."""
    steps = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (steps[1:] + steps[:-1]) / 2
    finite = torch.nan_to_num(every_16_bit_float(torch.float16), 0.0, 0.0, 0.0)
    values = torch.cat([steps, -steps, ties, -ties, finite.clamp(-448, 448)]).numpy()
    ours = torch.from_numpy(convert.to_float8(values)).view(torch.float8_e4m3fn)
    assert torch.equal(ours.float(), torch.from_numpy(values).to(torch.float8_e4m3fn).float())
    assert convert.to_float8(np.array([1e9, -449.0], np.float32)).tolist() == [0x7E, 0xFE]


def test_rows_keep_their_largest_value_and_err_by_half_a_step() -> None:
    """int8: |w - q * scale| <= scale / 2; a row of zeros has no division by zero."""
    rows = random_floats()[:6000].reshape(20, 300).copy()
    rows[3] = 0
    quantized, scale = convert.to_int8_rows(rows)
    assert quantized.dtype == np.int8
    assert np.abs(quantized).max() == 127
    assert (np.abs(rows - quantized * scale[:, None]) <= scale[:, None] * 0.5001).all()
    assert scale[3] == 1.0
    largest = np.abs(quantized).max(axis=1)
    assert set(largest.tolist()) == {0, 127}


def test_float8_rows_use_the_whole_range() -> None:
    """One scale a row, absmax / 448; errors at most 1/16 of a value (3 mantissa bits)."""
    rows = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    bits, scale = convert.to_float8_rows(rows)
    back = torch.from_numpy(bits).view(torch.float8_e4m3fn).float().numpy() * scale[:, None]
    np.testing.assert_allclose(scale, np.abs(rows).max(axis=1) / 448, rtol=1e-6)
    assert (np.abs(back - rows) <= np.abs(rows) / 16 + scale[:, None] * 2.0**-10).all()


@pytest.mark.parametrize(
    ("name", "is_linear"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", True),
        ("gpt_neox.layers.1.attention.query_key_value.weight", True),
        ("model.decoder.layers.0.fc1.weight", True),
        ("encoder.layer.0.attention.output.dense.weight", True),
        ("model.layers.0.mlp.experts.3.w1.weight", True),
        ("model.embed_tokens.weight", False),
        ("transformer.wte.weight", False),
        ("transformer.wpe.weight", False),
        ("embeddings.word_embeddings.weight", False),
        ("embeddings.token_type_embeddings.weight", False),
        ("gpt_neox.embed_in.weight", False),
        ("embed_out.weight", False),
        ("lm_head.weight", False),
        ("cls.predictions.decoder.weight", False),
        ("model.layers.0.input_layernorm.weight", False),
        ("model.layers.0.mlp.gate.weight", False),
        ("transformer.h.0.attn.c_attn.weight", False),
        ("block.conv.weight", False),
        ("encoder.embeds.3.weight", False),
        ("model.layers.0.self_attn.q_proj.bias", False),
    ],
)
def test_names_tell_which_weights_are_linear_layers(name: str, is_linear: bool) -> None:
    """Whoever looks tokens up, norms, routes or makes logits stays exact."""
    assert is_linear_weight(name, (8, 8)) == is_linear
    assert not is_linear_weight(name, (8,))


def loaded(tmp_path: Path, tensors: dict[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """What a worker would see."""
    save_file(tensors, str(tmp_path / "model.safetensors"))
    arena = CpuArena()
    weights = arena.load_weights(tmp_path, precision, tmp_path)
    table = msgspec.json.decode(weights.table_path.read_bytes(), type=dict[str, TensorSpec])
    with mmap.mmap(weights.fd, weights.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        raw = torch.frombuffer(bytearray(mapped), dtype=torch.uint8)
    arena.close()
    found = {}
    for name, spec in table.items():
        dtype = getattr(torch, spec.dtype)
        num_bytes = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        found[name] = raw[spec.offset_bytes : spec.offset_bytes + num_bytes].view(dtype).view(spec.shape)
    return found


def tiny_tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "model.embed_tokens.weight": torch.randn(32, 8).to(dtype),
        "model.layers.0.self_attn.q_proj.weight": torch.randn(24, 8).to(dtype),
        "model.layers.0.self_attn.q_proj.bias": torch.randn(24).to(dtype),
        "model.norm.weight": torch.randn(8).to(dtype),
        "ids": torch.arange(5),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("chunk_bytes", [40, 8 << 20])
def test_bf16_holds_every_floating_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunk_bytes: int
) -> None:
    """Whatever it was stored as, across borders of pieces; whole numbers stay what they are."""
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    tensors = tiny_tensors(dtype)
    found = loaded(tmp_path, tensors, "bf16")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        wanted = tensor.to(torch.float32).to(torch.bfloat16) if tensor.is_floating_point() else tensor
        assert found[name].dtype == wanted.dtype
        assert torch.equal(found[name], wanted)


@pytest.mark.parametrize("chunk_bytes", [40, 8 << 20])
def test_int8_quantizes_linear_layers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """With a scale beside each; the rest is float32."""
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    tensors = tiny_tensors(torch.bfloat16)
    found = loaded(tmp_path, tensors, "int8")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert found.keys() == {*tensors, f"{name}_scale"}
    assert (found[name].dtype, found[f"{name}_scale"].shape) == (torch.int8, (24,))
    exact = tensors[name].float()
    back = found[name].float() * found[f"{name}_scale"][:, None]
    assert (back - exact).abs().max() <= exact.abs().max() / 127 / 2 * 1.001
    for other in tensors.keys() - {name, "ids"}:
        assert torch.equal(found[other], tensors[other].float())


def test_fp8_is_for_gpus(tmp_path: Path) -> None:
    """The text has what would do here; another device gets it through the same stream."""
    save_file(tiny_tensors(torch.float32), str(tmp_path / "model.safetensors"))
    with pytest.raises(PrecisionImpossible, match=r"'fp8' needs a GPU.*bf16, fp32, int8"):
        CpuArena().load_weights(tmp_path, "fp8", tmp_path)
    plan = plan_load(tmp_path, "fp8")
    target = bytearray(plan.layout.num_bytes)

    def write(offset_bytes: int, data: memoryview) -> None:
        target[offset_bytes : offset_bytes + len(data)] = data

    fill(plan, write, lambda *_: None)
    spec = plan.layout.table["model.layers.0.self_attn.q_proj.weight"]
    assert spec.dtype == "float8_e4m3fn"
    bits = np.frombuffer(target, np.uint8, 24 * 8, spec.offset_bytes)
    rows = tiny_tensors(torch.float32)["model.layers.0.self_attn.q_proj.weight"].numpy()
    np.testing.assert_array_equal(bits.reshape(24, 8), convert.to_float8_rows(rows)[0])


def test_weights_that_are_not_finite_are_not_quantized(tmp_path: Path) -> None:
    """An infinity would make its whole row zero; nothing is left open."""
    tensors = tiny_tensors(torch.float32)
    tensors["model.layers.0.self_attn.q_proj.weight"][3, 3] = torch.inf
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(PrecisionImpossible, match=r"q_proj.weight' has values that are not finite"):
        loaded(tmp_path, tensors, "int8")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_head_that_is_stored_twice_is_laid_out_once(tmp_path: Path) -> None:
    """Two names, one place; a head of its own stays apart."""
    tensors = tiny_tensors(torch.float32)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, str(tmp_path / "model.safetensors"))
    plan = plan_load(tmp_path, "fp32")
    assert plan.layout.table["lm_head.weight"] == plan.layout.table["model.embed_tokens.weight"]
    assert plan.layout.num_bytes == 4096
    save_file({**tensors, "lm_head.weight": embedding + 1}, str(tmp_path / "model.safetensors"))
    plan = plan_load(tmp_path, "fp32")
    assert find_copies(plan.checkpoint) == {}
    assert plan.layout.table["lm_head.weight"] != plan.layout.table["model.embed_tokens.weight"]


def test_two_names_for_one_place_in_the_file_are_one_tensor(tmp_path: Path) -> None:
    """As writers that know about tied weights store them."""
    header = b'{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
    header += b'"b.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    data = np.arange(4, dtype="<f4").tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    checkpoint = plan_load(tmp_path, "int8").checkpoint
    layout = lay_out(checkpoint, "int8")
    assert len(layout.placed) == 1
    assert layout.table["a.weight"] == layout.table["b.weight"]
    assert layout.table["a.weight_scale"] == layout.table["b.weight_scale"]
