"""OpenAI's lists: reads from a query which page a client wants, and makes the list object.

Input: the query's parameters as strings, and whole items, oldest first. Output: `Page` and the list object. Raises
`Fault` INVALID_REQUEST with `param`. The SDKs page through a list by `last_id` and `has_more`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.core.faults import bad_request

MAX_PAGE_ITEMS: Final = 100


class Page(msgspec.Struct, frozen=True):
    """The part of a list that a query asks for. `after` is the id of the last item that the client already has."""

    limit: int
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def page_of(query: Mapping[str, str], *, default: int) -> Page:
    """Returns the page that a query asks for. `default` is the limit if the query has none."""
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise bad_request(
            "Invalid value for 'order': supported values are: 'asc', 'desc'.", "order", "invalid_value"
        )
    return Page(_limit(query.get("limit"), default), "asc" if order == "asc" else "desc", query.get("after"))


def _limit(given: str | None, default: int) -> int:
    if not given:
        return default
    # Only what is surely small becomes a number: `int` takes underscores, signs and digits of any script.
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) <= 9 else -1
    if not 1 <= limit <= MAX_PAGE_ITEMS:
        raise bad_request(
            f"Invalid value for 'limit': expected an integer from 1 to {MAX_PAGE_ITEMS}.",
            "limit",
            "invalid_value",
        )
    return limit


def list_object(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns the `list` object of one page. `has_more`: more objects follow."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
