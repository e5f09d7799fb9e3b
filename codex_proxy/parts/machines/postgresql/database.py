"""The connections to PostgreSQL: a pool with our time limits, and what a failure means for the caller.

A statement that had no effect is repeated for `RETRY_SECONDS`, as is a read whose connection was lost; a write then
raises `UnsureWrite`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import asyncpg

from codex_proxy.store.values import StoreDamaged, StoreRefused, StoreUnavailable, UnsureWrite

Row: TypeAlias = Any
"""A row's values, in order and by name."""

CONNECTIONS: Final = 10
"""Maximum connections of one server: more do not make PostgreSQL faster."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
"""Seconds for which a caller waits for a connection, and then for the answer."""
RETRY_SECONDS: Final = 1.0
"""Seconds for which a statement is repeated: PostgreSQL restarts in less."""
PAUSE_SECONDS: Final = 0.05
"""Seconds before a statement is repeated, or a connection asked for again."""
UNDONE_TRIES: Final = 10
"""Maximum tries of a statement that PostgreSQL undoes because of others."""

SERVER_SETTINGS: Final = {
    "application_name": "codex-proxy",
    "statement_timeout": "25s",  # before `ANSWER_SECONDS`: PostgreSQL knows what it has undone
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",  # the statements are short
}
"""The settings of a connection that no pooler shares."""

UNDONE: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ForeignKeyViolationError,  # another statement removed a row between reading it and referring to it
)
"""Errors of statements that had no effect because of others at the same time."""

_EXPLANATIONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (asyncpg.InvalidAuthorizationSpecificationError, "refuses the user or the password of its URL"),
    (asyncpg.InvalidCatalogNameError, "does not exist: create the database"),
    (
        asyncpg.InsufficientPrivilegeError,
        "may not be used by the user of its URL: grant CREATE on the database",
    ),
    (asyncpg.TooManyConnectionsError, "has no connection left: raise max_connections, or use a pooler"),
    (asyncpg.DiskFullError, "cannot grow: its disk is full"),
    (asyncpg.InsufficientResourcesError, "has too few resources"),
    (asyncpg.QueryCanceledError, "took too long"),
    (asyncpg.LockNotAvailableError, "is locked for too long"),
    (asyncpg.ReadOnlySQLTransactionError, "is read-only: name the primary server in its URL"),
    (asyncpg.OperatorInterventionError, "is being stopped or started"),
    (asyncpg.IdleInTransactionSessionTimeoutError, "ended a transaction that took too long"),
    (asyncpg.PostgresSystemError, "cannot be read or written (input/output error)"),
    (asyncpg.PostgresConnectionError, "cannot be reached"),
    (TimeoutError, f"did not answer within {ANSWER_SECONDS:g} s"),
    (OSError, "cannot be reached"),
)
"""Explanations of errors that the operator can mend, particular errors first; all others are bugs."""


class Database:
    def __init__(self, pool: asyncpg.Pool, location: str, direct_url: str | None) -> None:
        """`location`: the database's name in messages. `direct_url`: the database's URL; None if there is a pooler."""
        self._pool = pool
        self.location = location
        self.direct_url = direct_url

    @classmethod
    async def open(cls, url: str) -> Database:
        """Connects to a `postgresql://` URL. Raises `StoreUnavailable` or `StoreRefused`."""
        location = location_of(url)
        try:
            settings, pooled = await _settings_of(url, location)
            return cls(await _pool(url, settings, pooled), location, None if pooled else url)
        except ValueError:  # its text may quote a password with a character that ends it, such as /
            raise StoreRefused(
                f"the store {location} cannot be used: its URL is invalid; check its port and options, and write "
                "characters like / and ? in a password as %2F and %3F"
            ) from None
        except (asyncpg.PostgresError, OSError) as error:
            _raise(error, location)

    async def close(self) -> None:
        """Waits for the statements that have begun."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()
            raise StoreUnavailable(f"the store {self.location} did not finish") from None

    async def read(self, sql: str, *values: object) -> Sequence[Row]:
        """Runs a statement that may be repeated. Raises `StoreUnavailable`."""
        return await self._run(sql, values, repeatable=True)

    async def write(self, sql: str, *values: object) -> Sequence[Row]:
        """Runs a statement; returns when it is committed. Raises `StoreUnavailable`, or `UnsureWrite`."""
        return await self._run(sql, values, repeatable=False)

    async def _run(self, sql: str, values: Sequence[object], *, repeatable: bool) -> Sequence[Row]:
        values = [_escape(value) for value in values]
        until = asyncio.get_running_loop().time() + RETRY_SECONDS
        undone = 0
        while True:
            sent = False
            try:
                async with self._connection() as connection:
                    sent = True
                    rows: Sequence[Row] = await connection.fetch(sql, *values)
                    return rows
            except UNDONE as error:
                undone += 1
                if undone == UNDONE_TRIES:
                    raise StoreUnavailable(f"the store {self.location} has too many writers") from error
            except LostConnectionError as lost:
                if sent and not repeatable:
                    raise UnsureWrite(str(lost)) from lost
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def add_rows(
        self, sql: str, rows: Sequence[Sequence[object]], sequence: str | None, last: object
    ) -> None:
        """Runs a statement for each row, all or none. `sequence` then goes on after the number `last`."""
        async with self.transaction() as connection:
            await connection.executemany(sql, [[_escape(value) for value in row] for row in rows])
            if sequence is not None:
                await connection.execute("SELECT setval($1::regclass, $2)", sequence, last)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """Yields a connection, and commits at the end of the `with`. Raises `StoreUnavailable`."""
        async with self._connection() as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        connection = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await self._acquire()
            yield connection
        except asyncpg.InternalClientError as error:
            # Its end came when asyncpg did not expect it, as in a crash of PostgreSQL.
            if connection is not None:
                connection.terminate()
            raise LostConnectionError(f"the store {self.location} has lost a connection ({error})") from error
        except asyncpg.InterfaceError as error:
            if connection is not None and _is_open(connection):
                raise  # a bug
            raise LostConnectionError(f"the store {self.location} is closed") from error
        except UNDONE:
            raise
        except (asyncpg.PostgresError, OSError) as error:
            _raise(error, self.location)
        finally:
            if connection is not None:
                await self._give_back(connection)

    async def _acquire(self) -> asyncpg.Connection:
        """Returns a connection. If PostgreSQL gives no more, waits for one of those that there are."""
        while True:
            try:
                return await self._pool.acquire()
            except asyncpg.TooManyConnectionsError:
                if not self._pool.get_size():
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def _give_back(self, connection: asyncpg.Connection) -> None:
        # The statement has its result, or its caller was cancelled: neither may be replaced by what becomes of the
        # connection, which asyncpg closes if it is not usable.
        with contextlib.suppress(
            asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError
        ):
            await self._pool.release(connection, timeout=ANSWER_SECONDS)


