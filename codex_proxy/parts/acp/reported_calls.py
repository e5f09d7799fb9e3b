"""Tells the tool calls of a turn apart in an agent's reports. Each call has an id by the protocol; some programs leave
ids out, share them between calls, or give them again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import TooMuchHeld
from codex_proxy.core.json_values import encode_json, value_at
from codex_proxy.parts.acp.client_tools import CALLED_BY_META, ClientTools
from codex_proxy.parts.acp.messages import Update

BEGINS: Final = "tool_call"
UPDATES: Final = "tool_call_update"
END_STATUSES: Final = ("completed", "failed")
MAX_OPEN_CALLS: Final = 256
"""Maximum open calls: twice as many as may wait at the tool server."""


class OpenCall(msgspec.Struct):
    """A tool call that has not ended. `id`: the activity's item; empty if it has not begun, None for a
    client's tool.
    """

    key: str
    """Names the call in this turn, whatever the agent's id."""
    known: Update
    """The fields reported so far, without those that `without_content` drops."""
    id: str | None = ""
    output: list[str] = []
    output_size: int = 0


class _Ended(msgspec.Struct, frozen=True):
    """What a call was, as far as another is told from it."""

    kind: str | None
    title: str | None
    arguments: int


class ReportedCalls:
    def __init__(self) -> None:
        self._open: dict[str, OpenCall] = {}
        """The newest open call of each id."""
        self._of_client: dict[str, OpenCall] = {}
        """The open calls of the client's tools, by key."""
        self._ended: dict[str, _Ended] = {}
        self._earlier: frozenset[str] = frozenset()
        """The ids of the last turn's calls."""
        self._count = 0

    def start_turn(self) -> None:
        self._earlier = frozenset((*self._open, *self._ended)) - {""}
        self._open.clear()
        self._of_client.clear()
        self._ended.clear()

    @property
    def of_client(self) -> dict[str, Update]:
        """What is known of the open calls of the client's tools, by key."""
        return {key: call.known for key, call in self._of_client.items()}

    def with_id_of(self, request: Update) -> list[Update]:
        """Returns what is known of the open calls with a request's id, the newest first."""
        id = request.tool_call_id
        if not id:
            return []
        found = [self._open[id].known] if id in self._open else []
        older = [call.known for call in reversed(self._of_client.values()) if call.known.tool_call_id == id]
        return found + [call for call in older if call not in found]

    def is_old(self, report: Update) -> bool:
        """Whether a report says nothing new: it is about a call that has ended, maybe in the turn before, or it does
        not tell which call it is about.
        """
        id, kind = report.tool_call_id or "", report.session_update
        if id in self._open:
            return False
        if not id and kind != BEGINS:
            return len(self._open) != 1 or kind != UPDATES
        ended = self._ended.get(id)
        if ended is None:
            return kind == UPDATES and id in self._earlier
        if not kind:  # an agent that asks for permission waits
            return False
        return kind != BEGINS or (report.status in END_STATUSES and _summary_of(report) == ended)

    def find(self, report: Update, tools: ClientTools) -> OpenCall | None:
        """Returns the open call that a report is about; None: it begins another."""
        id, is_first = report.tool_call_id or "", report.session_update == BEGINS
        if not id and not is_first:
            return self._open.get("") or next(iter(self._open.values()), None)
        found = self._open.get(id)
        if found is None:
            return None
        if not report.session_update and found.id is None and not tools.fits(found.known, report):
            return None
        return None if is_first and (not id or _is_another(found.known, report, tools)) else found

    def begin(self, report: Update) -> tuple[OpenCall, OpenCall | None]:
        """Returns a new call, and the open call that had its id before, whose end nobody will tell. Raises
        `TooMuchHeld`.
        """
        self._count += 1
        id = report.tool_call_id or ""
        replaced = self._open.pop(id, None)
        call = self._open[id] = OpenCall(str(self._count), without_content(report))
        if max(len(self._open), len(self._of_client)) > MAX_OPEN_CALLS:
            raise TooMuchHeld(f"it began more than {MAX_OPEN_CALLS} calls of tools and ended none of them")
        return call, replaced

    def add_of_client(self, call: OpenCall) -> None:
        self._of_client[call.key] = call

    def end(self, call: OpenCall) -> None:
        id = call.known.tool_call_id or ""
        self._open.pop(id, None)
        self._of_client.pop(call.key, None)
        if id:
            self._ended[id] = _summary_of(call.known)


def without_content(call: Update) -> Update:
    meta = call.meta
    if isinstance(meta, dict):
        meta = {name: meta[name] for name in CALLED_BY_META if name in meta}
    return msgspec.structs.replace(call, content=None, entries=None, meta=meta)


def merge(before: Update, call: Update) -> Update:
    """Returns what is known of a call after a further report."""
    fields = {name: value for name in Update.__struct_fields__ if (value := getattr(call, name)) is not None}
    if isinstance(before.meta, dict) and isinstance(call.meta, dict):
        fields["meta"] = {**before.meta, **call.meta}
    if before.raw_input and not call.raw_input:
        fields.pop("raw_input", None)
    return msgspec.structs.replace(before, **fields)


def is_unnamed(known: Update, newest: Update) -> bool:
    named = value_at(known.raw_input, "command")
    return known.kind == "execute" and known.status == "pending" and newest.session_update != "" and not named


def _is_another(known: Update, report: Update, tools: ClientTools) -> bool:
    """Whether a report that begins a call is about another than the open call with its id."""
    if tools.find_called_tool(known) is not tools.find_called_tool(report):
        return True
    if known.raw_input and report.raw_input is not None and not report.raw_input:
        return True  # it begins without its arguments, as the other did
    pairs = [(known.kind, report.kind), (known.raw_input or None, report.raw_input or None)]
    if known.raw_input is None or report.raw_input is None:
        pairs.append((known.title, report.title))
    return any(before is not None and now is not None and before != now for before, now in pairs)


def _summary_of(call: Update) -> _Ended:
    return _Ended(call.kind, call.title, hash(_canonical(call.raw_input)))


def _canonical(value: Any) -> bytes:
    return encode_json(value, "deterministic") if value else b""
