"""The private, compiled copy of the model repository that Triton serves (RUN_DIR/triton/repository).

Private, because Triton's stub writes `__pycache__` beside `model.py`, and a changed file turns the next
scale-out into a full reload. Compiled before the first load, so that the stub has nothing to write
(test_first_scale_out_of_a_fresh_copy_is_in_place). A model that the user's repository lacks comes from the shipped
one; a registered model that has no entry of its own gets one from the template of its kind. A batch model's weights
and programs stay where they are: the node reads them there, Triton never does.
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
BATCH_CODE = ("module.py", "model.pt2")
"""Either makes a version folder one of a batch model (`python_backend/worker/modules.py`)."""
NOT_COPIED = ("__pycache__", ".*", "*.swp", "*~")
NOT_COPIED_OF_BATCH = ("*.safetensors", "*.safetensors.index.json", "*.pt2")

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
    served = []
    for name in models:
        origin = find_entry(source, name)
        if origin is not None:
            copy_entry(origin, target / name)
        else:
            generate_entry(source, target / name, name, registered(name, read))
        compile_entry(target / name)
        served.append(served_model(target / name, read, origin))
    return Repository(target, tuple(model for model in served if model is not None))


def find_entry(source: Path, name: str) -> Path | None:
    """The user's entry, else the shipped one, else None."""
    return next(
        (root / name for root in (source, shipped()) if (root / name / "config.pbtxt").is_file()), None
    )


def copy_entry(source: Path, target: Path) -> None:
    is_batch = read_config(source).parameters["kind"].string_value == "batch"
    ignore = shutil.ignore_patterns(*NOT_COPIED, *(NOT_COPIED_OF_BATCH if is_batch else ()))
    shutil.copytree(source, target, ignore=ignore, copy_function=shutil.copyfile)


def generate_entry(source: Path, target: Path, name: str, manifest: ModelManifest) -> None:
    """Write `name`'s entry: the template of its kind with name, weights and instance groups replaced."""
    template = find_entry(source, TEMPLATES[manifest.kind]) if manifest.kind in TEMPLATES else None
    if template is None:
        raise RepositoryInvalid(f"no entry of kind {manifest.kind!r} ships to make one for {name!r} from")
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


def served_model(entry: Path, read: ManifestReader, origin: Path | None = None) -> ServedModel | None:
    """None: Triton serves it alone. `origin`: the folder that `entry` is a copy of."""
    config = read_config(entry)
    if config.name and config.name != entry.name:
        raise RepositoryInvalid(f"config.pbtxt of {entry.name!r} names itself {config.name!r}")
    if config.parameters["kind"].string_value == "batch":
        return batch_model(entry.name, config, origin or entry)
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


def batch_model(name: str, config: model_config_pb2.ModelConfig, origin: Path) -> ServedModel:
    """Served from its newest version folder, with the weights that lie there."""
    if "weights" in config.parameters:
        raise RepositoryInvalid(
            f"model {name!r} is of kind 'batch': its weights are the model.safetensors beside its code, not"
            f" {config.parameters['weights'].string_value!r}; remove the parameter weights"
        )
    if not config.max_batch_size:
        raise RepositoryInvalid(f"model {name!r} is of kind 'batch': max_batch_size = 0, must be at least 1")
    versions = [
        folder
        for folder in sorted(origin.glob("[0-9]*"), key=lambda folder: (len(folder.name), folder.name))
        if any((folder / file).is_file() for file in BATCH_CODE)
    ]
    if not versions:
        raise RepositoryInvalid(
            f"model {name!r} is of kind 'batch', but no version folder of {origin} has {' or '.join(BATCH_CODE)}"
        )
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    folder = versions[-1].resolve()
    return ServedModel(
        name=name,
        kind="batch",
        weights=f"{name}/{folder.name}",
        path=str(folder),
        **read_served_options(name, parameters),
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
