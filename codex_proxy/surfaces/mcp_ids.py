"""The ids of MCP calls and of requests to approve one. Such items have no call id of their own, so their id holds it.

An id is a prefix, twelve letters of chance, a dash, and the model's call id: what a later request says of the item is
then said of the call that the model knows. It knows no item and no event.
"""

from __future__ import annotations

import re
from typing import Final

from codex_proxy.core.ids import IdSource

MCP_CALL: Final = "mcp_"
APPROVAL_REQUEST: Final = "mcpr_"
_CHANCE: Final = 12
"""Letters, of sixteen kinds: with the call id behind them, two ids are never one."""
_OURS: Final = re.compile(rf"mcpr?_[0-9a-z]{{{_CHANCE}}}-(.+)", re.DOTALL)
_MAX_CHARS: Final = 64
"""Letters of a call id that models take."""


def id_with(prefix: str, call_id: str, ids: IdSource) -> str:
    """A new id for an item of this call."""
    return f"{prefix}{ids.new('')[:_CHANCE]:0>{_CHANCE}}-{call_id}"


def call_id_of(id: str) -> str:
    """The call id in an item's id; where a client made the id up, as much of it as a call id can be."""
    found = _OURS.fullmatch(id)
    return (found[1] if found else id)[:_MAX_CHARS]
