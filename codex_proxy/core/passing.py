"""Types of requests that are no turns, such as for embeddings: they are sent on to an upstream as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.turn import Origin

PASSED_PATHS: Final = (
    *("/embeddings", "/completions", "/rerank", "/moderations"),
    *("/audio/speech", "/audio/transcriptions", "/audio/translations"),
    *("/images/generations", "/images/edits", "/images/variations"),
)
"""The paths of such requests, without `/v1`."""

Body: TypeAlias = bytes | tuple[memoryview, ...]
"""The body of a request: in memory, or the pieces of one that is in a file."""


class RestOfBody(Protocol):
    """The rest of a body, which is sent on while the client still sends it: iterate over it once."""

    @property
    def begun(self) -> bool:
        """Whether some of it was read, so that the request cannot be sent again."""
        ...

    @property
    def left(self) -> int | None:
        """The bytes that have not been read yet; None if the client has not said how many there are."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why the client's bytes have ended too early, if they have."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class PassedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is sent on. `body_for` returns its body, given the upstream's name of the model."""

    path: str
    model: str
    """The upstream's own name of the model; empty if the request names none."""
    content_type: str
    body_for: Callable[[str], Body]
    origin: Origin
    rest: RestOfBody | None = None
    """What follows behind `body_for`; None if that is all."""


class PassedAnswer(Protocol):
    """The answer to a `PassedRequest`, which has begun."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the client gets."""
        ...

    @property
    def upstream(self) -> str:
        """The name of the upstream that answers; empty if there is only one."""
        ...

    @property
    def usage(self) -> Usage | None:
        """The tokens that the answer has told of so far; None if it has not."""
        ...

    @property
    def attempts(self) -> int:
        """The number of requests that were made for this answer."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the answer. Raises `Fault` if it breaks off."""
        ...

    async def close(self) -> None:
        """Ends the request, and closes its connection unless the answer has ended."""
        ...


@runtime_checkable
class PassesOn(Protocol):
    """An agent to which such requests can be sent: an upstream."""

    @property
    def name(self) -> str: ...

    @property
    def total_timeout(self) -> float | None:
        """The most seconds of a request, with its answer; None for no limit."""
        ...

    @property
    def passed_paths(self) -> tuple[str, ...] | None:
        """The paths that its settings name; None if they name none, so that any may be tried."""
        ...

    async def pass_on(self, request: PassedRequest) -> PassedAnswer:
        """Sends the request, again after failures, and returns the answer when it has begun. Raises `Fault`, and the
        error of the client's bytes.
        """
        ...
