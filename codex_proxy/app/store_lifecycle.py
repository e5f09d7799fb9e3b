"""Opens the store, removes what the settings no longer permit, and chooses the step memory. Close it after the last
turn, whose end writes to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import pkgutil
from collections.abc import Iterator
from functools import partial

import structlog

from codex_proxy.core.faults import UserError
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import Key
from codex_proxy.core.own_errors import repeat
from codex_proxy.core.step_memory import RamStepMemory, StepMemory, StepMemorySettings
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings, store_scheme_fault
from codex_proxy.store.retention import JUMP_SECONDS, AgeClock
from codex_proxy.store.sqlite.opening import StoreLock, check_lock
from codex_proxy.store.store import SharedStore, Store, StoreOptions
from codex_proxy.store.values import ContextLimits, Retention, StoreInUse, StoreRefused, StoreUnavailable

log = structlog.get_logger(__name__)


MAX_BYTES_IN_RAM = 512 << 20
"""Maximum bytes of a store in RAM, whatever PROXY_STORE_MAX_BYTES says."""
MAX_RESPONSES = 100_000
FRAMES_SECONDS = 86400.0
"""Seconds that the stream of a background response can be resumed."""
PRUNE_SECONDS = 600.0
CONTEXT_LIMITS = ContextLimits(max_items=20_000, max_bytes=64 << 20)
"""The limits of a conversation or chain of responses, which is in memory during a turn."""


class StoreLifecycle:
    """An open store, and the task that prunes it."""

    def __init__(self, store: Store, clock: Clock, *, durable: bool, lock: StoreLock | None = None) -> None:
        self.store = store
        self.durable = durable
        """Whether stored objects are still there after a restart."""
        self._clock = clock
        self._lock = lock
        self._ages: AgeClock | None = None
        self._pruning = asyncio.get_running_loop().create_task(self._keep_pruned())

    async def _keep_pruned(self) -> None:
        try:
            last_use = await self.store.last_use()  # before this server stores anything
            self._ages = AgeClock(last_use)
            self._warn_if_behind(last_use)
            await self.store.sweep()  # what the last process had deleted and not yet removed
        except StoreUnavailable as error:
            log.warning("store_not_swept", reason=str(error))
        except Exception:  # the loop below tries again
            log.exception("store_not_swept")
        after = partial(asyncio.sleep, PRUNE_SECONDS)
        await repeat(self._prune, after=after, failed="store_not_pruned")

    async def _prune(self) -> None:
        try:
            self._ages = self._ages or AgeClock(await self.store.last_use())
            pruned = await self.store.prune(self._ages.now(self._clock.epoch(), self._clock.monotonic()))
            freed = await self.store.vacuum()
        except StoreUnavailable as error:
            log.warning("store_not_pruned", reason=str(error))
        else:
            log.debug("store_pruned", responses=pruned.responses, steps=pruned.steps, freed=freed)

    def _warn_if_behind(self, last_use: float | None) -> None:
        behind = 0.0 if last_use is None else last_use - self._clock.epoch()
        if behind > JUMP_SECONDS:
            log.warning(
                "clock_behind",
                days=round(behind / 86400),
                reason="the clock is behind the last use of the store: set it right, because what is stored meanwhile "
                "will be removed too early by as many days",
            )

    def write_address(self, url: str) -> None:
        """Writes this server's address into the lock, for a second server's error."""
        if self._lock is not None:
            self._lock.write_address(url)

    async def close(self) -> None:
        """Closes the store when its writes are on disk; logs a failure."""
        self._pruning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pruning
        try:
            await self.store.close()
        except StoreUnavailable as error:
            log.warning("store_not_closed", reason=str(error))
        finally:
            if self._lock is not None:
                self._lock.release()


def retention_of(settings: Settings) -> Retention:
    """Returns the limits of the store; a setting of 0 is None, no limit."""
    max_bytes = settings.store_max_bytes or None
    if settings.store == "memory":
        max_bytes = min(max_bytes or MAX_BYTES_IN_RAM, MAX_BYTES_IN_RAM)
    # Without a limit in a file, unless the operator has set one.
    is_limited = settings.store == "memory" or "max_conversation_history" in settings.model_fields_set
    return Retention(
        age=settings.store_max_age or None,
        conversation_age=settings.store_conversation_max_age or None,
        frames_age=FRAMES_SECONDS,
        max_responses=MAX_RESPONSES,
        max_conversations=settings.max_conversation_history if is_limited else None,
        max_bytes=max_bytes,
    )


def _step_memory_settings(settings: Settings) -> StepMemorySettings:
    return StepMemorySettings(kind=settings.tool_memory, max_entries=settings.max_conversation_history)


def step_memory_of(settings: Settings, clock: Clock, lifecycle: StoreLifecycle | None) -> StepMemory:
    """Returns the store of `lifecycle`, or else a step memory in RAM."""
    if lifecycle is not None:
        return lifecycle.store
    return RamStepMemory(_step_memory_settings(settings), clock.epoch)


@contextlib.contextmanager
def _errors_for_users() -> Iterator[None]:
    """Turns what keeps a store from being opened into a `UserError`."""
    try:
        yield
    except StoreInUse as error:
        raise UserError(
            f"{error}; use or stop that server, or start this one with another port (--port) and a state folder of "
            "its own (PROXY_STATE_DIR), or with PROXY_STORE=off"
        ) from error
    except (StoreRefused, StoreUnavailable) as error:
        raise UserError(f"{error} (PROXY_STORE=off serves without one)") from error


def _class_of(address: str) -> SharedStore:
    scheme = address.partition("://")[0]
    for part in parts():
        if reference := part.stores.get(scheme):
            try:
                found: SharedStore = pkgutil.resolve_name(reference)
            except ModuleNotFoundError as error:
                raise UserError(
                    f"a store at {scheme}:// needs the extra `{part.extra}`; install it with "
                    f"`pip install 'codex-openai-proxy[{part.extra}]'`, or set PROXY_STORE=sqlite"
                ) from error
            return found
    raise UserError(f"{scheme}:// is {store_scheme_fault(scheme)}")


async def inspect_store(settings: Settings, *, in_use: bool = False) -> tuple[Key, ...]:
    """Returns the API keys in the store, and changes nothing. Raises `UserError` if `open_store_lifecycle` would; with
    `in_use` a server may use the store. A file that does not exist, or is in memory, has no keys.
    """
    with _errors_for_users():
        if settings.in_database:
            return await _class_of(settings.store).read_keys(settings.store)
        if settings.in_file and settings.store_file.exists():
            from codex_proxy.store.sqlite.opening import inspect_file

            await asyncio.to_thread(inspect_file, settings.store_file)
            if not in_use:
                check_lock(settings.store_file)
    return ()


def require_store(settings: Settings) -> None:
    """Raises `UserError` if there is no store yet."""
    if settings.store == "memory":
        raise UserError("with PROXY_STORE=memory there is no file: the store is in the server's memory")
    if not settings.in_database and not settings.store_file.is_file():
        raise UserError(
            f"there is no store at {settings.store_file}: a server creates it at its first "
            "start (PROXY_STATE_DIR)"
        )


async def open_store(settings: Settings, clock: Clock) -> Store:
    """Opens the store without locking it. Raises `UserError` for a file that is no store, damaged, newer or locked by
    SQLite, or a database that cannot be reached.
    """
    options: StoreOptions = {
        "clock": clock,
        "retention": retention_of(settings),
        "memory": _step_memory_settings(settings),
        "limits": CONTEXT_LIMITS,
    }
    with _errors_for_users():
        if settings.in_database:
            return await _class_of(settings.store).open(settings.store, **options)
        # Imported here, since a command line that only shows its help needs no database.
        from codex_proxy.store.sqlite.store import SqliteStore

        if settings.store == "memory":
            return SqliteStore.in_memory(**options)
        return await SqliteStore.open(settings.store_file, **options)


async def open_store_lifecycle(settings: Settings, clock: Clock) -> StoreLifecycle | None:
    """Opens the store and locks it for this server; None if it is off. Raises `UserError`, also if another server uses
    it.
    """
    if settings.store == "off":
        return None
    if settings.store == "memory" or settings.in_database:
        return StoreLifecycle(await open_store(settings, clock), clock, durable=settings.in_database)
    with _errors_for_users():
        lock = await StoreLock.take(settings.store_file)
    try:
        return StoreLifecycle(await open_store(settings, clock), clock, durable=True, lock=lock)
    except BaseException:
        lock.release()
        raise
