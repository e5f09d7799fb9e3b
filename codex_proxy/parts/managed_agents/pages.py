"""Pages of lists in Anthropic's form, and what their queries have in common: cursors, times, flags. A cursor is a
position (the last object shown, and when that was made), so that it also holds where the object is gone. Raises `Fault`
INVALID_REQUEST. Source: docs/managed-agents.md.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar

import msgspec

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.parts.sessions.records import MAX_PAGE, Kind, SessionStore
from codex_proxy.store.values import Order, PageRequest
from codex_proxy.surfaces.requests.body import integer_in, invalid_value, unsupported_value

DEFAULT_LIMIT: Final = 20
MAX_CURSOR: Final = 512
"""Maximum characters of a cursor."""


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...


T = TypeVar("T")
L = TypeVar("L", bound=Listed)


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A place in a list: behind the object with this id, which was made at `created` (seconds since 1970)."""

    order: Order
    id: str
    created: float

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


class PageQuery(msgspec.Struct, frozen=True):
    limit: int
    order: Order
    cursor: Cursor | None


class ObjectPage(TypedDict, Generic[T]):
    """A page of a list. `next_page`: the value of `page` for the next one."""

    data: list[T]
    next_page: str | None


def page_query(
    query: Mapping[str, str],
    *,
    default: int = DEFAULT_LIMIT,
    most: int = MAX_PAGE,
    order: Order = "desc",
    ordered: bool = False,
) -> PageQuery:
    """Parses `limit` (or `default`) and `page`, and `order` where the list is `ordered` as the client likes."""
    if ordered and "order" in query:
        if query["order"] not in ("asc", "desc"):
            raise unsupported_value("order", query["order"], "'asc', 'desc'")
        order = "asc" if query["order"] == "asc" else "desc"
    limit = integer_in("limit", query["limit"], 1, most) if "limit" in query else default
    return PageQuery(limit, order, _cursor(query["page"], order) if query.get("page") else None)


def unknown_cursor() -> Fault:
    return bad_request("It is no 'next_page' of this list: leave it out to begin anew.", "page")


def _cursor(text: str, order: Order) -> Cursor:
    if len(text) > MAX_CURSOR:
        raise unknown_cursor()
    try:
        padded = text + "=" * (-len(text) % 4)
        cursor = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=Cursor)
    except (ValueError, *UNREADABLE):
        raise unknown_cursor() from None
    if cursor.order != order:
        raise bad_request(f"It belongs to a list with 'order={cursor.order}', not '{order}'.", "page")
    return cursor


async def list_page(
    store: SessionStore,
    owner: str,
    kind: Kind[L],
    query: PageQuery,
    wanted: Callable[[L], bool],
    *,
    parent: str = "",
) -> tuple[list[L], str | None]:
    """Returns the `wanted` objects of a page, and the cursor of the next one, if there is one."""
    found: list[L] = []
    gone = Fault.of(FaultKind.NOT_FOUND, "")
    after, passed = (query.cursor.id, 0.0) if query.cursor is not None else (None, 0.0)
    while True:
        request = PageRequest(MAX_PAGE, query.order, after)
        try:
            page = await store.page(owner, kind, request, parent=parent, unknown_after=gone)
        except Fault as fault:
            if fault is not gone or passed or query.cursor is None:
                raise
            after, passed = (
                None,
                query.cursor.created,
            )  # by its time: whoever pages may delete what it has seen
            continue
        found += [each for each in page.items if not _is_before(each, passed, query.order) and wanted(each)]
        if len(found) > query.limit or not page.has_more:
            break
        after = page.items[-1].id
    shown = found[: query.limit]
    more = len(found) > query.limit
    return shown, str(Cursor(query.order, shown[-1].id, shown[-1].created_at)) if more else None


def _is_before(each: Listed, passed: float, order: Order) -> bool:
    """Whether an object stands before a time in a list; no time: 0."""
    return bool(passed) and (each.created_at > passed if order == "desc" else each.created_at < passed)


# --- times and flags ----------------------------------------------------------------------------


def time_text(seconds: float) -> str:
    """Returns a time (seconds since 1970) as in RFC 3339, with microseconds unless they are whole seconds."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    precision = "microseconds" if isinstance(seconds, float) else "seconds"
    return time.isoformat(timespec=precision).removesuffix("+00:00") + "Z"


def optional_time(seconds: float | None) -> str | None:
    return None if seconds is None else time_text(seconds)


class TimeRange(msgspec.Struct, frozen=True):
    """The limits of a time, in seconds since 1970; None: no limit."""

    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None

    def __contains__(self, time: float) -> bool:
        return (
            (self.gt is None or time > self.gt)
            and (self.gte is None or time >= self.gte)
            and (self.lt is None or time < self.lt)
            and (self.lte is None or time <= self.lte)
        )


def time_range(query: Mapping[str, str], name: str = "created_at") -> TimeRange:
    """Parses `created_at[gte]` and the like."""
    limits: dict[str, Any] = {}
    for limit in TimeRange.__struct_fields__:
        param = f"{name}[{limit}]"
        if param in query:
            limits[limit] = _time_in(param, query[param])
    return TimeRange(**limits)


def _time_in(param: str, text: str) -> float:
    try:
        time = datetime.datetime.fromisoformat(text[:64])
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        raise invalid_value(param, "expected a time as in RFC 3339, such as 2026-04-01T12:00:00Z") from None


def flag_in(query: Mapping[str, str], name: str) -> bool:
    """Parses a flag of the query; false without it."""
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise unsupported_value(name, value, "'true', 'false'")
    return value == "true"
