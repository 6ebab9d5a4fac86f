"""The GGUF conversion against transformers' own loader."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tidegate.models.errors import GgufUnsupported
from tidegate.models.gguf_convert import convert
from tidegate.models.progress import Silent
from tidegate.models.testing import CHAT_TEMPLATE, RecordingProgress, write_gguf

pytestmark = pytest.mark.integration

TEXTS = ["the inner tide", " there", "<|im_start|>user\nthe<|im_end|>", "ünï ✓ 你好", "a  b\n\n c", ""]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    gguf_file = write_gguf(folder / "tiny.gguf")
    target = folder / "model"
    target.mkdir()
    convert(gguf_file, target, Silent())
    return gguf_file, target


def test_conversion_equals_the_loader_of_transformers(converted):
    """Bit for bit, every tensor: Q4_1, Q8_0 and F32, q and k in Hugging Face's row order, tied embeddings."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    gguf_file, target = converted
    model = AutoModelForCausalLM.from_pretrained(str(target))
    theirs = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=model)["tensors"]
    ours = load_file(target / "model.safetensors")

    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name].numpy()) for name in theirs)
    # Every weight of the model is in the file: nothing was left to chance.
    assert {name for name, _ in model.named_parameters()} == ours.keys()


def test_the_tokenizer_splits_as_transformers_one_does(converted):
    """Special tokens whole, the text given back; and digits one by one, which theirs forgets for this file."""
    from transformers import AutoTokenizer

    gguf_file, target = converted
    theirs = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    ours = AutoTokenizer.from_pretrained(str(target))

    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids
        assert ours.decode(ours(text).input_ids) == text
    assert ours.tokenize("12") == ["1", "2"]
    assert ours.tokenize(" the 123") == ["Ġthe", "Ġ", "1", "2", "3"]


def test_chat_template_and_end_tokens_are_carried_over(converted):
    """They live in the GGUF file's metadata only."""
    _, target = converted

    tokenizer_config = json.loads((target / "tokenizer_config.json").read_text())
    assert tokenizer_config["chat_template"] == CHAT_TEMPLATE
    assert (tokenizer_config["eos_token"], tokenizer_config["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert json.loads((target / "generation_config.json").read_text())["eos_token_id"] == 2


def test_floats_come_back_as_they_were_written(converted):
    """GGUF holds 9.999999747378752e-06; the model was trained with 1e-05."""
    _, target = converted

    config = json.loads((target / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-05, 10000.0)
    assert config["tie_word_embeddings"] is True


def test_progress_counts_every_tensors_bytes(tmp_path):
    """So the bar ends full."""
    progress = RecordingProgress()
    (tmp_path / "model").mkdir()

    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "model", progress)

    assert progress.num_bytes == [progress.steps[0][1]]
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert progress.num_bytes == [sum(tensor.nbytes for tensor in tensors.values())]


def test_an_unknown_pre_tokenizer_is_refused(tmp_path):
    """It would convert, and split every text wrongly."""
    with pytest.raises(GgufUnsupported, match=r"tokenizer\.ggml\.pre = 'llama-bpe'"):
        convert(write_gguf(tmp_path / "tiny.gguf", pre_tokenizer="llama-bpe"), tmp_path, Silent())


def test_an_unknown_tensor_is_refused(tmp_path):
    """Dropping a bias or rope factors would give another model."""
    with pytest.raises(GgufUnsupported, match=r"rope_freqs\.weight"):
        convert(write_gguf(tmp_path / "t.gguf", extra_tensors=("rope_freqs.weight",)), tmp_path, Silent())
