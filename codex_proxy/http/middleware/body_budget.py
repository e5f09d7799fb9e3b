"""A memory budget for the bodies of requests. The bytes of a body count from before it is read until its request is
over.

If the budget has no room, the request is refused before its body is read. The body of a background response counts
until the response has ended.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.middleware.request_context import OWNER

Refusal = Literal["owner", "total"]
"""Which limit has no room: that of the owner, or that of all owners together."""


class ByteBudget:
    """Counts bytes in memory against two limits: `total` for all owners together, `each` for one owner. 0 is no
    limit.
    """

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, owner: str, size: int) -> Refusal | None:
        """Counts `size` more bytes for the owner and returns None; or returns which limit has no room for them. An
        owner that has no bytes counted always has room in `each`, because one body may be larger than that limit.
        """
        theirs = self._held[owner]
        if self.each and theirs and theirs + size > self.each:
            return "owner"
        if self.total and self.held and self.held + size > self.total:
            return "total"
        self._held[owner] += size
        return None

    def give_back(self, owner: str, size: int) -> None:
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]


BODY_BUDGET = web.AppKey("body_budget", ByteBudget)
"""The budget for the bodies of all running requests."""
RETRY_SECONDS = 5


class HeldBytes:
    """The bytes of the budget that are counted for one request."""

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Counts more bytes, so that `size` are counted for this request. Raises `Fault` if there is no room."""
        more = size - self.size
        if more <= 0:
            return
        refused = self._budget.take(self._owner, more)
        if refused is not None:
            raise _no_room(self._budget, refused)
        self.size = size

    def release(self) -> None:
        """Gives the bytes back to the budget. Further calls do nothing."""
        if self.size:
            self._budget.give_back(self._owner, self.size)
            self.size = 0

    def handed_over(self) -> HeldBytes:
        """Returns another object with these bytes, which must be released instead of this one. This object then has
        none.
        """
        other = HeldBytes(self._budget, self._owner)
        other.size, self.size = self.size, 0
        return other


HELD = web.RequestKey("held", HeldBytes)


@contextlib.contextmanager
def body_bytes_held(request: web.Request) -> Iterator[None]:
    """Gives the request a `HeldBytes`, and releases it at the end of the `with`."""
    held = request[HELD] = HeldBytes(request.app[BODY_BUDGET], request[OWNER])
    try:
        yield
    finally:
        held.release()


def _no_room(budget: ByteBudget, whose: str) -> Fault:
    if whose == "owner":
        message = (
            f"Requests of this key that are under way hold {budget.each} bytes of bodies (PROXY_KEY_BODY_BYTES), as "
            "many as they may. Try again when one has ended."
        )
        return Fault(Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=message, retry_after=RETRY_SECONDS))
    message = (
        f"Requests that are under way hold {budget.total} bytes of bodies (PROXY_TOTAL_BODY_BYTES), as many as this "
        "server takes. Try again later."
    )
    return Fault(Failure(kind=FaultKind.UNAVAILABLE, message=message, retry_after=RETRY_SECONDS))
