"""What keeps a run from beginning, or a folder from being read; the text says a way out.

RunError
├── TargetUnknown     the plan does not say where, and no stack runs
├── FolderTaken       the run folder holds something already
└── FolderUnreadable  it is no run's folder, or parts of it are missing
"""

from __future__ import annotations


class RunError(Exception):
    pass


class TargetUnknown(RunError):
    pass


class FolderTaken(RunError):
    pass


class FolderUnreadable(RunError):
    pass
