"""The private, compiled copy of the model repository that Triton serves (RUN_DIR/triton/repository).

Private, because Triton's stub writes `__pycache__` beside `model.py`, and a changed file turns the next
scale-out into a full reload. Compiled before the first load, so that the stub has nothing to write
(test_first_scale_out_of_a_fresh_copy_is_in_place). A registered model that has no entry of its own gets one
from the template of its kind.
"""

from __future__ import annotations

import importlib.resources
import py_compile
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from contracts.stack import MANIFEST_NAME, ModelKind, ModelManifest, ServedModel, tidegate_home
from tidegate.launch_errors import RepositoryInvalid
from tidegate.served_options import read_served_options

TEMPLATES: dict[ModelKind, str] = {"generate": "chat", "embed": "embed"}
"""Which shipped entry a registered model of a kind is made from."""

ManifestReader = Callable[[str], ModelManifest | None]


@dataclass(frozen=True)
class Repository:
    """A prepared copy. `served`: the models that need a worker, that is weights; others are Triton's alone."""

    root: Path
    served: tuple[ServedModel, ...]


def shipped() -> Path:
    """The package data `model_repository`."""
    return Path(str(importlib.resources.files("model_repository")))


def read_manifest(name: str) -> ModelManifest | None:
    """The registered model, or None. Raises RepositoryInvalid on a damaged manifest."""
    path = tidegate_home() / "models" / name / MANIFEST_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelManifest)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as exc:
        raise RepositoryInvalid(f"{path} is damaged: {exc}; add or fetch the model again") from exc


def prepare(
    source: Path, target: Path, models: Sequence[str], read: ManifestReader = read_manifest
) -> Repository:
    """Make `target` afresh with exactly `models`, compiled. Raises RepositoryInvalid."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in models:
        if (source / name / "config.pbtxt").is_file():
            copy_entry(source / name, target / name)
        else:
            generate_entry(source, target / name, name, registered(name, read))
        compile_entry(target / name)
    served = [served_model(target / name, read) for name in models]
    return Repository(target, tuple(model for model in served if model is not None))


def copy_entry(source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", ".*", "*.swp", "*~")
    shutil.copytree(source, target, ignore=ignore, copy_function=shutil.copyfile)


def generate_entry(source: Path, target: Path, name: str, manifest: ModelManifest) -> None:
    """Write `name`'s entry: the template of its kind with name, weights and instance groups replaced."""
    template = source / TEMPLATES[manifest.kind]
    if not template.is_dir():
        raise RepositoryInvalid(f"{source} has no {template.name}/ to make an entry for {name!r} from")
    copy_entry(template, target)
    config = read_config(template)
    config.name = name
    group = model_config_pb2.ModelInstanceGroup()
    group.CopyFrom(config.instance_group[0])
    group.name = group.host_policy = f"{name}-0"
    del config.instance_group[:]
    config.instance_group.append(group)
    config.parameters["weights"].string_value = manifest.name
    (target / "config.pbtxt").write_text(text_format.MessageToString(config))


def compile_entry(entry: Path) -> None:
    """Compile every Python file of an entry to where, and as, the stub's interpreter will look for it."""
    for file in sorted(entry.rglob("*.py")):
        compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
        try:
            # Said outright, because the defaults follow PYTHONOPTIMIZE and SOURCE_DATE_EPOCH of this process.
            py_compile.compile(
                str(file),
                cfile=str(compiled),
                doraise=True,
                optimize=0,
                invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP,
            )
        except py_compile.PyCompileError as exc:
            raise RepositoryInvalid(f"model {entry.name!r} does not compile: {exc.msg.strip()}") from exc


def served_model(entry: Path, read: ManifestReader) -> ServedModel | None:
    config = read_config(entry)
    if config.name and config.name != entry.name:
        raise RepositoryInvalid(f"config.pbtxt of {entry.name!r} names itself {config.name!r}")
    if "weights" not in config.parameters:
        return None
    manifest = registered(config.parameters["weights"].string_value, read)
    kind = config.parameters["kind"].string_value
    if kind != manifest.kind:
        raise RepositoryInvalid(
            f"model {entry.name!r} is of kind {kind!r}, but its weights {manifest.name!r} are {manifest.kind!r}"
        )
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    options = read_served_options(entry.name, parameters)
    return ServedModel(
        name=entry.name, kind=manifest.kind, weights=manifest.name, path=manifest.path, **options
    )


def registered(name: str, read: ManifestReader) -> ModelManifest:
    manifest = read(name)
    if manifest is None:
        raise RepositoryInvalid(
            f"no model {name!r} is registered under {tidegate_home() / 'models'}; "
            f"`tidegate models fetch` gets the shipped ones, `tidegate models add {name} PATH` registers yours"
        )
    return manifest


def read_config(entry: Path) -> model_config_pb2.ModelConfig:
    path = entry / "config.pbtxt"
    try:
        return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise RepositoryInvalid(f"{path}: {exc}") from exc


def fingerprint(root: Path) -> dict[str, tuple[int, int]]:
    """Path -> (size, mtime in ns) of every file and folder. Equal before and after a load: nothing was written."""
    stats = {str(path.relative_to(root)): path.stat() for path in sorted(root.rglob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
