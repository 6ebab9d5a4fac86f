"""A real PostgreSQL in a temporary folder, reached by a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest


@dataclass
class Postgres:
    folder: Path
    user: str

    def start(self) -> None:
        # Nothing here outlives the test, so nothing is forced to the disk.
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-D", "data", "-m", "immediate")

    def init(self) -> None:
        self._run(
            "initdb", "-D", "data", "-U", "tidegate", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )

    def new_database(self) -> str:
        """The URL of an empty one."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://tidegate@/{database}?host={self.folder}"

    def _run(self, *command: str) -> None:
        user = self.user if os.geteuid() == 0 else None
        done = subprocess.run(
            command,
            cwd=self.folder,
            user=user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Skips the test where the machine has none. As root it is started as another user, which it insists on."""
    for binary in ("initdb", "pg_ctl"):
        if shutil.which(binary) is None:
            pytest.skip(f"no PostgreSQL here: {binary} is not on the PATH")
    user = _other_user()
    folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))
    postgres = Postgres(folder, user)
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        postgres.init()
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
