"""Converts the agent's own activities to items with new ids, each described in one line. Codex's call ids only match an
activity's end with its beginning.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import shlex
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from codex_proxy.agents.codex_proto.wire import Msg
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Notice, OutputDelta
from codex_proxy.core.items import Activity, ActivityKind
from codex_proxy.core.repair import MAX_OPEN_ITEMS
from codex_proxy.core.shown_text import one_line

SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})
"""Programs of which only the argument after `-c` is shown."""
VERBS = frozenset({"add", "update", "delete"})


# --- one line for each activity -----------------------------------------------------------------


def command_line(msg: Msg) -> str:
    """Returns the command, quoted, or SCRIPT of `bash -c SCRIPT`."""
    command = msg.command
    if isinstance(command, str):
        return one_line(command)
    words = command or []
    if len(words) == 3 and words[0] in SHELLS and words[1] in ("-c", "-lc"):
        return one_line(words[2])
    return one_line(shlex.join(words))


def file_changes(msg: Msg, workdir: str) -> str:
    """Returns the changed files (`add a.txt`), relative to `workdir`."""
    root = workdir.rstrip("/") + "/"
    parts = []
    for path, change in (msg.changes or {}).items():
        verb = next((key for key in change if key in VERBS), "change")
        parts.append(f"{verb} {path.removeprefix(root) if workdir else path}")
    return one_line(", ".join(parts))


def mcp_call(msg: Msg) -> str:
    called = msg.invocation
    return one_line(f"{called.server}.{called.tool}" if called else "")


def plan_steps(msg: Msg) -> str:
    """Returns steps like `read (completed), write (in progress)`."""
    return one_line(", ".join(f"{step.step} ({step.status.replace('_', ' ')})" for step in msg.plan or ()))


def with_reason(text: str, reason: str | None) -> str:
    return one_line(f"{text} ({reason})" if reason else text)


# --- the activities ----------------------------------------------------------------------------


class _Running(msgspec.Struct, eq=False):
    """An activity without its end. `own`: its id in events."""

    own: str
    call_id: str
    kind: ActivityKind
    line: str


class Activities:
    """Converts a turn's activities to items, whose events it appends to `events`. An event whose call id is unknown is
    about the only running activity of its kind: the child may share call ids, rename calls, or leave ids out.
    """

    def __init__(self, events: list[Event]) -> None:
        self.workdir = ""
        self._events = events
        self._count = 0
        self._running: dict[str, _Running] = {}
        """The running activities by their ids in events."""
        self._begun: set[tuple[str, str, str]] = set()
        """The kind, call id and line of each running activity that has a call id."""
        self._ended: set[str] = set()
        """The call ids of ended activities."""
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def handle(self, event: str, msg: Msg) -> None:
        if event in START_EVENTS:
            kind, describe = START_EVENTS[event]
            line = describe(msg, self.workdir)
            begun = (kind, msg.call_id, line)
            if begun in self._begun:
                return
            own = self._start(kind, line)
            if len(self._running) < MAX_OPEN_ITEMS:  # beyond it the turn fails
                self._running[own] = _Running(own, msg.call_id, kind, line)
                self._begun.update([begun] if msg.call_id else ())
        elif event in END_EVENTS:
            kind, has_succeeded = END_EVENTS[event]
            self._finish(self._find(msg.call_id, kind), has_succeeded(msg))
        elif event in WHOLE_EVENTS:
            kind, describe = WHOLE_EVENTS[event]
            self._events.append(ItemEnded(self._start(kind, describe(msg, self.workdir))))
        else:
            self._add_output(msg.call_id, msg.chunk or "")

    def _find(self, call_id: str, kind: ActivityKind) -> _Running | None:
        """Returns the first running activity with this call id, else the only one of its kind."""
        of_kind = [each for each in self._running.values() if each.kind == kind]
        found = next((each for each in of_kind if each.call_id == call_id), None)
        if found is None and call_id not in self._ended and len(of_kind) == 1:
            return of_kind[0]
        return found

    def _add_output(self, call_id: str, chunk: str) -> None:
        """Appends a base64 chunk, which may cut a character; bad base64 becomes a `Notice`."""
        running = self._find(call_id, "command")
        if running is None:
            return
        item = running.own
        decoder = self._decoders.get(item)
        if decoder is None:
            decoder = self._decoders[item] = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            text = decoder.decode(base64.b64decode(chunk))
        except (binascii.Error, ValueError):
            self._events.append(Notice("bad_output_chunk"))
            return
        if text:
            self._events.append(OutputDelta(item, text))

    def _finish(self, running: _Running | None, succeeded: bool) -> None:
        if running is not None:
            del self._running[running.own]
            self._begun.discard((running.kind, running.call_id, running.line))
            if running.call_id:
                self._ended.add(running.call_id)
            self._decoders.pop(running.own, None)
            self._events.append(ItemEnded(running.own, "completed" if succeeded else "failed"))

    def _start(self, kind: ActivityKind, line: str) -> str:
        item = f"a{self._count}"
        self._count += 1
        self._events.append(ItemStarted(Activity(item, kind, line)))
        return item


def _mcp_succeeded(msg: Msg) -> bool:
    answer = msg.result.Ok if msg.result else None
    return answer is not None and not answer.isError


Describe: TypeAlias = Callable[[Msg, str], str]
"""Returns one line that describes an activity, given the agent's folder."""

START_EVENTS: Final[Mapping[str, tuple[ActivityKind, Describe]]] = {
    "exec_command_begin": ("command", lambda msg, workdir: command_line(msg)),
    "patch_apply_begin": ("file_change", file_changes),
    "mcp_tool_call_begin": ("mcp_call", lambda msg, workdir: mcp_call(msg)),
}
END_EVENTS: Final[Mapping[str, tuple[ActivityKind, Callable[[Msg], bool]]]] = {
    "exec_command_end": ("command", lambda msg: msg.exit_code == 0),
    "patch_apply_end": ("file_change", lambda msg: bool(msg.success)),
    "mcp_tool_call_end": ("mcp_call", _mcp_succeeded),
}
"""The kind of activity that ends, and whether it has succeeded."""
WHOLE_EVENTS: Final[Mapping[str, tuple[ActivityKind, Describe]]] = {
    "web_search_end": ("web_search", lambda msg, workdir: one_line(msg.query or "")),
    "plan_update": ("plan", lambda msg, workdir: plan_steps(msg)),
    "view_image_tool_call": ("image", lambda msg, workdir: one_line(msg.path or "")),
}
"""Activities that the agent reports when they are over: before that a search has no query."""
ACTIVITY_EVENTS: Final = ("exec_command_output_delta", *START_EVENTS, *END_EVENTS, *WHOLE_EVENTS)
