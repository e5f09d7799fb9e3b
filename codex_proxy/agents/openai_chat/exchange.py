"""The messages of one HTTP exchange from a transport to a dialect: a `Head`, then bytes of the body, then an `End`.

The transport sends the body of a request as bytes; it knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from codex_proxy.core.faults import Failure


class Head(msgspec.Struct, frozen=True):
    """The head of the upstream's HTTP answer."""

    status: int
    headers: Mapping[str, str] = {}
    """The headers, by their names in lower case."""


class End(msgspec.Struct, frozen=True):
    """The end of the exchange, and always its last message. It is the only message if there was no answer."""

    failure: Failure | None = None
    """Why the answer is incomplete (no connection, cut off, too slow); None if HTTP reports it as complete."""


Message: TypeAlias = Head | bytes | End
