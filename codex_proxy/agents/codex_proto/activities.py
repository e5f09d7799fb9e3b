"""What the agent does by itself: commands, patches, MCP calls, searches, plans, images.

In come the events about it, out go `Activity` items with ids of ours (`a0`). The agent's own call ids only
match a beginning with its end.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable
from typing import Literal, TypeAlias

from codex_proxy.agents.codex_proto import phrases
from codex_proxy.agents.codex_proto.wire import Msg
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Notice, OutputDelta
from codex_proxy.core.items import Activity

ActivityKind = Literal["command", "file_change", "web_search", "mcp_call", "plan", "image"]


class Activities:
    """What the agent does by itself, by its own call ids."""

    __slots__ = ("_count", "_decoders", "_open", "workdir")

    def __init__(self) -> None:
        self.workdir = ""
        """Where the agent works: files in it are named without it."""
        self._count = 0
        self._open: dict[str, str] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def begin(self, call_id: str, kind: ActivityKind, text: str, out: list[Event]) -> None:
        """It starts."""
        if call_id not in self._open:
            self._open[call_id] = self._start(kind, text, out)

    def output(self, call_id: str, chunk: str, out: list[Event]) -> None:
        """A base64 chunk of what a command printed; a chunk may end inside a character."""
        item = self._open.get(call_id)
        if item is None:
            return
        decoder = self._decoders.get(item)
        if decoder is None:
            decoder = self._decoders[item] = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            text = decoder.decode(base64.b64decode(chunk))
        except (binascii.Error, ValueError):
            out.append(Notice("bad_output_chunk"))
            return
        if text:
            out.append(OutputDelta(item, text))

    def end(self, call_id: str, well: bool, out: list[Event]) -> None:
        """It is over, well or not."""
        item = self._open.pop(call_id, None)
        if item is not None:
            self._decoders.pop(item, None)
            out.append(ItemEnded(item, "completed" if well else "failed"))

    def done(self, kind: ActivityKind, text: str, out: list[Event]) -> None:
        """Something that is told only when it is over."""
        out.append(ItemEnded(self._start(kind, text, out)))

    def _start(self, kind: ActivityKind, text: str, out: list[Event]) -> str:
        item = f"a{self._count}"
        self._count += 1
        out.append(ItemStarted(Activity(item, kind, text)))
        return item


def _command_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.begin(msg.call_id, "command", phrases.command_line(msg), out)


def _command_output(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.output(msg.call_id, msg.chunk or "", out)


def _command_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.end(msg.call_id, msg.exit_code == 0, out)


def _patch_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.begin(msg.call_id, "file_change", phrases.file_changes(msg, activities.workdir), out)


def _patch_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.end(msg.call_id, bool(msg.success), out)


def _mcp_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.begin(msg.call_id, "mcp_call", phrases.mcp_call(msg), out)


def _mcp_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    answer = msg.result.Ok if msg.result else None
    activities.end(msg.call_id, answer is not None and not answer.isError, out)


def _search_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    """The query is told only here, so the search begins here too."""
    activities.done("web_search", phrases.one_line(msg.query or ""), out)


def _plan_update(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.done("plan", phrases.plan(msg), out)


def _image_viewed(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.done("image", phrases.one_line(msg.path or ""), out)


ActivityEvent: TypeAlias = Callable[[Activities, Msg, list[Event]], None]

ACTIVITY_EVENTS: dict[str, ActivityEvent] = {
    "exec_command_begin": _command_begin,
    "exec_command_output_delta": _command_output,
    "exec_command_end": _command_end,
    "patch_apply_begin": _patch_begin,
    "patch_apply_end": _patch_end,
    "mcp_tool_call_begin": _mcp_begin,
    "mcp_tool_call_end": _mcp_end,
    "web_search_end": _search_end,
    "plan_update": _plan_update,
    "view_image_tool_call": _image_viewed,
}
"""What each event says about the agent's own doings."""
