"""Pages of stored items in OpenAI's format: `after` is the `last_id` of the page before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from aiohttp import web

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.values import NotStored, Page, PageRequest, StoredItem
from codex_proxy.surfaces.answers.renderer import ItemList
from codex_proxy.surfaces.requests.body import integer_in, order_in, unsupported_value
from codex_proxy.surfaces.responses.items import ItemDict
from codex_proxy.surfaces.responses.wire import Include

MAX_PAGE_ITEMS: Final = 100
_INCLUDES: Final = frozenset(get_args(Include))
_item_decoder = msgspec.json.Decoder(dict[str, Any])


def decode_item(item: StoredItem) -> ItemDict:
    return _item_decoder.decode(item.json)


def check_include(request: web.Request) -> None:
    """Raises `Fault` for an unknown `include`; known values have no effect."""
    for name in [*request.query.getall("include", []), *request.query.getall("include[]", [])]:
        if name not in _INCLUDES:
            known = ", ".join(f"'{each}'" for each in sorted(_INCLUDES))
            raise unsupported_value("include", name, known)


async def list_page(
    request: web.Request,
    read: Callable[[PageRequest], Awaitable[Page[StoredItem]]],
    *,
    default: int,
    form: Callable[[StoredItem], ItemDict],
    missing: Fault,
) -> ItemList[ItemDict]:
    """Returns the page that the query asks for. `read` gets it from the store, `form` makes an item's object. Raises
    `missing` if there is no such list, and `Fault` INVALID_REQUEST.
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
    """Parses `limit` (or `default`), `order` and `after`. Raises `Fault` INVALID_REQUEST."""
    given = query.get("limit")
    limit = integer_in("limit", given, 1, MAX_PAGE_ITEMS) if given else default
    return PageRequest(limit, order_in(query), query.get("after"))


def list_object(data: Sequence[ItemDict], *, has_more: bool) -> ItemList[ItemDict]:
    """Returns OpenAI's `list` object. `has_more`: whether there are more pages."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
