"""The served copy of the model repository: what is in it, compiled how, and what is refused."""

from __future__ import annotations

import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest

from contracts.stack import ModelKind, ModelManifest
from scaler.acting.instance_update import instance_names
from tidegate import repository
from tidegate.launch_errors import RepositoryInvalid


def manifest(name: str, kind: ModelKind) -> ModelManifest:
    return ModelManifest(
        name=name,
        kind=kind,
        architecture="LlamaForCausalLM",
        path=f"/models/{name}",
        source="test",
        num_parameters=1,
        sha256={},
    )


def read(name: str) -> ModelManifest | None:
    kinds: dict[str, ModelKind] = {
        "smollm2-135m-instruct": "generate",
        "all-minilm-l6-v2": "embed",
        "my-llama": "generate",
        "my-bert": "embed",
    }
    return manifest(name, kinds[name]) if name in kinds else None


def test_the_shipped_entries_are_copied_and_compiled(tmp_path: Path) -> None:
    """The source stays clean; each model.py has its compiled file beside it."""
    made = repository.prepare(repository.shipped(), tmp_path / "r", ["chat", "embed"], read)
    assert [(model.name, model.kind, model.weights) for model in made.served] == [
        ("chat", "generate", "smollm2-135m-instruct"),
        ("embed", "embed", "all-minilm-l6-v2"),
    ]
    assert made.served[0].path == "/models/smollm2-135m-instruct"
    compiled = f"__pycache__/model.{sys.implementation.cache_tag}.pyc"
    for name in ("chat", "embed"):
        assert (made.root / name / "1" / compiled).is_file()
        assert (made.root / name / "config.pbtxt").read_text() == (
            repository.shipped() / name / "config.pbtxt"
        ).read_text()


def test_compiled_files_are_what_the_interpreter_would_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this process was started with: else the stub writes its own, and the next scale-out is a reload."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")  # makes py_compile's default a hash-checked file
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    made = repository.prepare(repository.shipped(), tmp_path / "r", ["embed"], read)
    (compiled,) = made.root.rglob("*.pyc")
    source = compiled.parent.parent / "model.py"
    monkeypatch.undo()
    head = compiled.read_bytes()[:16]
    assert head[:4] == importlib.util.MAGIC_NUMBER
    assert head[4:8] == bytes(4), "checked by time, not by hash"
    assert int.from_bytes(head[8:12], "little") == int(source.stat().st_mtime)
    assert compiled == Path(importlib.util.cache_from_source(str(source), optimization=""))


@pytest.mark.parametrize(
    ("name", "kind", "template"), [("my-llama", "generate", "chat"), ("my-bert", "embed", "embed")]
)
def test_a_registered_model_gets_an_entry_of_its_kind(
    tmp_path: Path, name: str, kind: str, template: str
) -> None:
    """Name, weights and instance group are its own; the rest is the template's."""
    made = repository.prepare(repository.shipped(), tmp_path / "r", [name], read)
    (served,) = made.served
    assert (served.name, served.kind, served.weights) == (name, kind, name)
    config = repository.read_config(made.root / name)
    original = repository.read_config(repository.shipped() / template)
    assert config.name == name
    assert instance_names(config) == (f"{name}-0",)
    assert config.parameters["weights"].string_value == name
    assert config.input == original.input
    assert config.model_transaction_policy == original.model_transaction_policy
    assert (made.root / name / "1" / "model.py").is_file()


