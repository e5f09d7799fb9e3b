"""`GET /v1/usage` (in OpenAI's form of `/v1/organization/usage/completions`) and `/v1/usage/limits`. Raises `Fault`
INVALID_REQUEST, also for unknown parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from codex_proxy.core.account import AccountLimits, LimitWindow, resets_at
from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import MAX_EXCERPT, excerpt
from codex_proxy.core.tokens import DAY, HOUR, Figures, UsageSum
from codex_proxy.surfaces.answers.renderer import Count
from codex_proxy.surfaces.requests.body import integer_in, invalid_value, number_in


class Width(NamedTuple):
    """A bucket's `seconds`, and how many a page has by `default` and at most: OpenAI's numbers."""

    seconds: int
    default: int
    max_buckets: int


WIDTHS: Final = {"1h": Width(HOUR, 24, 168), "1d": Width(DAY, 7, 31)}
GROUPS: Final = ("key", "model")
PARAMETERS: Final = ("start_time", "end_time", "bucket_width", "group_by", "limit", "page")
END_OF_9999: Final = 253_402_300_799
"""The end of 9999 in seconds since 1970, as in `datetime`."""
_PAGE: Final = "page_"


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request for usage: `buckets` buckets of `width` seconds from `first`. Times: seconds since 1970."""

    first: int
    """The beginning of the page's first bucket."""
    buckets: int
    width: int
    end: int
    """The end that was asked for; the last bucket may end later."""
    by_key: bool
    by_model: bool

    @property
    def after(self) -> int:
        """The end of the page's last bucket."""
        return self.first + self.buckets * self.width


class UsageFigures(TypedDict):
    input_tokens: Count
    input_cached_tokens: Count
    output_tokens: Count
    output_reasoning_tokens: Count
    num_model_requests: Count
    num_failed_requests: Count
    num_estimated_requests: Count
    estimated: bool


class UsageResult(UsageFigures):
    object: Literal["usage.result"]
    key: str | None
    model: str | None


class UsageBucket(TypedDict):
    object: Literal["bucket"]
    start_time: Count
    end_time: Count
    results: list[UsageResult]


class UsagePage(TypedDict):
    object: Literal["page"]
    data: Annotated[list[UsageBucket], Meta(max_length=max(each.max_buckets for each in WIDTHS.values()))]
    has_more: bool
    next_page: str | None
    kept: Literal["disk", "memory"]
    kept_since: Count | None


class UsageLimitWindow(TypedDict):
    name: Literal["primary", "secondary"]
    window_seconds: Count | None
    used_percent: float
    resets_at: Count | None
    over: bool


class UsageLimit(TypedDict):
    id: str | None
    name: str | None
    plan: str | None
    reached: str | None
    windows: Annotated[list[UsageLimitWindow], Meta(max_length=2)]


class UsageLimits(TypedDict):
    object: Literal["usage.limits"]
    agent: str
    limits: Annotated[list[UsageLimit], Meta(min_length=1)] | None
    as_of: Count | None
    reason: str | None


class UsageLimitsList(TypedDict):
    """With several agents: the limits of each agent that the key may use."""

    object: Literal["list"]
    data: list[UsageLimits]


def report_of(query: Iterable[tuple[str, str]], *, now: float) -> UsageReport:
    """Parses a query. Without times, it asks for the newest buckets up to `now` (seconds since 1970)."""
    given = _parameters(query)
    width = _width(given)
    limit = _number(given, "limit", 1, width.max_buckets, width.default)
    end = _number(given, "end_time", 0, END_OF_9999, int(now) + 1)
    newest = _floor(max(0, end - 1), width)
    start = _number(given, "start_time", 0, END_OF_9999, max(0, newest - (limit - 1) * width.seconds))
    if end <= start:
        raise invalid_value("end_time", "expected a time after 'start_time'")
    first = _floor(start, width)
    if "page" in given:
        first = _page(given["page"][0], first, end, width)
    groups = _groups(given)
    left = -(-(end - first) // width.seconds)
    return UsageReport(
        first=first,
        buckets=min(limit, left),
        width=width.seconds,
        end=end,
        by_key="key" in groups,
        by_model="model" in groups,
    )


def page_of(
    report: UsageReport, sums: Sequence[UsageSum], *, key: str, durable: bool, since: int
) -> UsagePage:
    """Returns a page of usage. If the usage is not `durable`, it counts from `since`."""
    by_start: dict[int, list[UsageSum]] = {}
    for each in sums:
        by_start.setdefault(each.start, []).append(each)
    starts = range(report.first, report.after, report.width)
    has_more = report.after < report.end
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": start,
                "end_time": start + report.width,
                "results": [_result(report, each, key) for each in by_start.get(start, ())],
            }
            for start in starts
        ],
        "has_more": has_more,
        "next_page": f"{_PAGE}{report.after}" if has_more else None,
        "kept": "disk" if durable else "memory",
        "kept_since": None if durable else since,
    }


