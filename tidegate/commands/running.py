"""Finding the stack that runs, if one does."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.stack import STACK_NAME, Stack, default_run_dir, read_stack
from tidegate.commands.errors import CommandError, NotRunning


def find_stack(run_dir: Path | None) -> Stack | None:
    """None: none runs there. What a killed launcher left behind does not count. Raises CommandError."""
    folder = run_dir or default_run_dir()
    try:
        stack = read_stack(folder)
    except (OSError, msgspec.MsgspecError) as exc:
        raise CommandError(f"{folder / STACK_NAME} can't be read: {exc}; is --run-dir right?") from exc
    import psutil

    return stack if stack is not None and psutil.pid_exists(stack.pid) else None


def need_stack(run_dir: Path | None) -> Stack:
    """Raises NotRunning."""
    stack = find_stack(run_dir)
    if stack is None:
        folder = run_dir or default_run_dir()
        raise NotRunning(
            f"no stack runs in {folder}; start one with `tidegate up`, or name its folder with --run-dir"
        )
    return stack
