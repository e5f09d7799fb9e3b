"""Clock, timers, ids and tasks, which code without IO gets as arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from codex_proxy.core.media import GivenFile


class Clock(Protocol):
    """The clock of the server, or of a test."""

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary start; never fewer than before."""

    def epoch(self) -> float:
        """Returns seconds since 1970."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What timers need of an asyncio event loop."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


class IdSource(Protocol):
    """Makes ids for objects of this server."""

    def new(self, prefix: str) -> str:
        """Returns a new unique id: `new("chatcmpl-")` is `chatcmpl-` and 32 characters."""


class FileSource(Protocol):
    """The files that clients have uploaded."""

    async def load(self, owner: str, id: str, limit: int) -> GivenFile | None:
        """Returns a file of an owner by its id; None if there is none. Raises `Fault` above `limit` bytes, or if it
        cannot be read.
        """

    async def open(self, owner: str, id: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Returns the size of a file of an owner in bytes, and its bytes in pieces; None if there is none. Raises
        `Fault`, also between the pieces.
        """


class SessionFile(NamedTuple):
    """A file that a session's agent has made. `id`: `file-` and 48 hex digits; `created_at`: seconds since 1970."""

    id: str
    session: str
    name: str
    media_type: str
    size: int
    created_at: int


class SessionFiles(Protocol):
    """The files that sessions' agents have made. Raises `Fault` where they cannot be read."""

    async def of_session(self, owner: str, session: str) -> Sequence[SessionFile]:
        """Returns the files of a session, the oldest first; none of one that does not exist, or is another owner's."""

    async def find(self, owner: str, id: str) -> SessionFile | None: ...

    async def read(self, owner: str, id: str, start: int, stop: int) -> bytes | None:
        """Returns the bytes of a file from `start` to before `stop`; None if there is no such file."""


class Task(Protocol):
    """The part of `asyncio.Task` that is used."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


T = TypeVar("T", bound=Task)


def keep_until_done(tasks: set[T], task: T) -> T:
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
