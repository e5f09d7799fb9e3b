"""The items of a turn of `codex proto`: messages, reasoning and calls that are open, and what the agent does."""

from __future__ import annotations

import base64
import binascii
import codecs
import shlex
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from codex_proxy.agents.codex_proto.proto_lines import Msg
from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    ReasoningDelta,
    ReasoningKind,
    RefusalDelta,
    Stop,
    TextDelta,
)
from codex_proxy.core.items import (
    ActionDetails,
    Activity,
    ActivityKind,
    CallKind,
    Message,
    PlanStep,
    Reasoning,
    ToolCall,
    plan_of,
)
from codex_proxy.core.json_values import is_json
from codex_proxy.core.repair import MAX_OPEN_ITEMS
from codex_proxy.core.shown_text import one_line


class Messages:
    """The open messages: at most one for each `choice` (None if the child names none)."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.open: dict[int | None, str] = {}
        self.count = 0
        self.by_choice = False

    def add_delta(self, choice: int | None, text: str) -> str:
        """Adds a delta, and opens its message if needed. Returns the id of the message."""
        item = self.open.get(choice) or self._start(choice)
        self._events.append(TextDelta(item, text))
        return item

    def finish(self, choice: int | None, event: type[FullText | RefusalDelta], text: str) -> None:
        """Ends the message, and opens it if needed. `text`: the full text, from which `core.repair` later removes
        what was sent as deltas.
        """
        item = self.open.get(choice) or self._start(choice)
        del self.open[choice]
        self._events += (event(item, text), ItemEnded(item))

    def end_all(self) -> None:
        self._events.extend(map(ItemEnded, self.open.values()))
        self.open.clear()

    def drop_open(self) -> None:
        """Forgets the open messages: after a retry the child sends new ones."""
        self.open.clear()

    def _start(self, choice: int | None) -> str:
        item = self.open[choice] = f"m{self.count}"
        self.count += 1
        self.by_choice = self.by_choice or choice is not None
        self._events.append(ItemStarted(Message(item, choice)))
        return item


class ReasoningItems:
    """The open reasoning. The child writes the deltas of all summary parts, then each part's full text, with a section
    break before each.
    """

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._count = 0
        self.item = ""
        """The id of the open item, if any."""
        self._part = 0
        self._parts_with_deltas: set[int] = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def section_break(self) -> None:
        """Moves to the next summary part; after a full text, ends the item."""
        if self._has_full_text():
            self.end()
        elif self._part in self._parts_with_deltas:
            self._part += 1

    def add_delta(self, text: str, kind: ReasoningKind) -> None:
        """Adds a delta of raw reasoning, or of the current summary part."""
        if self._has_full_text():
            self.end()
        self._start()
        if kind == "raw":
            self._raw_deltas = True
            self._events.append(ReasoningDelta(self.item, text, 0, "raw"))
        else:
            self._parts_with_deltas.add(self._part)
            self._events.append(ReasoningDelta(self.item, text, self._part))

    def add_full_text(self, text: str, kind: ReasoningKind) -> None:
        """Adds a full text. Ignores raw text after deltas, and a summary part without deltas if another part had
        some: that part's deltas contain its text.
        """
        self._start()
        part = self._full_texts[kind]
        self._full_texts[kind] = part + 1
        if kind == "raw":
            if not self._raw_deltas:
                self._events.append(FullReasoning(self.item, text, part, "raw"))
        elif not self._parts_with_deltas or part in self._parts_with_deltas:
            self._events.append(FullReasoning(self.item, text, part))

    def end(self) -> None:
        """Ends the open item."""
        self._events.append(ItemEnded(self.item))
        self.drop_open()

    def drop_open(self) -> None:
        """Forgets the open item: after a retry the child begins another."""
        self.item = ""
        self._part = 0
        self._parts_with_deltas = set()
        self._raw_deltas = False
        self._full_texts = {"summary": 0, "raw": 0}

    def _has_full_text(self) -> bool:
        return any(self._full_texts.values())

    def _start(self) -> None:
        if not self.item:
            self.item = f"r{self._count}"
            self._count += 1
            self._events.append(ItemStarted(Reasoning(self.item)))


_Key = tuple[int | None, int | str]
_STOPS: dict[CallKind | None, Stop] = {
    None: Stop.STOP,
    "function": Stop.TOOL_CALLS,
    "custom": Stop.TOOL_CALLS,
    "legacy": Stop.FUNCTION_CALL,
}
LEGACY_INDEX = "function_call"
"""Stands for the index of a call that came as Chat's old `function_call`, which has none."""


class _OpenCall(msgspec.Struct):
    """A call whose arguments may still come. `id`: the child's."""

    item: str
    id: str | None
    name: str
    pieces: list[str] = []

    def ends_before(self, id: str, name: str, text: str) -> bool:
        """Whether a named piece with this id begins another call."""
        if id == self.id:
            return False
        said = "".join(self.pieces)
        return name != self.name or (is_json(said.encode(errors="replace")) and bool(text) and text != said)


class Calls:
    """The open calls, by choice (or None) and index. Only the fake agent makes calls; it names each in the first piece.
    A call without an id gets one with a number, counted on from `earlier_calls`; one with the id of another a new id.
    A named piece with another id than the open call's begins another call if that is complete, or has another name.
    """

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.open: dict[_Key, _OpenCall] = {}
        self._given: set[tuple[int | None, str]] = set()
        self._count = 0
        self.earlier_calls = 0
        """The calls in the turn's history."""
        self.last_kind: CallKind | None = None

    @property
    def stop(self) -> Stop:
        return _STOPS[self.last_kind]

    def add(
        self,
        key: _Key,
        call_id: str | None,
        name: str | None,
        kind: CallKind,
        event: type[ArgumentsDelta | FullArguments],
        text: str,
    ) -> None:
        """Adds an event with a text, and opens the call if needed. A call may come in pieces, whole, or both."""
        call = self.open.get(key)
        if call is not None and name and call_id and call.ends_before(call_id, name, text):
            self._events.append(ItemEnded(self.open.pop(key).item))
            call = None
        if call is None:
            if not name:
                self._events.append(Notice("nameless_call"))
                return
            call = self._open(key, call_id, name, kind)
        if text:
            if event is ArgumentsDelta:
                call.pieces.append(text)
            self._events.append(event(call.item, text))

    def end_all(self) -> None:
        for call in self.open.values():
            self._events.append(ItemEnded(call.item))
        self.open.clear()

    def drop_open(self) -> None:
        """Forgets the open calls: after a retry the child sends them again."""
        self.open.clear()

    def _open(self, key: _Key, call_id: str | None, name: str, kind: CallKind) -> _OpenCall:
        given = call_id or f"call_{self.earlier_calls + self._count}"
        own = f"{given}_{self._count}" if (key[0], given) in self._given else given
        self._given.add((key[0], own))
        call = self.open[key] = _OpenCall(f"c{self._count}", call_id, name)
        self._count += 1
        self.last_kind = kind
        self._events.append(ItemStarted(ToolCall(call.item, own, name, kind, key[0])))
        return call


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
            plan = plan_of((each.step, each.status) for each in msg.plan or ())
            self._events.append(ItemEnded(self._start(kind, describe(msg, self.workdir), plan)))
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

    def _start(self, kind: ActivityKind, line: str, plan: tuple[PlanStep, ...] = ()) -> str:
        item = f"a{self._count}"
        self._count += 1
        details = ActionDetails(plan=plan) if plan else None
        self._events.append(ItemStarted(Activity(item, kind, line, details=details)))
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
