"""The registered models: `$TIDEGATE_HOME/models/NAME/tidegate.json`, one folder a name.

A folder whose manifest is missing is no model, whatever else lies in it; folders with a leading dot are work
in progress. Writers hold `locked()`, readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.stack import MANIFEST_NAME, ModelManifest, tidegate_home, write_whole
from tidegate.models.errors import ManifestDamaged, ModelUnknown, NameInvalid

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62})", re.ASCII)
"""Also a folder's, a URL's and an instance group's part, so nothing that needs quoting there."""

_LOCK_NAME = ".lock"


@dataclass(frozen=True)
class Listing:
    """All there is. `damaged`: name -> why its manifest can't be read."""

    models: tuple[ModelManifest, ...]
    damaged: dict[str, str]


class Registry:
    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def at_home(cls) -> Registry:
        return cls(tidegate_home() / "models")

    def folder(self, name: str) -> Path:
        return self.root / name

    def find(self, name: str) -> ModelManifest | None:
        """None: no such model. Raises ManifestDamaged."""
        path = self.folder(name) / MANIFEST_NAME
        try:
            return msgspec.json.decode(path.read_bytes(), type=ModelManifest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise ManifestDamaged(
                f"{path}: {exc}; run `tidegate models remove {name}`, then fetch or add it again"
            ) from exc

    def get(self, name: str) -> ModelManifest:
        """Raises ModelUnknown, ManifestDamaged."""
        manifest = self.find(name)
        if manifest is None:
            known = ", ".join(model.name for model in self.list().models) or "none"
            raise ModelUnknown(f"no model {name!r} under {self.root}; registered: {known}")
        return manifest

    def list(self) -> Listing:
        """By name. Folders without a manifest are passed over."""
        models, damaged = [], {}
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        for folder in folders:
            if folder.name.startswith("."):
                continue
            try:
                manifest = self.find(folder.name)
            except ManifestDamaged as exc:
                damaged[folder.name] = str(exc)
                continue
            if manifest is not None:
                models.append(manifest)
        return Listing(tuple(models), damaged)

    def write(self, manifest: ModelManifest) -> None:
        """From here on it is a model. The caller holds the lock."""
        folder = self.folder(manifest.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def remove(self, name: str) -> ModelManifest | None:
        """Forget a model, and delete its files where they are ours; a user's own folder stays.

        Returns what was forgotten (None: its manifest was damaged). Raises ModelUnknown. The caller holds the lock.
        """
        check_name(name)
        try:
            manifest: ModelManifest | None = self.get(name)
        except ManifestDamaged:
            manifest = None
        # The manifest goes first: a deletion that is cut off leaves no half model behind.
        (self.folder(name) / MANIFEST_NAME).unlink()
        shutil.rmtree(self.folder(name))
        return manifest

    def owns_files(self, manifest: ModelManifest) -> bool:
        """The weights lie in the registry's own folder, not in one that a user added."""
        return Path(manifest.path) == self.folder(manifest.name)

    @contextlib.contextmanager
    def locked(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """One writer at a time, across processes; the kernel lets go when the holder dies.

        `on_wait` is called once when another holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def check_name(name: str) -> None:
    """Raises NameInvalid."""
    if not NAME.fullmatch(name):
        raise NameInvalid(
            f"{name!r} is no model name: 1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
        )
