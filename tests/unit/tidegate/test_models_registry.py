"""Registered models on disk: what counts, what does not, and what removal leaves."""

import os
from pathlib import Path

import pytest

from contracts.stack import MANIFEST_NAME, ModelManifest
from tidegate.models.add import add
from tidegate.models.errors import FolderUnusable, ManifestDamaged, ModelUnknown, NameInvalid, NameTaken
from tidegate.models.folder import verify
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry, check_name
from tidegate.models.testing import RecordingProgress, write_hf_folder


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "home" / "models")


def manifest_of(registry, name, path=None):
    return ModelManifest(
        name=name,
        kind="generate",
        architecture="LlamaForCausalLM",
        path=str(path or registry.folder(name)),
        source="test",
        num_parameters=1,
        sha256={},
    )


def test_a_folder_without_a_manifest_is_no_model(registry):
    """Whatever a cut-off conversion left in it."""
    (registry.folder("half")).mkdir(parents=True)
    (registry.folder("half") / "model.safetensors").write_bytes(b"x" * 100)
    registry.write(manifest_of(registry, "whole"))

    assert [model.name for model in registry.list().models] == ["whole"]
    assert registry.find("half") is None


def test_work_in_progress_is_not_listed(registry):
    """Folders with a leading dot are being made."""
    (registry.root / ".x.partial").mkdir(parents=True)
    (registry.root / ".x.partial" / MANIFEST_NAME).write_text("{}")

    assert registry.list().models == ()
    assert registry.list().damaged == {}


def test_no_registry_yet_lists_nothing(registry):
    """A fresh machine has no ~/.tidegate."""
    assert registry.list().models == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"name": 1}', b"\xff\xfe"],
    ids=["empty", "cut", "list", "foreign", "bytes"],
)
def test_a_damaged_manifest_is_named_and_the_others_are_listed(registry, content):
    """One bad file must not hide the rest."""
    registry.write(manifest_of(registry, "good"))
    registry.folder("bad").mkdir()
    (registry.folder("bad") / MANIFEST_NAME).write_bytes(content)

    listing = registry.list()

    assert [model.name for model in listing.models] == ["good"]
    assert "tidegate models remove bad" in listing.damaged["bad"]
    with pytest.raises(ManifestDamaged):
        registry.get("bad")


def test_an_unknown_model_is_answered_with_the_known_ones(registry):
    """The way out is in the text."""
    registry.write(manifest_of(registry, "one"))

    with pytest.raises(ModelUnknown, match=r"no model 'two' .*registered: one"):
        registry.get("two")


def test_removal_deletes_a_fetched_models_files(registry):
    """They are ours, and can be fetched again."""
    registry.write(manifest_of(registry, "ours"))
    (registry.folder("ours") / "model.safetensors").write_bytes(b"x")

    registry.remove("ours")

    assert not registry.folder("ours").exists()


def test_removal_leaves_a_users_folder_untouched(registry, tmp_path):
    """Only the registration goes."""
    folder = write_hf_folder(tmp_path / "mine")
    before = sorted(os.listdir(folder))
    add(registry, "mine", folder, Silent())

    registry.remove("mine")

    assert registry.find("mine") is None
    assert sorted(os.listdir(folder)) == before


def test_a_damaged_registration_can_be_removed(registry):
    """Or the error's own advice would not work."""
    registry.folder("bad").mkdir(parents=True)
    (registry.folder("bad") / MANIFEST_NAME).write_text("{")

    assert registry.remove("bad") is None
    assert not registry.folder("bad").exists()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "A", "a/b", "a b", "-x", "x" * 64, "ä", "x\n"])
def test_names_that_could_escape_or_need_quoting_are_refused(registry, name):
    """A name becomes a folder, a URL part and a Triton model."""
    with pytest.raises(NameInvalid):
        check_name(name)
    with pytest.raises(NameInvalid):
        registry.remove(name)


def test_adding_registers_kind_parameters_and_hashes(registry, tmp_path):
    """12 + 5 floats; the 7 whole numbers are a buffer."""
    folder = write_hf_folder(tmp_path / "mine")
    progress = RecordingProgress()

    manifest = add(registry, "mine", folder, progress)

    assert (manifest.kind, manifest.architecture, manifest.num_parameters) == (
        "generate",
        "LlamaForCausalLM",
        17,
    )
    assert manifest.path == str(folder)
    assert set(manifest.sha256) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert registry.get("mine") == manifest
    assert progress.num_bytes == [total for _, total in progress.steps]


def test_a_relative_path_is_registered_absolute(registry, tmp_path, monkeypatch):
    """The stack starts elsewhere."""
    write_hf_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)

    assert add(registry, "mine", Path("mine"), Silent()).path == str(tmp_path / "mine")


def test_a_name_that_is_taken_is_refused_unless_it_shall_be_replaced(registry, tmp_path):
    """Overwriting changes what a configuration serves. A user's own folder stays where it was."""
    one = write_hf_folder(tmp_path / "one")
    two = write_hf_folder(tmp_path / "two")
    add(registry, "mine", one, Silent())

    for path in (one, two):
        with pytest.raises(NameTaken, match="--replace to put"):
            add(registry, "mine", path, Silent())
    add(registry, "mine", two, Silent(), replace=True)

    assert registry.get("mine").path == str(two)
    assert one.is_dir()


def test_a_replaced_model_of_the_registrys_own_loses_its_files(registry, tmp_path):
    """They would lie there unseen. A new folder that is no model leaves all as it was."""
    own = write_hf_folder(registry.folder("mine"))
    add(registry, "mine", own, Silent())
    with pytest.raises(FolderUnusable):
        add(registry, "mine", tmp_path, Silent(), replace=True)
    assert (own / "model.safetensors").exists()

    add(registry, "mine", own, Silent(), replace=True)
    assert (own / "model.safetensors").exists(), "the same folder again"
    add(registry, "mine", write_hf_folder(tmp_path / "new"), Silent(), replace=True)

    assert registry.get("mine").path == str(tmp_path / "new")
    assert not (own / "model.safetensors").exists()


def test_adding_the_same_folder_again_registers_what_is_there_now(registry, tmp_path):
    """After a fine-tune was saved over it, say."""
    folder = write_hf_folder(tmp_path / "mine")
    before = add(registry, "mine", folder, Silent())
    write_hf_folder(folder, hidden_size=8)

    after = add(registry, "mine", folder, Silent(), replace=True)

    assert after.sha256["config.json"] != before.sha256["config.json"]
    verify(registry.get("mine"), Silent())
