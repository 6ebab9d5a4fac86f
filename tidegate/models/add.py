"""`tidegate models add`: register a folder of the user's. It stays where it is and is only read."""

from __future__ import annotations

from pathlib import Path

from contracts.stack import ModelKind, ModelManifest
from tidegate.models import folder as folders
from tidegate.models.errors import ManifestDamaged, NameTaken
from tidegate.models.progress import Progress
from tidegate.models.registry import Registry, check_name


def add(
    registry: Registry,
    name: str,
    path: Path,
    progress: Progress,
    kind: ModelKind | None = None,
    *,
    replace: bool = False,
) -> ModelManifest:
    """Check, hash and register. `replace`: what has that name now is forgotten, once the new folder is known
    to be good; files that are the registry's own are deleted with it. Raises ModelError."""
    check_name(name)
    found = folders.inspect(path, kind)
    with registry.locked(
        lambda: progress.say("another `tidegate models` command is at work; waiting for it")
    ):
        other = _registered(registry, name)
        if other is not None and not replace:
            raise NameTaken(
                f"{name!r} is registered for {other.path}; choose another name, or --replace to put"
                f" {found.path} in its place"
            )
        sha256 = folders.hash_files(found.files, progress, f"hashing {name}")
        manifest = folders.make_manifest(name, found, str(found.path), sha256)
        if other is not None and registry.owns_files(other) and found.path != Path(other.path):
            registry.remove(name)
        registry.write(manifest)
    return manifest


def _registered(registry: Registry, name: str) -> ModelManifest | None:
    """A damaged manifest is nothing that could be lost."""
    try:
        return registry.find(name)
    except ManifestDamaged:
        return None