def _result(report: UsageReport, found: UsageSum, key: str) -> UsageResult:
    return {
        "object": "usage.result",
        **usage_figures(found.figures),
        "key": key if report.by_key else None,
        "model": found.model if report.by_model else None,
    }


def usage_figures(figures: Figures) -> UsageFigures:
    return {
        "input_tokens": figures.input,
        "input_cached_tokens": figures.cached,
        "output_tokens": figures.output,
        "output_reasoning_tokens": figures.reasoning,
        "num_model_requests": figures.turns,
        "num_failed_requests": figures.failed,
        "num_estimated_requests": figures.estimated,
        "estimated": figures.estimated > 0,
    }


# --- the query ----------------------------------------------------------------------------------


def _parameters(query: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in query:
        name = name.removesuffix("[]") if name == "group_by[]" else name
        if name not in PARAMETERS:
            raise bad_request(
                f"Unknown parameter: '{excerpt(name)}'. Supported parameters are: {', '.join(PARAMETERS)}.",
                name[:MAX_EXCERPT],
                "unknown_parameter",
            )
        given.setdefault(name, []).append(value)
    for name, values in given.items():
        if len(values) > 1 and name != "group_by":
            raise bad_request(f"'{name}' is given more than once.", name, "invalid_value")
    return given


def _width(given: dict[str, list[str]]) -> Width:
    name = given.get("bucket_width", ["1d"])[0]
    if name not in WIDTHS:
        raise invalid_value("bucket_width", "supported values are: '1h', '1d'")
    return WIDTHS[name]


def _number(given: dict[str, list[str]], name: str, minimum: int, maximum: int, default: int) -> int:
    return integer_in(name, given[name][0], minimum, maximum) if name in given else default


def _groups(given: dict[str, list[str]]) -> set[str]:
    names = [name for value in given.get("group_by", ()) for name in value.split(",")]
    if any(name not in GROUPS for name in names):
        raise invalid_value("group_by", "supported values are: 'key', 'model'")
    return set(names)


def _page(text: str, first: int, end: int, width: Width) -> int:
    start = number_in(text.removeprefix(_PAGE), len(str(END_OF_9999))) if text.startswith(_PAGE) else -1
    if first <= start < end and start == _floor(start, width):
        return start
    raise invalid_value("page", "expected the 'next_page' of an answer to the same query")


def _floor(time: int, width: Width) -> int:
    return time - time % width.seconds


def limits_object(
    agent: str, known: Sequence[AccountLimits], *, reported_at: float, now: float, reason: str
) -> UsageLimits:
    """Returns an agent's limits; null and the `reason` if none are `known`."""
    found = [_limit(each, reported_at, now) for each in known]
    return {
        "object": "usage.limits",
        "agent": agent,
        "limits": found or None,
        "as_of": int(reported_at) if found else None,
        "reason": None if found else reason,
    }


def _limit(limit: AccountLimits, reported_at: float, now: float) -> UsageLimit:
    return {
        "id": limit.id or None,
        "name": limit.name,
        "plan": limit.plan,
        "reached": limit.reached,
        "windows": [_window(each, reported_at, now) for each in limit.windows],
    }


def _window(window: LimitWindow, reported_at: float, now: float) -> UsageLimitWindow:
    reset = resets_at(window, reported_at)
    return {
        "name": window.name,
        "window_seconds": window.seconds,
        "used_percent": window.used_percent,
        "resets_at": reset,
        # The agent tells the figure of its last call: a window that is over since then counts from nothing again.
        "over": reset is not None and reset <= now,
    }
