"""What a set of weights was made from, so that nobody binds other weights than they think.

Two fingerprints that differ say in which fields; `digest` is the short form that goes into every prefix hash.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import msgspec

from contracts.stack import Precision
from python_backend.node.checkpoint import Checkpoint
from python_backend.node.errors import CheckpointMalformed

CONFIG_NAME = "config.json"
PROGRAM_NAMES = ("module.py", "model.pt2")
"""A batch model's program: it changes what is computed as weights do."""
LIBRARIES = ("torch", "transformers")
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct")
_SHOWN_CHARS = 60

FileStamps = dict[str, tuple[int, int, int]]
"""File name -> size, mtime in ns, inode: equal means that nothing has to be read again."""


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Every field that, changed, changes what a model computes."""

    files: dict[str, str]
    """Name -> sha256: of weights over the header and the tensors' bytes, of a program over the file."""
    stored_dtypes: list[str]
    """safetensors' names, sorted."""
    precision: Precision
    architecture: str
    quantization: str
    rope: str
    config: str
    """sha256 over the whole config.json as values: what has no field of its own here."""
    libraries: dict[str, str]
    """Name -> major.minor."""

    def digest(self) -> str:
        """ "fp32-" and 64 hex digits; equal exactly when all fields are."""
        return f"{self.precision}-{hashlib.sha256(msgspec.json.encode(self, order='sorted')).hexdigest()}"

    def differences(self, other: Fingerprint) -> list[str]:
        """One text a field that differs, as "rope: 'THIS' against 'OTHER'"; dictionaries entry by entry."""
        ours, theirs = _flat(self), _flat(other)
        return [
            f"{name}: {_shown(ours.get(name))} against {_shown(theirs.get(name))}"
            for name in dict.fromkeys([*ours, *theirs])
            if ours.get(name) != theirs.get(name)
        ]


def make_fingerprint(
    folder: Path, checkpoint: Checkpoint, precision: Precision, file_hashes: dict[str, str]
) -> Fingerprint:
    """Raises CheckpointMalformed when config.json is no JSON object; a folder without one has empty fields."""
    config = read_model_config(folder)
    text: dict[str, Any] = config.get("text_config") or config
    rope = {key: text[key] for key in ROPE_KEYS if text.get(key) is not None}
    return Fingerprint(
        files=file_hashes | _program_hashes(folder),
        stored_dtypes=sorted({tensor.dtype for tensor in checkpoint.tensors}),
        precision=precision,
        architecture=",".join(config.get("architectures") or []),
        quantization=_canonical(config.get("quantization_config") or {}),
        rope=_canonical(rope),
        config=hashlib.sha256(_canonical(config).encode()).hexdigest(),
        libraries={name: _major_minor(name) for name in LIBRARIES},
    )


def read_model_config(folder: Path) -> dict[str, Any]:
    """config.json; {} when there is none. Raises CheckpointMalformed."""
    path = folder / CONFIG_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CheckpointMalformed(f"{path}: {exc}") from exc


def stamp_files(files: list[Path]) -> FileStamps:
    stamps = {}
    for file in files:
        stat = file.stat()
        stamps[file.name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return stamps


def _program_hashes(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in (folder / name for name in PROGRAM_NAMES):
        if path.is_file():
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":")) if values else ""


def _major_minor(library: str) -> str:
    try:
        return ".".join(importlib.metadata.version(library).split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return ""


def _flat(fingerprint: Fingerprint) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in msgspec.to_builtins(fingerprint).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            flat[name] = value
    return flat


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