class LostConnectionError(StoreUnavailable):
    """The connection was lost, or nothing came on it in time."""


_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    OSError,
)


def _is_open(connection: asyncpg.Connection) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # it has closed, and is the pool's again
        return False


def location_of(url: str) -> str:
    """Returns the URL, also an invalid one, without user, password and options."""
    place, _, options = url.partition("://")[2].partition("?")
    if "@" in options and "@" not in place:  # the password has a ?
        place = "..."
    return f"postgresql://{place.rpartition('@')[2]}"


def _raise(error: Exception, location: str) -> NoReturn:
    """Raises the `StoreUnavailable` for an error, or `error` itself if it is a bug."""
    if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
        raise StoreDamaged(f"the store {location} is damaged ({error}); restore a copy") from error
    for kind, text in _EXPLANATIONS:
        if isinstance(error, kind):
            unavailable = LostConnectionError if isinstance(error, _LOST) else StoreUnavailable
            raise unavailable(f"the store {location} {text} ({error or type(error).__name__})") from error
    raise error


# --- opening ------------------------------------------------------------------------------------


async def _pool(url: str, settings: dict[str, str], pooled: bool) -> asyncpg.Pool:
    return await asyncpg.create_pool(
        url,
        min_size=0,  # no task of asyncpg's connects while the database is away
        max_size=CONNECTIONS,
        timeout=CONNECT_SECONDS,
        command_timeout=ANSWER_SECONDS,
        server_settings=settings,
        # Behind a pooler the next statement may run on another connection.
        statement_cache_size=0 if pooled else 200,
        init=_set_text_codec,
        reset=_skip_reset,
    )


async def _set_text_codec(connection: asyncpg.Connection) -> None:
    """Makes the connection undo `_escape` in the texts that it returns."""
    await connection.set_type_codec(
        "text", schema="pg_catalog", encoder=str.encode, decoder=_unescape, format="binary"
    )


def _escape(value: object) -> object:
    """Returns a text with another character for the character 0, which PostgreSQL refuses and a client's id may have;
    other values unchanged.
    """
    if isinstance(value, str):
        return value.replace("\1", "\1\1").replace("\0", "\1\2")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [_escape(each) for each in value]
    return value


def _unescape(data: bytes) -> str:
    text = data.decode()
    if "\1" in text:
        text = "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))
    return text


async def _skip_reset(connection: asyncpg.Connection) -> None:
    """Does nothing: no statement changes its session, and asyncpg's reset asks the server each time."""


async def _settings_of(url: str, location: str) -> tuple[dict[str, str], bool]:
    """Returns the settings for connections, and whether a pooler shares them: it refuses our settings, or does not pass
    them on. Raises `StoreRefused` if commits do not wait for the disk, and we cannot change that.
    """
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, server_settings=SERVER_SETTINGS)
        pooled = False
    except asyncpg.ProtocolViolationError:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, statement_cache_size=0)
        pooled = True
    try:
        pooled = pooled or await connection.fetchval("SHOW statement_timeout") != "25s"
        commit = await connection.fetchval("SHOW synchronous_commit")
    finally:
        await connection.close(timeout=CONNECT_SECONDS)
    if commit != "off":
        return ({} if pooled else SERVER_SETTINGS), pooled
    if pooled:
        raise StoreRefused(
            f"the store {location} loses acknowledged writes in a crash: its user has synchronous_commit = off; "
            "set it to on (ALTER ROLE ... SET synchronous_commit = on)"
        )
    return {**SERVER_SETTINGS, "synchronous_commit": "on"}, False
