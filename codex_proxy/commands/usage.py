"""`codex-proxy usage`: a key's tokens by day and the limits of the agent's account, from a running server; with
`--all-keys` all keys' tokens, from the store.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codex_proxy.app.system import SystemClock
from codex_proxy.commands.running_server import Server
from codex_proxy.commands.store import existing_store
from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import escape, escape_json
from codex_proxy.core.tokens import DAY
from codex_proxy.settings.fields import Settings
from codex_proxy.store.usage import UsageQuery
from codex_proxy.surfaces.answers.usage_report import usage_figures

_COLUMNS = ("turns", "failed", "input", "cached", "output", "reasoning")
_FIGURES = (
    "num_model_requests", "num_failed_requests", "input_tokens", "input_cached_tokens",
    "output_tokens", "output_reasoning_tokens",
)  # fmt: skip


async def usage_of_all_keys(settings: Settings, days: int) -> list[dict[str, Any]]:
    """Returns every key's usage of the last `days` days: rows of `start_time`, `key`, `model` and sums. Raises
    `UserError`.
    """
    if settings.store in ("memory", "off"):
        raise UserError(
            f"with PROXY_STORE={settings.store} only the running server knows the usage: ask it with each key, "
            "without --all-keys"
        )
    clock = SystemClock()
    today = int(clock.epoch()) // DAY * DAY
    query = UsageQuery(owner=None, start=today - (days - 1) * DAY, end=today + DAY, width=DAY, by_model=True)
    async with existing_store(settings) as store:
        found = await store.usage(query)
    return [
        {"start_time": each.start, "key": each.owner, "model": each.model, **usage_figures(each.figures)}
        for each in found
    ]


def print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(escape_json(json.dumps(rows, indent=2)))
        return
    table = _table("day", "key", "model")
    for row in rows:
        table.add_row(_day(row["start_time"]), _cell(row["key"]), _cell(row["model"]), *_figures(row))
    _print(table, Console(highlight=False))


def run(base_url: str, key: str | None, *, days: int, as_json: bool) -> None:
    """Prints one key's usage of the last `days` days. Raises `UserError`."""
    found = asyncio.run(ask(base_url, key, days))
    if as_json:
        print(escape_json(json.dumps(found, indent=2)))
    else:
        show(found, Console(highlight=False))


async def ask(base_url: str, key: str | None, days: int) -> dict[str, Any]:
    """Returns `GET /v1/usage` of the last `days` days as `usage`, and `GET /v1/usage/limits` as `limits`. Raises
    `UserError`.
    """
    async with Server(base_url, key) as server:
        usage = await server.ask("GET", f"/usage?bucket_width=1d&group_by=model&limit={days}")
        return {"usage": usage, "limits": await server.ask("GET", "/usage/limits")}


def show(answers: dict[str, Any], console: Console) -> None:
    """Prints the result of `ask`."""
    table = _table("day", "model")
    for bucket in answers["usage"]["data"]:
        for result in bucket["results"]:
            table.add_row(_day(bucket["start_time"]), _cell(result["model"]), *_figures(result))
    _print(table, console)
    if answers["usage"]["kept"] == "memory":
        console.print(f"(kept in memory only, since {_time(answers['usage']['kept_since'])})")
    _show_limits(answers["limits"], console)


def _table(*heads: str) -> Table:
    table = Table(*heads, *_COLUMNS, box=None, pad_edge=False)
    for column in table.columns[len(heads) :]:
        column.justify = "right"
    return table


def _cell(text: str) -> Text:
    return Text(escape(text))


def _print(table: Table, console: Console) -> None:
    console.print(table if table.row_count else "No turns in these days.")


def _figures(result: dict[str, Any]) -> list[str]:
    mark = "~" if result["estimated"] else ""
    turns, failed, *tokens = (int(result[name]) for name in _FIGURES)
    return [f"{turns:,}", f"{failed:,}", *(f"{mark}{count:,}" for count in tokens)]


def _show_limits(report: dict[str, Any], console: Console) -> None:
    console.print()
    if report["limits"] is None:
        console.print(_cell(report["reason"]))
        return
    for limit in report["limits"]:
        for window in limit["windows"]:
            span = "" if window["window_seconds"] is None else f" of {window['window_seconds'] / 3600:g} h"
            ends = "" if window["resets_at"] is None else f", until {_time(window['resets_at'])}"
            used = "over" if window["over"] else f"{window['used_percent']:g} % used"
            console.print(_cell(f"{limit['id'] or 'account'}{span}: {used}{ends}"))


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
