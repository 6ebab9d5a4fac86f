"""Is this Hugging Face folder one that a worker can load? Read-only; weights are looked at, never loaded."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from contracts.stack import ModelKind, ModelManifest
from python_backend.node.checkpoint import INDEX_NAME, Checkpoint, read_checkpoint
from python_backend.node.errors import CheckpointError, CheckpointMissing
from tidegate.models.errors import ContentMismatch, FolderUnusable
from tidegate.models.progress import Progress, read_chunks

DECODER_SUFFIXES = ("ForCausalLM", "LMHeadModel")
# Those that run with mean pooling and transformers' SDPA attention; MPNet and DeBERTa have none.
ENCODER_FAMILIES = (
    "Albert", "Bert", "Camembert", "DistilBert", "Electra", "Ernie", "ModernBert", "Roberta", "XLMRoberta",
)  # fmt: skip
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# What transformers and tokenizers may read beside the weights.
_COMPANIONS = (
    "added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "special_tokens_map.json",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class ModelFolder:
    """What was found out about a folder."""

    path: Path
    architecture: str
    kind: ModelKind
    num_parameters: int
    files: tuple[Path, ...]
    """All that a worker may read, in the order of their names."""

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def inspect(path: Path, kind: ModelKind | None = None) -> ModelFolder:
    """`kind` overrides what the architecture says. Raises FolderUnusable."""
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise FolderUnusable(
            f"{path} is no folder; give one with config.json, tokenizer.json and *.safetensors"
        )
    config = _read_config(path / "config.json")
    architecture = _architecture(path, config)
    known = kind_of(architecture)
    if known is None:
        raise FolderUnusable(
            f"{path}: architecture {architecture!r} is neither a decoder (…{', …'.join(DECODER_SUFFIXES)}) "
            f"nor a known encoder ({', '.join(ENCODER_FAMILIES)}); it can't be served here"
        )
    if kind is not None and kind != known:
        raise FolderUnusable(
            f"{path}: {architecture} is a model of kind {known!r}, not {kind!r}; leave out --kind"
        )
    _check_tokenizer(path / "tokenizer.json")
    checkpoint = _read_weights(path)
    weights = {tensor.file for tensor in checkpoint.tensors} | {path / INDEX_NAME}
    files = sorted(file for file in weights | {path / name for name in _COMPANIONS} if file.is_file())
    # Whole numbers are buffers (position ids), no parameters.
    floats = [tensor for tensor in checkpoint.tensors if "F" in tensor.dtype]
    num_parameters = sum(math.prod(tensor.shape) for tensor in floats)
    return ModelFolder(path, architecture, known, num_parameters, tuple(files))


def kind_of(architecture: str) -> ModelKind | None:
    """None: not known to run here."""
    if architecture.endswith(DECODER_SUFFIXES):
        return "generate"
    for suffix in ("Model", "ForMaskedLM"):
        if architecture.removesuffix(suffix) in ENCODER_FAMILIES:
            return "embed"
    return None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise FolderUnusable(f"{path} is not there; is {path.parent} a Hugging Face model folder?") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise FolderUnusable(f"{path} can't be read: {exc}") from exc
    if not isinstance(config, dict):
        raise FolderUnusable(f"{path} holds no JSON object")
    return config


def _architecture(path: Path, config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise FolderUnusable(f"{path / 'config.json'} names no `architectures`; add the model's class there")
    if config.get("is_encoder_decoder"):
        raise FolderUnusable(f"{path}: {names[0]} is an encoder-decoder; decoders and encoders are served")
    if "auto_map" in config:
        raise FolderUnusable(
            f"{path}: config.json's auto_map wants code from the folder to be run, which is not done here; "
            "use a model whose class is part of transformers, or remove auto_map if it is"
        )
    return names[0]


def _check_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise FolderUnusable(
            f"{path} is not there; `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` writes it"
        )
    try:
        Tokenizer.from_file(str(path))
    except Exception as exc:  # the tokenizers library raises plain Exception
        raise FolderUnusable(f"{path} can't be read: {exc}; copy the file again") from exc


def _read_weights(path: Path) -> Checkpoint:
    try:
        return read_checkpoint(path)
    except CheckpointMissing as exc:
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise FolderUnusable(
                f"{path} has only pickled weights ({pickles[0]}), which can run code when they are read, so they "
                "are refused; `AutoModel.from_pretrained(FOLDER).save_pretrained(NEW)` where you trust them "
                "writes safetensors"
            ) from exc
        raise FolderUnusable(f"{exc}; weights must be *.safetensors") from exc
    except CheckpointError as exc:
        raise FolderUnusable(f"{exc}; copy the file again") from exc


def hash_files(files: tuple[Path, ...], progress: Progress, step: str = "hashing") -> dict[str, str]:
    """File name -> sha256."""
    progress.start(step, sum(file.stat().st_size for file in files))
    return {file.name: _hash_file(file, progress) for file in files}


def _hash_file(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    for chunk in read_chunks(path, progress):
        digest.update(chunk)
    return digest.hexdigest()


def verify(manifest: ModelManifest, progress: Progress) -> None:
    """Hash every file of the manifest again. Raises ContentMismatch naming the first that differs."""
    files = tuple(Path(manifest.path) / name for name in sorted(manifest.sha256))
    for file in files:
        if not file.is_file():
            raise ContentMismatch(f"{manifest.name}: {file} is gone; fetch or add the model again")
    for name, found in hash_files(files, progress, f"verifying {manifest.name}").items():
        if found != manifest.sha256[name]:
            raise ContentMismatch(
                f"{manifest.name}: {Path(manifest.path) / name} has sha256 {found[:12]}…, registered was "
                f"{manifest.sha256[name][:12]}…; fetch or add the model again"
            )


def make_manifest(
    name: str, folder: ModelFolder, source: str, sha256: dict[str, str], path: Path | None = None
) -> ModelManifest:
    """`path`: where the folder will lie, when that is not where it was inspected."""
    return ModelManifest(
        name=name,
        kind=folder.kind,
        architecture=folder.architecture,
        path=str(path or folder.path),
        source=source,
        num_parameters=folder.num_parameters,
        sha256=sha256,
    )
