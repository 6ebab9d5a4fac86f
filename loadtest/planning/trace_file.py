"""The plan's name of a recorded trace, and where its file is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from contracts.recorded import find_trace

FOLDER = "folder"
"""The plan's own folder, in pydantic's context: relative names begin there."""


def _found(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    folder = (info.context or {}).get(FOLDER)
    return find_trace(value, Path(folder) if folder else Path())


TraceFile = Annotated[Path, BeforeValidator(_found)]
"""A short name (`conv23`), a file beside the plan, or one in $TIDEGATE_TRACES. ValueError when there is none."""
