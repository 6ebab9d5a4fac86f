"""What can keep a stack from starting or make it stop. Each text says what, the numbers, and a way out.

LaunchError
├── SettingsInvalid       a setting has no such value
├── RunDirUnusable        another stack runs there, or the folder is not ours
├── TritonNotFound        no binary in the three places
├── TritonUnusable        this Python or this numpy does not go with the embedded Triton
├── RepositoryInvalid     a model's folder, config or registration
├── PortTaken             another process listens there
└── ProcessFailed         a child of the launcher
    ├── StartTimeout      did not say ready
    └── ModelLoadFailed   Triton's own words
"""

from __future__ import annotations


class LaunchError(Exception):
    """`tidegate up` ends with this text and exit code 1."""


class SettingsInvalid(LaunchError):
    pass


class RunDirUnusable(LaunchError):
    pass


class TritonNotFound(LaunchError):
    pass


class TritonUnusable(LaunchError):
    pass


class RepositoryInvalid(LaunchError):
    pass


class PortTaken(LaunchError):
    pass


class ProcessFailed(LaunchError):
    pass


class StartTimeout(ProcessFailed):
    pass


class ModelLoadFailed(ProcessFailed):
    pass
