"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.errors import BadOption

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
RunDirOption = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Folder of the stack's sockets and logs.", envvar="TIDEGATE_RUN_DIR"),
]

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(option: str, text: str) -> int:
    """'2GiB', '512MiB', '2GB', '1073741824' -> bytes. Raises BadOption."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadOption(f"{option} = {text!r} is no size; write 2GiB, 512MiB or a number of bytes")
    number, unit, is_binary = match[1], match[2].lower(), bool(match[3])
    return int(float(number) * (1024 if is_binary else 1000) ** _POWERS[unit]) if unit else int(float(number))


def parse_duration(option: str, text: str) -> float:
    """'90', '90s', '10m', '2h', '1d' -> seconds. Raises BadOption."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadOption(f"{option} = {text!r} is no span of time; write 90s, 10m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_counts(option: str, texts: list[str], example: str = "chat=2") -> dict[str, int]:
    """['chat=2', 'embed=1'] -> numbers. Raises BadOption."""
    counts = {}
    for text in texts:
        name, separator, number = text.partition("=")
        if not separator or not name or not number.isdecimal():
            raise BadOption(f"{option} = {text!r}, must read like {example}")
        counts[name] = int(number)
    return counts


def readable_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Sizes may be written as their options may, 2GiB; Settings reads bytes. Raises BadOption."""
    env = dict(environ)
    for name in ("TIDEGATE_POOL_BYTES", "TIDEGATE_WEIGHTS_BUDGET_BYTES"):
        if size := env.get(name):
            env[name] = str(parse_size(name, size))
    return env
