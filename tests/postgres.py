"""A PostgreSQL server for tests: of the packages of the machine, in a folder of its own, without a port."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path

from tests.missing import skip_unless_ci
from tests.waiting import PATIENCE, poll

SERVER_OPTIONS = (
    *("-c", "listen_addresses="),
    *("-c", "fsync=off"),  # a machine that loses its memory is not what these tests are about
    *("-c", "full_page_writes=off"),
    *("-c", "shared_buffers=64MB"),
    *("-c", "autovacuum_naptime=1h"),
)


EMPTY_CLUSTER = "TEST_POSTGRES_EMPTY_CLUSTER"
"""The variable that names a folder of all processes of the tests."""
POOLER_PORT = 6432
"""The number in the name of the pooler's socket."""


class PostgresServer:
    """A server, with the database `postgres`, in a folder. `start` it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql://tester@/postgres?host={folder}"
        self._programs = programs
        self._user = _user()
        if self._user:
            shutil.chown(folder, self._user)
        self._run("/bin/cp", "-R", _empty_cluster(programs) / "data", ".")

    def start(self) -> None:
        options = (*SERVER_OPTIONS, "-c", f"unix_socket_directories={self.folder}")
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", " ".join(options), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops the server: `fast` ends connections, `immediate` is like a crash."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")

    @asynccontextmanager
    async def pooler(self) -> AsyncIterator[str]:
        """The URL of a pgbouncer that gives each transaction one of two connections."""
        program = shutil.which("pgbouncer")
        if program is None:
            skip_unless_ci("needs pgbouncer (Debian: apt-get install pgbouncer)")
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={self.folder} user=tester\n[pgbouncer]\nlisten_addr =\n"
            f"unix_socket_dir = {self.folder}\nlisten_port = {POOLER_PORT}\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n"
        )
        process = subprocess.Popen(
            [program, settings],
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await poll(partial(_is_open, self.folder / f".s.PGSQL.{POOLER_PORT}"))
            yield f"{self.url}&port={POOLER_PORT}"
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def _run(self, program: str, *arguments: str | Path) -> None:
        _run([self._programs / program, *arguments], self.folder)


def _run(command: Sequence[str | Path], folder: Path) -> None:
    subprocess.run(
        command,
        cwd=folder,
        user=_user(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=PATIENCE,
    )


@cache
def _empty_cluster(programs: Path) -> Path:
    """Returns a folder whose `data` is copied for each server: initdb takes longer than the rest of a start, so one
    process of the tests runs it for all.
    """
    path = Path(os.environ[EMPTY_CLUSTER])
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "data").exists():
            if user := _user():
                shutil.chown(path, user)
            options = ("-D", "new", "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            _run([programs / "initdb", *options], path)
            (path / "new").rename(path / "data")
    return path


@cache
def _user() -> str | None:
    """Returns the user for PostgreSQL, which refuses to run as root; None: the user of the tests."""
    return None if os.getuid() else "postgres" if _exists("postgres") else "nobody"


async def _is_open(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    writer.close()
    return True


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


@cache
def programs() -> Path:
    """Returns the folder of PostgreSQL's programs. Skips the test if there is none, but fails in CI."""
    on_path = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = [Path(on_path)] if on_path else folders
    if not found:
        skip_unless_ci("needs PostgreSQL's server (Debian: apt-get install postgresql)")
    return found[0].resolve().parent


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A running server, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        made = PostgresServer(programs(), Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.stop("immediate")


_made: set[str] = set()
"""The databases that have the tables."""


async def empty(url: str) -> None:
    """Makes the tables of a store, without rows."""
    import asyncpg  # every process of the tests imports this module, and few need these

    from codex_proxy.app.system import SystemClock
    from codex_proxy.parts.machines.postgresql.store import PostgresStore

    if url not in _made:
        await (await PostgresStore.open(url, clock=SystemClock())).close()
        _made.add(url)
    connection = await asyncpg.connect(url)
    tables = await connection.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'codex_proxy' AND tablename <> 'schema'"
    )
    names = ", ".join(f"codex_proxy.{table['tablename']}" for table in tables)
    await connection.execute(f"TRUNCATE {names} RESTART IDENTITY")
    await connection.close()
