"""The agent's own activities as `Activity` items, one line each, with new ids (`a0`, `a1`, ...); its call ids only
connect beginning and end.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import shlex
from collections.abc import Callable
from typing import Literal, TypeAlias

from codex_proxy.agents.codex_proto.wire import Msg
from codex_proxy.agents.dialects.loose_values import one_line
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Notice, OutputDelta
from codex_proxy.core.items import Activity

ActivityKind = Literal["command", "file_change", "web_search", "mcp_call", "plan", "image"]


SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})
"""Programs whose argument after `-c` is the command to show."""
VERBS = frozenset({"add", "update", "delete"})


# --- one line for each activity -----------------------------------------------------------------


def command_line(msg: Msg) -> str:
    """Returns the command of an event or request, quoted, or SCRIPT of `bash -c SCRIPT`; one line, empty without a
    command.
    """
    command = msg.command
    if isinstance(command, str):
        return one_line(command)
    words = command or []
    if len(words) == 3 and words[0] in SHELLS and words[1] in ("-c", "-lc"):
        return one_line(words[2])
    return one_line(shlex.join(words))


def file_changes(msg: Msg, workdir: str) -> str:
    """Returns the changed files (`add a.txt, update b/c.py`), relative to `workdir`."""
    root = workdir.rstrip("/") + "/"
    parts = []
    for path, change in (msg.changes or {}).items():
        verb = next((key for key in change if key in VERBS), "change")
        parts.append(f"{verb} {path.removeprefix(root) if workdir else path}")
    return one_line(", ".join(parts))


def mcp_call(msg: Msg) -> str:
    """Returns the called MCP tool (`server.tool`), or an empty string."""
    called = msg.invocation
    return one_line(f"{called.server}.{called.tool}" if called else "")


def plan_steps(msg: Msg) -> str:
    """Returns the steps of a plan, like `read (completed), write (in progress), test (pending)`."""
    return one_line(", ".join(f"{step.step} ({step.status.replace('_', ' ')})" for step in msg.plan or ()))


def with_reason(text: str, reason: str | None) -> str:
    """Returns a request's text, with the agent's reason in parentheses."""
    return one_line(f"{text} ({reason})" if reason else text)


# --- the activities ----------------------------------------------------------------------------


class Activities:
    """Converts a turn's activities to items, and remembers open ones. Methods append events to `out`."""

    __slots__ = ("_count", "_decoders", "_open", "workdir")

    def __init__(self) -> None:
        self.workdir = ""
        """The folder in which the agent works."""
        self._count = 0
        self._open: dict[str, str] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def start(self, call_id: str, kind: ActivityKind, text: str, out: list[Event]) -> None:
        """Starts an activity, unless this call has started one."""
        if call_id not in self._open:
            self._open[call_id] = self._start(kind, text, out)

    def add_output(self, call_id: str, chunk: str, out: list[Event]) -> None:
        """Appends a base64 chunk of a command's output, which may cut a character; bad base64 becomes a `Notice`."""
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

    def finish(self, call_id: str, succeeded: bool, out: list[Event]) -> None:
        """Ends an activity as `completed` or `failed`, if it was started."""
        item = self._open.pop(call_id, None)
        if item is not None:
            self._decoders.pop(item, None)
            out.append(ItemEnded(item, "completed" if succeeded else "failed"))

    def add_finished(self, kind: ActivityKind, text: str, out: list[Event]) -> None:
        """Starts and ends an activity that the agent reports only when it is over."""
        out.append(ItemEnded(self._start(kind, text, out)))

    def _start(self, kind: ActivityKind, text: str, out: list[Event]) -> str:
        """Adds the event that starts an activity, and returns the new item's id."""
        item = f"a{self._count}"
        self._count += 1
        out.append(ItemStarted(Activity(item, kind, text)))
        return item


def _command_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.start(msg.call_id, "command", command_line(msg), out)


def _command_output(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.add_output(msg.call_id, msg.chunk or "", out)


def _command_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.finish(msg.call_id, msg.exit_code == 0, out)


def _patch_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.start(msg.call_id, "file_change", file_changes(msg, activities.workdir), out)


def _patch_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.finish(msg.call_id, bool(msg.success), out)


def _mcp_begin(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.start(msg.call_id, "mcp_call", mcp_call(msg), out)


def _mcp_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    answer = msg.result.Ok if msg.result else None
    activities.finish(msg.call_id, answer is not None and not answer.isError, out)


def _search_end(activities: Activities, msg: Msg, out: list[Event]) -> None:
    """Adds a search when it has ended, since only then its query is known."""
    activities.add_finished("web_search", one_line(msg.query or ""), out)


def _plan_update(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.add_finished("plan", plan_steps(msg), out)


def _image_viewed(activities: Activities, msg: Msg, out: list[Event]) -> None:
    activities.add_finished("image", one_line(msg.path or ""), out)


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
"""The handler for each type of event about an activity."""
