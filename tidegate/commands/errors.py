"""How a command ends when it does not succeed: one line `tidegate: TEXT`, and an exit code.

CommandError 1
├── BadOption 2       the command line itself is wrong
└── NotRunning 3      no stack runs where the command looked
"""

from __future__ import annotations

from typing import ClassVar


class CommandError(Exception):
    """The text says what, and a way out."""

    exit_code: ClassVar[int] = 1


class BadOption(CommandError):
    exit_code = 2


class NotRunning(CommandError):
    exit_code = 3
