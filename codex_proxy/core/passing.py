"""Types of requests that are no turns, such as for embeddings, and are sent on to an upstream as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.turn import Origin

PASSED_PATHS: Final = (
    "/completions", "/embeddings", "/rerank", "/moderations",
    "/audio/speech", "/audio/transcriptions", "/audio/translations",
    "/images/generations", "/images/edits", "/images/variations",
)  # fmt: skip
"""The paths that are passed on, without `/v1`."""

Body: TypeAlias = bytes | tuple[memoryview, ...]
"""A request's body: in memory, or pieces of a file."""


def pieces_of(body: Body) -> tuple[bytes | memoryview, ...]:
    """Returns the body as pieces, whose lengths are in bytes."""
    return (body,) if isinstance(body, bytes) else body


class RestOfBody(Protocol):
    """The rest of a body, which can be iterated once, while the client still sends it."""

    @property
    def begun(self) -> bool:
        """Whether some of it was read, so that the request cannot be sent again."""

    @property
    def left(self) -> int | None:
        """The bytes not read yet, if the client has announced its length."""

    @property
    def error(self) -> Exception | None:
        """Why the client's bytes ended too early, if they did."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class PassedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send on. `body_for` returns its body for the upstream's name of the model."""

    path: str
    model: str
    """The upstream's own name; empty if the request names none."""
    content_type: str
    body_for: Callable[[str], Body]
    origin: Origin
    rest: RestOfBody | None = None
    """The rest of the body, which comes after what `body_for` returns; None if that is all."""


class PassedAnswer(Protocol):
    """The answer to a `PassedRequest`, which has begun."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def upstream(self) -> str:
        """The upstream's name; empty if there is only one."""

    @property
    def usage(self) -> Usage | None: ...

    @property
    def attempts(self) -> int:
        """How many requests were made for this answer."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yields the bytes. Raises `Fault` if it breaks off."""

    async def close(self) -> None:
        """Ends the request, and closes its connection unless the answer has ended."""


@runtime_checkable
class PassingAgent(Protocol):
    """An agent that can send requests on to its upstream."""

    @property
    def name(self) -> str: ...

    @property
    def total_timeout(self) -> float | None:
        """Maximum seconds for a request with its answer; None: no limit."""

    @property
    def passed_paths(self) -> tuple[str, ...] | None:
        """The paths that its settings name; None: any may be tried."""

    async def pass_on(self, request: PassedRequest) -> PassedAnswer:
        """Sends the request, again after failures; returns the answer when it has begun. Raises `Fault`, and the
        error of reading the client's body.
        """
