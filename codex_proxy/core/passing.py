"""Types of requests that are no turns, such as for embeddings: they are sent on to an upstream as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol, runtime_checkable

import msgspec

from codex_proxy.core.turn import Origin

PASSED_PATHS: Final = (
    *("/embeddings", "/completions", "/rerank", "/moderations"),
    *("/audio/speech", "/audio/transcriptions", "/audio/translations"),
    *("/images/generations", "/images/edits", "/images/variations"),
)
"""The paths of such requests, without `/v1`."""


class PassedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is sent on. `body_for` returns its body, given the upstream's name of the model."""

    path: str
    model: str
    """The upstream's own name of the model; empty if the request names none."""
    content_type: str
    body_for: Callable[[str], bytes]
    origin: Origin


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
    def passed_paths(self) -> tuple[str, ...] | None:
        """The paths that its settings name; None if they name none, so that any may be tried."""
        ...

    async def pass_on(self, request: PassedRequest) -> PassedAnswer:
        """Sends the request, again after failures, and returns the answer when it has begun. Raises `Fault`."""
        ...
