"""`codex-proxy usage`: what the turns of a key have cost, day by day, asked of the server that runs.

In: address and key of the server. Out: tables on the console, or the server's own JSON.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from codex_proxy.commands.chat.conversation import ChatError, Conversation
from codex_proxy.surfaces.models import DEFAULT_NAME

_COLUMNS = ("turns", "failed", "input", "cached", "output", "reasoning")
_FIGURES = (
    *("num_model_requests", "num_failed_requests", "input_tokens", "input_cached_tokens"),
    *("output_tokens", "output_reasoning_tokens"),
)


def run(base_url: str, key: str | None, *, days: int, as_json: bool) -> int:
    """Prints it. Returns the exit status."""
    try:
        found = asyncio.run(ask(Conversation(base_url, DEFAULT_NAME, key), days))
    except ChatError as error:
        print(f"codex-proxy: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(found, Console(highlight=False))
    return 0


async def ask(server: Conversation, days: int) -> dict[str, Any]:
    """Usage of the last days, and the limits of the agent's account."""
    usage = await server.read(f"/usage?bucket_width=1d&group_by=model&limit={days}")
    return {"usage": usage, "limits": await server.read("/usage/limits")}


def show(found: dict[str, Any], console: Console) -> None:
    """Both as tables."""
    table = Table("day", "model", *_COLUMNS, box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for bucket in found["usage"]["data"]:
        for result in bucket["results"]:
            table.add_row(_day(bucket["start_time"]), result["model"], *_figures(result))
    if table.row_count:
        console.print(table)
    else:
        console.print("No turns in these days.")
    if found["usage"]["kept"] == "memory":
        console.print(f"(kept in memory only, since {_time(found['usage']['kept_since'])})")
    _show_limits(found["limits"], console)


def _figures(result: dict[str, Any]) -> list[str]:
    """A tilde says that something in a count of tokens is an estimate."""
    mark = "~" if result["estimated"] else ""
    turns, failed, *tokens = (int(result[name]) for name in _FIGURES)
    return [f"{turns:,}", f"{failed:,}", *(f"{mark}{count:,}" for count in tokens)]


def _show_limits(found: dict[str, Any], console: Console) -> None:
    console.print()
    if found["limits"] is None:
        console.print(found["reason"])
        return
    for limit in found["limits"]:
        for window in limit["windows"]:
            span = "" if window["window_seconds"] is None else f" of {window['window_seconds'] / 3600:g} h"
            ends = "" if window["resets_at"] is None else f", until {_time(window['resets_at'])}"
            used = "over" if window["over"] else f"{window['used_percent']:g} % used"
            console.print(f"{limit['id'] or 'account'}{span}: {used}{ends}")


def _day(seconds: int) -> str:
    """Days are those of UTC, as the server sums them."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
