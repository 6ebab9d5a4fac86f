"""`tidegate models add`: register a folder of the user's. It stays where it is and is only read."""

from __future__ import annotations

from pathlib import Path

from contracts.stack import ModelKind, ModelManifest
from tidegate.models import folder as folders
from tidegate.models.errors import ManifestDamaged, NameTaken
from tidegate.models.progress import Progress
from tidegate.models.registry import Registry, check_name


def add(
    registry: Registry, name: str, path: Path, progress: Progress, kind: ModelKind | None = None
) -> ModelManifest:
    """Check, hash and register. Adding the same folder again registers it as it is now. Raises ModelError."""
    check_name(name)
    found = folders.inspect(path, kind)
    with registry.locked(
        lambda: progress.say("another `tidegate models` command is at work; waiting for it")
    ):
        _check_free(registry, name, found.path)
        sha256 = folders.hash_files(found.files, progress, f"hashing {name}")
        manifest = folders.make_manifest(name, found, str(found.path), sha256)
        registry.write(manifest)
    return manifest


def _check_free(registry: Registry, name: str, path: Path) -> None:
    try:
        other = registry.find(name)
    except ManifestDamaged:
        return  # nothing that could be lost
    if other is not None and (registry.owns_files(other) or Path(other.path) != path):
        raise NameTaken(
            f"{name!r} is registered for {other.path}; choose another name, or `tidegate models remove {name}`"
        )
