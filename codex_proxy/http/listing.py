"""Answers the lists of stored items of responses and conversations, a page at a time, in OpenAI's format.

The SDKs page through a list by `last_id` and `has_more`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from aiohttp import web

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.store.base import NotStored, Page, PageRequest, StoredItem
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.responses.wire import Include

MAX_PAGE_ITEMS: Final = 100
_INCLUDES: Final = frozenset(get_args(Include))
_item = msgspec.json.Decoder(dict[str, Any])


def shown(item: StoredItem) -> ItemDict:
    """Returns a stored item as the object that the client sees."""
    return _item.decode(item.json)


def check_include(request: web.Request) -> None:
    """Raises `Fault` for a name in the query's `include` that the API does not have. The known names have no
    effect, because the server returns everything that it has anyway.
    """
    for name in [*request.query.getall("include", []), *request.query.getall("include[]", [])]:
        if name not in _INCLUDES:
            raise bad_request(
                f"Invalid value for 'include': '{excerpt(name)}'. Supported values are: "
                + ", ".join(f"'{each}'" for each in sorted(_INCLUDES)),
                "include",
                "invalid_value",
            )


async def listed(
    request: web.Request,
    read: Callable[[PageRequest], Awaitable[Page]],
    *,
    default: int,
    form: Callable[[StoredItem], ItemDict],
    missing: Fault,
) -> dict[str, Any]:
    """Returns the list object for the page that the query asks for.

    `read` reads a page from the store; `default` is the number of items if the query has no `limit`; `form` returns
    the object of an item. Raises `Fault`: `missing` if the list does not exist.
    """
    check_include(request)
    asked = page_of(request.query, default=default)
    with store_errors_as_faults():
        try:
            page = await read(asked)
        except NotStored as error:
            if error.kind != "item":
                raise missing from None
            raise bad_request(
                f"No item with id '{excerpt(error.id)}' in this list.", "after", "invalid_value"
            ) from None
    return list_object([form(item) for item in page.items], has_more=page.has_more)


def page_of(query: Mapping[str, str], *, default: int) -> PageRequest:
    """Returns the page that a query asks for. `default` is the limit if the query has none. Raises `Fault`
    INVALID_REQUEST for an unknown `order` or an invalid limit.
    """
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise bad_request(
            "Invalid value for 'order': supported values are: 'asc', 'desc'.", "order", "invalid_value"
        )
    return PageRequest(
        _limit(query.get("limit"), default), "asc" if order == "asc" else "desc", query.get("after")
    )


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
