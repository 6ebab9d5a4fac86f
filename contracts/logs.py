"""Logs of all our processes: one line an event, as text for people or as JSON or logfmt for machines.

Levels: ERROR, a defect or a loss that somebody must look at; WARNING, something is not as it should be and is
coped with; INFO, what changed and each call; DEBUG, each step. `logger.info(text, extra=fields(...))` adds fields,
which machines get beside the text.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

LogFormat = Literal["text", "json", "logfmt"]
FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
FORMAT_VARIABLE = "TIDEGATE_LOG_FORMAT"
_KEY = "tidegate_fields"


def fields(**values: Any) -> dict[str, dict[str, Any]]:
    """For `extra`. What is None is left out."""
    return {_KEY: {name: value for name, value in values.items() if value is not None}}


def configure(service: str, text_format: str, *, level: int | str = logging.INFO) -> None:
    """Once in a process, at its start; the format is $TIDEGATE_LOG_FORMAT's. `text_format`: logging's own."""
    chosen = os.environ.get(FORMAT_VARIABLE, "text")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(chosen, service, text_format))
    logging.basicConfig(level=level, handlers=[handler])
    # It tells of each of its requests; ours are health checks and scrapes.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def formatter_of(chosen: str, service: str, text_format: str) -> logging.Formatter:
    """A word that is none of ours means text: a log must not fail for it."""
    if chosen == "json":
        return _Structured(service, lambda event: msgspec.json.encode(event, enc_hook=str).decode())
    if chosen == "logfmt":
        return _Structured(service, logfmt)
    return logging.Formatter(text_format, datefmt="%Y-%m-%dT%H:%M:%S%z")


class _Structured(logging.Formatter):
    """One line, whatever the text or the traceback hold."""

    def __init__(self, service: str, encode: Any) -> None:
        super().__init__()
        self._service = service
        self._encode = encode

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
        }
        given = getattr(record, _KEY, None)
        if given is None or "event" not in given:
            event["event"] = record.getMessage()
        event |= given or {}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        text: str = self._encode(event)
        return text


def logfmt(event: Mapping[str, Any]) -> str:
    """key=value, quoted where it must be."""
    return " ".join(f"{name}={_value(value)}" for name, value in event.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if text and text.isprintable() and not any(sign in text for sign in ' "='):
        return text
    return msgspec.json.encode(text).decode()
