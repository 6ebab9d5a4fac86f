"""Moments and spans as people write them."""

from __future__ import annotations

from datetime import datetime

from tidegate.commands.errors import BadOption
from tidegate.commands.options import parse_duration


def parse_moment(option: str, text: str, now: float) -> float:
    """'2h' (ago), '2026-12-01', '2026-12-01T18:00', '…Z' or '…+01:00' -> seconds since 1970. Raises BadOption.

    Without a zone it is this machine's clock.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(option, text)
    except BadOption as exc:
        raise BadOption(
            f"{option} = {text!r} is no time; write 2h for two hours ago, or 2026-12-01T18:00"
        ) from exc
