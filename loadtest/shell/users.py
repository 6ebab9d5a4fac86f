"""The base of Locust's users: they say what they ask, and wait for the answer as users do."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from locust import User
from locust.runners import MasterRunner

from loadtest.planning.users import User as Wants
from loadtest.planning.workload import one_call
from loadtest.shell.desk import Desk
from loadtest.shell.options import target_of

_desk: Desk | None = None
"""Of this process: made after Locust's `--processes` has forked."""


class AskingUser(User):
    """Closed load: a user asks, waits for the whole answer, then for its wait time."""

    abstract = True
    needs_grpc: ClassVar[bool] = False

    def ask(self, wants: Wants) -> None:
        """One call; with the later turns of a conversation."""
        if _desk is not None:
            # Each process says something else: a prefix cache must not know one's prompts from another.
            _desk.ask(one_call(wants, 0, seed=os.getpid(), index=_desk.number()))


def make_desk(environment: Any, **_: Any) -> None:
    """Listens to `events.init`: what the child loads is not of the run time."""
    global _desk
    sends_itself = not isinstance(environment.runner, MasterRunner)
    if sends_itself and any(issubclass(each, AskingUser) for each in environment.user_classes):
        _desk = Desk(environment)


def open_desk(environment: Any, **_: Any) -> None:
    """Listens to `events.test_start`; only now Locust's web UI has said the host."""
    if _desk is None:
        make_desk(environment)
    if _desk is not None:
        _desk.open(target_of(environment.host or "", environment.parsed_options))


def close_desk(**_: Any) -> None:
    """Listens to `events.test_stop` and, when no test was run, to `events.quitting`."""
    global _desk
    if _desk is not None:
        _desk.close()
        _desk = None
