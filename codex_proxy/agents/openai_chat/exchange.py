"""What a transport tells a dialect of one HTTP exchange: a `Head`, then bytes of the body, then an `End`.

Values only. The transport is given the body of a request as bytes; it knows nothing of models.
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
    """By lower-case name."""


class End(msgspec.Struct, frozen=True):
    """The end of the exchange, always the last message; the only one if the upstream sent no answer."""

    failure: Failure | None = None
    """Why the answer did not reach its end (no connection, cut off, too slow); None where HTTP says that it did."""


Message: TypeAlias = Head | bytes | End