def test_a_name_that_nobody_registered_is_refused_with_the_way_to_register_it(tmp_path: Path) -> None:
    """Neither an entry nor a registered model."""
    with pytest.raises(
        RepositoryInvalid, match=r"no model 'nobody' is registered .*tidegate models add nobody PATH"
    ):
        repository.prepare(repository.shipped(), tmp_path / "r", ["nobody"], read)


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A chat entry over an embedding model would fail much later, and worse."""
    entry = tmp_path / "source" / "chat"
    repository.copy_entry(repository.shipped() / "chat", entry)
    text = (entry / "config.pbtxt").read_text().replace("smollm2-135m-instruct", "my-bert")
    (entry / "config.pbtxt").write_text(text)
    with pytest.raises(
        RepositoryInvalid, match="is of kind 'generate', but its weights 'my-bert' are 'embed'"
    ):
        repository.prepare(tmp_path / "source", tmp_path / "r", ["chat"], read)


def test_a_model_that_does_not_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    """Before Triton is started."""
    entry = tmp_path / "source" / "broken"
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text('name: "broken"')
    (entry / "1" / "model.py").write_text("class TritonPythonModel:\n  def (")
    with pytest.raises(RepositoryInvalid, match=r"model 'broken' does not compile: (.|\n)*line 2"):
        repository.prepare(tmp_path / "source", tmp_path / "r", ["broken"], read)


def test_what_was_there_before_is_gone(tmp_path: Path) -> None:
    """Editors' files and models of the run before would turn updates into reloads."""
    entry = tmp_path / "source" / "plain"
    (entry / "1" / "__pycache__").mkdir(parents=True)
    (entry / "config.pbtxt").write_text('name: "plain"')
    (entry / "1" / ".model.py.swp").touch()
    (entry / "1" / "__pycache__" / "model.cpython-38.pyc").touch()
    (tmp_path / "r" / "old").mkdir(parents=True)
    made = repository.prepare(tmp_path / "source", tmp_path / "r", ["plain"], read)
    assert made.served == ()
    assert set(repository.fingerprint(made.root)) == {"plain", "plain/1", "plain/config.pbtxt"}


def test_a_fingerprint_tells_a_written_file(tmp_path: Path) -> None:
    """A rewritten compiled file, too."""
    made = repository.prepare(repository.shipped(), tmp_path / "r", ["embed"], read)
    before = repository.fingerprint(made.root)
    assert repository.fingerprint(made.root) == before
    (compiled,) = made.root.rglob("*.pyc")
    py_compile.compile(str(compiled.parent.parent / "model.py"), cfile=str(compiled))
    assert repository.fingerprint(made.root) != before


BATCH_CONFIG = """
name: "mine"
backend: "python"
max_batch_size: 8
parameters [ { key: "kind" value { string_value: "batch" } } ]
"""


def batch_entry(source: Path, config: str = BATCH_CONFIG, *files: str) -> Path:
    entry = source / "mine"
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text(config)
    for file in ("1/model.py", *files):
        (entry / file).parent.mkdir(exist_ok=True)
        (entry / file).touch()
    return entry


def test_a_batch_model_is_served_from_its_newest_version_in_the_users_folder(tmp_path: Path) -> None:
    """Weights and programs are read there: nothing large is copied."""
    entry = batch_entry(tmp_path / "s", BATCH_CONFIG, "2/module.py", "10/model.pt2", "10/model.safetensors")
    made = repository.prepare(tmp_path / "s", tmp_path / "r", ["mine"], read)
    (served,) = made.served
    assert (served.kind, served.weights, served.path) == ("batch", "mine/10", str(entry / "10"))
    copied = {path.name for path in (made.root / "mine").rglob("*") if path.is_file()}
    assert {"config.pbtxt", "model.py", "module.py"} <= copied
    assert not {"model.pt2", "model.safetensors"} & copied


def test_models_that_the_users_repository_lacks_are_the_shipped_ones(tmp_path: Path) -> None:
    """One's own model beside chat and embed."""
    batch_entry(tmp_path / "s", BATCH_CONFIG, "1/module.py")
    made = repository.prepare(tmp_path / "s", tmp_path / "r", ["chat", "embed", "mine"], read)
    assert [served.kind for served in made.served] == ["generate", "embed", "batch"]


def test_the_examples_are_batch_models(tmp_path: Path) -> None:
    """Both of them."""
    examples = Path(__file__).parents[3] / "examples"
    made = repository.prepare(examples, tmp_path / "r", ["image_classifier", "batch_template"], read)
    assert [served.kind for served in made.served] == ["batch", "batch"]


@pytest.mark.parametrize(
    ("config", "files", "reason"),
    [
        (BATCH_CONFIG, (), "no version folder of .* has module.py or model.pt2"),
        (BATCH_CONFIG.replace("8", "0"), ("1/module.py",), "max_batch_size = 0, must be at least 1"),
        (
            BATCH_CONFIG + 'parameters [ { key: "weights" value { string_value: "my-bert" } } ]',
            ("1/module.py",),
            "remove the parameter weights",
        ),
    ],
)
def test_a_batch_model_that_cannot_be_served_is_refused(
    tmp_path: Path, config: str, files: tuple[str, ...], reason: str
) -> None:
    """Before Triton is started, with the way out."""
    batch_entry(tmp_path / "s", config, *files)
    with pytest.raises(RepositoryInvalid, match=reason):
        repository.prepare(tmp_path / "s", tmp_path / "r", ["mine"], read)
