"""Which Hugging Face folders are taken, and what is said about the others."""

import json

import pytest

from tidegate.models import folder as folders
from tidegate.models.add import add
from tidegate.models.errors import ContentMismatch, FolderUnusable
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry
from tidegate.models.testing import write_hf_folder


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("LlamaForCausalLM", "generate"),
        ("GPT2LMHeadModel", "generate"),
        ("BertModel", "embed"),
        ("XLMRobertaModel", "embed"),
        ("BertForMaskedLM", "embed"),
        ("DistilBertForMaskedLM", "embed"),
        ("MPNetModel", None),
        ("T5ForConditionalGeneration", None),
        ("BertForSequenceClassification", None),
        ("ViTModel", None),
        ("Model", None),
    ],
)
def test_the_architecture_tells_the_kind(architecture, kind):
    """Encoders are listed, decoders go by their suffix."""
    assert folders.kind_of(architecture) == kind


def test_a_whole_folder_is_described(tmp_path):
    """Floats count as parameters, in any width; whole numbers are buffers."""
    found = folders.inspect(write_hf_folder(tmp_path / "m"))

    assert (found.kind, found.num_parameters) == ("generate", 17)
    assert [file.name for file in found.files] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_files_that_nothing_reads_are_not_hashed(tmp_path):
    """A changed README must not fail `verify`."""
    folder = write_hf_folder(tmp_path / "m")
    (folder / "README.json").write_text("{}")
    (folder / "consolidated.safetensors").write_bytes(b"not the checkpoint")

    assert [file.name for file in folders.inspect(folder).files] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda f: (f / "config.json").unlink(), r"config\.json is not there", id="no config"),
        pytest.param(lambda f: (f / "config.json").write_text("{"), "can't be read", id="config cut"),
        pytest.param(
            lambda f: (f / "config.json").write_text("[" * 100_000), "can't be read", id="deep config"
        ),
        pytest.param(lambda f: (f / "config.json").write_text("[]"), "no JSON object", id="config a list"),
        pytest.param(lambda f: (f / "tokenizer.json").unlink(), "save_pretrained", id="no tokenizer"),
        pytest.param(lambda f: (f / "tokenizer.json").write_text("{}"), "can't be read", id="tokenizer odd"),
        pytest.param(
            lambda f: (f / "model.safetensors").unlink(), r"must be \*\.safetensors", id="no weights"
        ),
        pytest.param(pickle_only, r"pytorch_model\.bin.*run code.*save_pretrained", id="pickle"),
        pytest.param(cut_weights, "incomplete copy", id="weights cut"),
    ],
)
def test_what_a_folder_lacks_is_said_with_the_way_out(tmp_path, spoil, said):
    """Each of them would otherwise fail in a worker, minutes later."""
    folder = write_hf_folder(tmp_path / "m")
    spoil(folder)

    with pytest.raises(FolderUnusable, match=said):
        folders.inspect(folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": None}, "names no `architectures`"),
        ({"architectures": []}, "names no `architectures`"),
        ({"architectures": ["MPNetModel"]}, "neither a decoder"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"auto_map": {"AutoModel": "modeling_x.X"}}, "wants code from the folder"),
    ],
)
def test_a_model_that_no_worker_can_run_is_refused(tmp_path, config, said):
    """Before it is registered, not when it is served."""
    with pytest.raises(FolderUnusable, match=said):
        folders.inspect(write_hf_folder(tmp_path / "m", **config))


def test_a_kind_that_contradicts_the_architecture_is_refused(tmp_path):
    """--kind insists; it does not convert."""
    with pytest.raises(FolderUnusable, match="of kind 'generate', not 'embed'"):
        folders.inspect(write_hf_folder(tmp_path / "m"), "embed")


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    """A file, or a typing error."""
    with pytest.raises(FolderUnusable, match="is no folder"):
        folders.inspect(tmp_path / "nowhere")


def test_verify_names_the_file_that_changed(tmp_path):
    """By hash: size and time may be as before."""
    folder = write_hf_folder(tmp_path / "m")
    manifest = add(Registry(tmp_path / "models"), "m", folder, Silent())
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"hidden_size": 4', '"hidden_size": 5'))

    with pytest.raises(ContentMismatch, match=r"m: .*config\.json has sha256"):
        folders.verify(manifest, Silent())


def test_verify_names_the_file_that_is_gone(tmp_path):
    """A folder on an unmounted disk, say."""
    folder = write_hf_folder(tmp_path / "m")
    manifest = add(Registry(tmp_path / "models"), "m", folder, Silent())
    (folder / "model.safetensors").unlink()

    with pytest.raises(ContentMismatch, match=r"model\.safetensors is gone"):
        folders.verify(manifest, Silent())


def test_a_shard_that_lies_outside_the_folder_is_refused(tmp_path):
    """An index file is foreign input."""
    folder = write_hf_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(FolderUnusable, match="outside the folder"):
        folders.inspect(folder)
