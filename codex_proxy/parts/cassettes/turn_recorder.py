"""Records a running turn in memory: its agent's events, this server's replies and calls, and its end. They are encoded
after the turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.dialect import ToolReply
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import VISIBLE_OUTPUT, Event, InputTaken, Stop, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.file_lines import Line, ReplyLine
from codex_proxy.parts.cassettes.folder_files import ChangedFile, RecordedFolder
from codex_proxy.parts.cassettes.player import PlayedSession
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.tools.policy import ToolOutput

MAX_BYTES: Final = 64 << 20
"""Maximum bytes of a turn; a larger one is not recorded."""

Entry = tuple[float, str, Any]
"""A time, and the kind and value of a `Line`."""


class CassetteSessionRecorder:
    """Records a session, which may serve several turns, as an `agents.sessions.session.SessionRecorder`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """The entries since the last turn."""
        self.size = 0
        self.last: CassetteTurnRecorder | None = None

    def on_step(self, act: str, given: Sequence[Any], events: Sequence[Event], size: int) -> None:
        now = time.monotonic()
        if act in ("begin", "resume", "reopen"):
            self.entries.clear()  # nobody got what came since the turn before
            self.entries.append((now, "session", act))
        elif act == "answer":
            self.entries.append((now, "reply", _reply_line(*given)))
        if events:
            self.entries.append((now, "events", tuple(events)))  # the list is used again
        self.size += size
        if self.size > MAX_BYTES:
            self.entries.clear()


def _reply_line(request_id: str, reply: Any) -> ReplyLine:
    if isinstance(reply, ToolReply):
        return ReplyLine(request_id, msgspec.to_builtins(reply.parts), reply.success)
    return ReplyLine(request_id, approve=reply.approve)


class CassetteTurnRecorder:
    """Records one turn, as a `runs.observers.TurnRecorder`."""

    def __init__(
        self,
        turn: Turn,
        agent: Agent,
        first: Sequence[Event],
        on_end: Callable[[], None],
        files: RecordedFolder | None = None,
    ) -> None:
        """`files`: the folder whose changes are recorded, if they are."""
        self.turn = turn
        self.agent = agent
        self.first = tuple(first)
        self.began = time.monotonic()
        self.parts: list[list[Entry]] = []
        self.after: CassetteTurnRecorder | None = None
        """The turn before this one in its first session."""
        self.order = 1
        self.name = ""
        self.on_written: Callable[[Path], None] = lambda _: None
        self.end: TurnEnded | None = None
        self.size = 0
        self.changed: Sequence[ChangedFile] = ()
        """What the turn has done to files."""
        self._files = files
        self._on_end = on_end
        self._current: CassetteSessionRecorder | None = None

    def settle(self, end: TurnEnded) -> Sequence[Coroutine[Any, Any, None]]:
        if self._files is None or end.stop == Stop.INTERRUPTED:  # such a turn is not recorded
            return []
        return [self._look_for_changes(self._files)]

    async def _look_for_changes(self, files: RecordedFolder) -> None:
        self.changed = await files.changes()
        self.size += sum(len(each.content_after) for each in self.changed)

    def on_session(self, session: AgentSession) -> None:
        self._take()
        if self.parts and not _has_output(self.parts[-1]):
            self.parts.pop()  # its process had ended: the turn began again
        if isinstance(session, PlayedSession):
            return  # it was recorded before
        recorder = session.recorder
        if not isinstance(recorder, CassetteSessionRecorder):
            recorder = session.recorder = CassetteSessionRecorder()
        if recorder.last is not None and recorder.last._current is recorder:
            recorder.last._take()  # its client has sent the outputs before the turn's end was logged
        if recorder.last is not None and not self.parts:
            self.after, self.order = recorder.last, recorder.last.order + 1
        recorder.last = self
        self._current = recorder

    def _take(self) -> None:
        if self._current is not None:
            recorder, self._current = self._current, None
            self.parts.append(recorder.entries)
            self.size += recorder.size
            recorder.entries, recorder.size = [], 0

    async def prepare(self, runner: ToolRunner | None) -> ToolRunner | None:
        if self._files is not None:
            await self._files.look()
        return None if runner is None else _RecordedRunner(runner, self)

    def on_call(self, tool: Tool, arguments: str, output: ToolOutput) -> None:
        value = {"tool": tool.name, "arguments": arguments, "output": msgspec.to_builtins(output)}
        if self._current is not None:
            self._current.entries.append((time.monotonic(), "call", value))
        else:
            self.parts.append([(time.monotonic(), "call", value)])

    def on_failure(self, failure: Failure) -> None:
        if self._current is not None:
            self._current.entries.append((time.monotonic(), "failed", failure))

    def on_end(self, end: TurnEnded) -> None:
        self.end = end
        self._take()
        self._on_end()

    def forget(self) -> None:
        """Lets go of what is no longer needed: the session keeps its newest turn."""
        self.parts.clear()
        self.changed = ()
        self.after = None

    @property
    def took_input(self) -> bool:
        """Whether its client said more while it ran, which no request of a replay would say."""
        said = (
            event for part in self.parts for _, kind, value in part if kind == "events" for event in value
        )
        return any(isinstance(event, InputTaken) for event in said)

    def lines(self) -> list[Line]:
        return [
            Line(max(0, round((at - self.began) * 1000)), kind, value)
            for part in self.parts
            for at, kind, value in part
        ]


def _has_output(part: Sequence[Entry]) -> bool:
    """Whether a session has said something, or has calls alone."""
    said = (type(event) for _, kind, value in part if kind == "events" for event in value)
    return part[:1] == [] or part[0][1] == "call" or not VISIBLE_OUTPUT.isdisjoint(said)


class _RecordedRunner:
    def __init__(self, runner: ToolRunner, recorder: CassetteTurnRecorder) -> None:
        self._runner = runner
        self._recorder = recorder

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        output = await self._runner.run(tool, arguments)
        self._recorder.on_call(tool, arguments, output)
        return output
