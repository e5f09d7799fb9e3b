"""What becomes of an exception in this server's own code: it is logged, and ends what it belongs to instead of leaving
it open; work that is repeated goes on. Logs have only its type and place.
"""

from __future__ import annotations

import errno
import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Protocol, TypeVar

import structlog

from codex_proxy.core.faults import Failure, Fault

log = structlog.get_logger(__name__)


class Breakable(Protocol):
    def break_off(self) -> None:
        """Ends this at once as failed, also if a part of its end was done before."""


B = TypeVar("B", bound=Breakable)
P = ParamSpec("P")
R = TypeVar("R")


def break_off_on_error(broken: Breakable) -> None:
    """Logs the exception that is being handled, and calls `break_off` of the object in whose work it was raised."""
    log.exception("turn_internal_error")
    broken.break_off()


def breaks_off(method: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[B, P], R]:
    """Decorates a method or coroutine that returns None: an exception in it is logged, and calls the object's
    `break_off`, instead of being raised.
    """
    plain: Callable[..., Any] = method

    @wraps(method)
    def guarded(self: B, /, *args: Any, **kwargs: Any) -> None:
        try:
            plain(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - logged
            break_off_on_error(self)

    @wraps(method)
    async def guarded_task(self: B, /, *args: Any, **kwargs: Any) -> None:
        try:
            await plain(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - logged
            break_off_on_error(self)

    return guarded_task if inspect.iscoroutinefunction(method) else guarded  # type: ignore[return-value]


class Failing(Breakable, Protocol):
    def fail(self, failure: Failure) -> None:
        """Ends this with the failure."""


F = TypeVar("F", bound=Failing)


def task_of_turn(
    work: Callable[Concatenate[F, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[F, P], Coroutine[Any, Any, None]]:
    """Decorates a coroutine of a task: a `Fault` fails the turn, another exception breaks it off."""

    @breaks_off
    @wraps(work)
    async def guarded_task(turn: F, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await work(turn, *args, **kwargs)
        except Fault as fault:
            turn.fail(fault.failure)

    return guarded_task


def release_all(*releases: Callable[[], object]) -> None:
    """Calls the functions in order. An exception in one is logged, and the others are still called."""
    for release in releases:
        try:
            release()
        except Exception:
            log.exception("release_internal_error")


def call_observer(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R] | None:
    """Calls `work`, which only observes. Returns its result in a tuple; None if it has raised, which is logged."""
    try:
        return (work(*args, **kwargs),)
    except Exception as error:  # noqa: BLE001 - logged
        log.error("internal_error", **trace_of(error))
        return None


async def repeat(
    work: Callable[[], Awaitable[object]], *, after: Callable[[], Awaitable[object]], failed: str
) -> NoReturn:
    """Calls `work` again and again, each time when `after` has returned. An exception in it is logged as `failed`."""
    while True:
        await after()
        try:
            await work()
        except Exception:
            log.exception(failed)


MAX_CAUSES: Final = 5


def trace_of(error: BaseException) -> dict[str, Any]:
    """Returns log fields: the type of the error (`raised`) and of its causes (`caused_by`, nearest first), such as
    `ValueError` or `OSError ENOSPC`, and places in the code (`at`, outermost first).
    """
    return {
        "raised": _type_of(error),
        "caused_by": [_type_of(cause) for cause in _causes(error)],
        "at": [
            f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(error.__traceback__)
        ],
    }


def _type_of(error: BaseException) -> str:
    symbol = errno.errorcode.get(error.errno or 0, "") if type(error) is OSError else ""
    return f"{type(error).__name__} {symbol}".rstrip()


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    to_see = _direct_causes(error)
    while to_see and len(found) < MAX_CAUSES:
        cause = to_see.pop(0)
        found.append(cause)
        to_see += _direct_causes(cause)
    return found


def _direct_causes(error: BaseException) -> list[BaseException]:
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__ or error.__context__
    return inner if cause is None else [*inner, cause]
