"""The agent that replays the cassettes of a folder, and the MCP tools of recorded turns. No process, no network."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.admission.admit import McpRequest, ServerTools
from codex_proxy.agents.agent import Agent, AgentInFront
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import Event, ItemEnded, ItemStarted
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import McpOrigin, McpTools, Tool
from codex_proxy.core.options import Capability
from codex_proxy.core.safety import ProtectedPath
from codex_proxy.core.tool_names import ToolServerState
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.content import (
    CONTENT_FIELDS,
    MATCHED_FIELDS,
    MAX_DIFFERENCES,
    Content,
    common_prefix_length,
    content_of,
    differences,
    has_placeholders,
    key_of,
)
from codex_proxy.parts.cassettes.file_lines import Line, parts_of
from codex_proxy.parts.cassettes.format import SUFFIX, Cassette, read
from codex_proxy.parts.cassettes.player import (
    Pace,
    PlayedSession,
    WriteFiles,
    invalid,
    make_played_session,
    sessions_of,
)
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.parts.cassettes.written_files import prepare_files
from codex_proxy.runs.observers import RequestRecorder, TurnRecorder
from codex_proxy.surfaces.responses.tools import McpOffer
from codex_proxy.tools.policy import ToolOutput


def names_to_match(text: str) -> tuple[str, ...]:
    """Returns the fields that `--match` names. Raises `CassetteError` for an unknown one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in CONTENT_FIELDS]
    if wrong:
        raise CassetteError(f"--match {wrong[0]} is not known. Name some of {', '.join(CONTENT_FIELDS)}.")
    return names


def paths_in(folder: Path) -> list[Path]:
    """Returns the files of cassettes in and below a folder, sorted. Raises `CassetteError` without the folder."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise CassetteError(
            f"There is no folder {folder}. Record into it first, with `codex-proxy serve --record {folder}`."
        )
    found, left = list[Path](), [str(folder)]
    try:
        while left:  # not by `rglob`, which calls itself for each folder
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIX):
                        found.append(Path(entry.path))
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    except OSError as error:
        raise CassetteError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return sorted(found)


class Folder:
    """The cassettes of a folder, read at the start; `refresh` reads those recorded since."""

    def __init__(self, path: Path, matched: Sequence[str] = (), *, may_be_missing: bool = False) -> None:
        """Reads the folder. `matched`: the fields by which a cassette is found; if empty, those that the recording
        names. Raises `CassetteError` if the folder is missing (unless it may be), or a
        cassette cannot be read.
        """
        self._may_be_missing = may_be_missing
        self.path = path
        self.matched = tuple(matched)
        self.cassettes: dict[str, Cassette] = {}
        """The cassettes by name, in order."""
        self._by_key: dict[bytes, list[str]] = defaultdict(list)
        self._played: dict[bytes, int] = defaultdict(int)
        self.refresh()

    def refresh(self) -> None:
        """Reads new cassettes."""
        base = self.path if self.path.is_dir() else self.path.parent
        paths = () if self._may_be_missing and not self.path.exists() else paths_in(self.path)
        names = {str(path.relative_to(base)).removesuffix(SUFFIX): path for path in paths}
        new = [name for name in names if name not in self.cassettes]
        for name in new:
            cassette = read(names[name])
            beside, _, _ = name.rpartition("/")
            after = f"{beside}/{cassette.after}" if beside and cassette.after else cassette.after
            self.cassettes[name] = msgspec.structs.replace(cassette, name=name, after=after)
        if not self.matched:
            recorded = {tuple(each.match) for each in self.cassettes.values() if each.match}
            self.matched = recorded.pop() if len(recorded) == 1 else MATCHED_FIELDS
        for name in new:
            self._by_key[key_of(self.cassettes[name].content, self.matched)].append(name)

    def chain(self, cassette: Cassette) -> list[Cassette]:
        """Returns the cassette, behind those in the folder whose session it continues."""
        found = [cassette]
        while found[0].after and found[0].after in self.cassettes and len(found) <= len(self.cassettes):
            found.insert(0, self.cassettes[found[0].after])
        return found

    def find(self, content: Content) -> Cassette | None:
        """Returns the next recording of a turn with this content, or the last one again after all were used; None
        without any.
        """
        key = key_of(content, self.matched)
        names = self._by_key.get(key) or [
            name
            for name, each in self.cassettes.items()
            if has_placeholders(each.content) and not differences(content, each.content, self.matched)
        ]
        if not names:
            return None
        nth = self._played[key]
        self._played[key] += 1
        return self.cassettes[names[min(nth, len(names) - 1)]]

    def describe_miss(self, content: Content) -> str:
        """Returns the error for a turn that no cassette answers: the nearest one, and the differences."""
        if not self.cassettes:
            return f"No cassette answers this request: {self.path.name} has none. Record it with --record-missing."
        text = _last_text(content)

        def distance(cassette: Cassette) -> tuple[int, int]:
            wrong = differences(content, cassette.content, self.matched)
            return len(wrong), -common_prefix_length(text, _last_text(cassette.content))

        nearest = min(self.cassettes.values(), key=distance)
        wrong = differences(content, nearest.content, self.matched)
        shown = "; ".join(map(str, wrong[:MAX_DIFFERENCES]))
        more = f"; and {len(wrong) - MAX_DIFFERENCES} more" if len(wrong) > MAX_DIFFERENCES else ""
        return (
            f"No cassette answers this request. The nearest is {nearest.name}, which differs in {shown}{more}. "
            "Record the request with --record-missing, or name in --match only what must be equal."
        )


def _last_text(content: Content) -> bytes:
    return str((content["messages"] or [{}])[-1].get("text", "")).encode("utf-8", "replace")


log = structlog.get_logger(__name__)

NAME: Final = "replay"


class ReplayedTurn(msgspec.Struct):
    """A turn that a cassette answers."""

    requested: Turn
    """The turn as the client asks for it, without remembered items."""
    name: str = ""
    """The cassette that the request names; empty: it is found by content."""
    cassette: Cassette | None = None
    sessions: list[list[Line]] = []
    """The cassette's sessions that were not played yet."""
    write_files: WriteFiles | None = None
    """Writes the cassette's files."""
    calls: list[dict[str, Any]] = []
    """The cassette's recorded calls that were not made yet."""


REPLAYED_TURN: ContextVar[ReplayedTurn | None] = ContextVar("replayed_turn", default=None)
"""The turn that is starting or running."""


class ReplayedRequest:
    """Notes each turn of a request before it starts, and passes it to `recording`, if any. Implements
    `runs.observers.RequestRecorder`.
    """

    def __init__(self, name: str, recording: RequestRecorder | None) -> None:
        """`name`: the cassette that the request asks for, if any."""
        self._name = name
        self._recording = recording

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnRecorder | None:
        REPLAYED_TURN.set(ReplayedTurn(turn, self._name))
        return None if self._recording is None else self._recording.turn(turn, agent, first)

    def on_final_object(self, body: bytes) -> None:
        if self._recording is not None:
            self._recording.on_final_object(body)


def pace_of(text: str) -> Pace:
    """Returns the pace for `--pace`: `none`, `recorded`, or a factor. Raises `ValueError`."""
    if text in ("none", ""):
        return lambda _: 0.0
    factor = 1.0 if text == "recorded" else float(text)
    if not 0 < factor < 1e6:
        raise ValueError(text)
    return lambda seconds: seconds / factor


class ReplayAgent(AgentInFront):
    """An `Agent` that plays a folder of cassettes; `missing` gets the turns without one."""

    name = NAME
    version = ""
    any_model = True

    def __init__(
        self,
        folder: Folder,
        pace: Pace,
        missing: Agent | None = None,
        flush: Callable[[], Awaitable[None]] | None = None,
        protected: Sequence[ProtectedPath] | None = None,
    ) -> None:
        """`flush` comes with `missing`: it waits until the turns of that agent are in the folder. `protected`: paths
        whose folders no files are written to; None: none are written at all.
        """
        super().__init__()
        self.folder = folder
        self.missing = missing
        self._protected = protected
        self._pace = pace
        self._flush = flush
        self._last: Turn | None = None

    @property
    def _agent(self) -> Agent | None:
        return self.missing

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of all recorded agents together, but those that need the agent itself."""
        recorded: set[Any] = {name for each in self.folder.cassettes.values() for name in each.capabilities}
        if self.missing is not None:
            recorded |= self.missing.capabilities
        return frozenset(recorded - {"forwarding", "stored_sessions"})

    async def start(self) -> None:
        if self.missing is not None:
            await self.missing.start()

    async def open(self, turn: Turn) -> AgentSession:
        replayed = REPLAYED_TURN.get() or ReplayedTurn(turn)
        if not replayed.sessions:
            cassette = await self._cassette(replayed)
            if cassette is None:
                assert self.missing is not None
                return await self.missing.open(turn)
            try:
                replayed.write_files = await self._files(cassette, turn)
            except Fault as fault:
                if self.missing is None or fault.failure.kind != FaultKind.CONFLICT:
                    raise
                return await self.missing.open(turn)
            replayed.cassette, replayed.calls = cassette, cassette.calls
            replayed.sessions = _sessions_of(cassette)
            self._last = replayed.requested
        assert replayed.cassette is not None
        lines, is_last = replayed.sessions.pop(0), not replayed.sessions
        write_files = replayed.write_files if is_last else None
        return make_played_session(
            replayed.cassette, lines, turn, self._pace, is_last=is_last, write_files=write_files
        )

    async def _files(self, cassette: Cassette, turn: Turn) -> WriteFiles | None:
        if self._protected is None:
            return None
        return await prepare_files(cassette, turn, self._protected, self.folder.path)

    def take_last(self) -> Turn | None:
        """Returns the last turn that a cassette has answered since the last call, as asked."""
        turn, self._last = self._last, None
        return turn

    async def _cassette(self, turn: ReplayedTurn) -> Cassette | None:
        if turn.name:
            found = self.folder.cassettes.get(turn.name)
            if found is None:
                raise _fault(f"There is no cassette {turn.name} in {self.folder.path.name}.")
            requested = turn.requested
            offered = {
                *(tool.name for tool in requested.tools),
                *(requested.hosted.tools if requested.hosted else ()),
            }
            lacking = [each["name"] for each in found.content["tools"] if each["name"] not in offered]
            if lacking:
                raise _fault(
                    f"The cassette {turn.name} needs the tool {lacking[0]}, which the request lacks."
                )
            return found
        content = content_of(turn.requested)
        cassette = self.folder.find(content)
        if cassette is None and self._flush is not None:
            await self._flush()
            self.folder.refresh()
            return self.folder.find(content)
        if cassette is None:
            raise _fault(self.folder.describe_miss(content))
        return cassette

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        if isinstance(session, PlayedSession):
            await session.transport.release(finished=finished)
        elif self.missing is not None:
            await self.missing.release(session, finished=finished)


def _sessions_of(cassette: Cassette) -> list[list[Line]]:
    found = sessions_of(cassette.lines)
    if not found:
        raise Fault(invalid(cassette.name, "it has no session with an agent"))
    return found


def _fault(message: str) -> Fault:
    return Fault(Failure(kind=FaultKind.INVALID_REQUEST, code="cassette_missing", message=message))


class RecordedTools:
    """The MCP tools of cassettes, in place of their servers. Implements `admission.admit.ToolSource`."""

    def __init__(self, folder: Folder, new_id: Callable[[str], str]) -> None:
        self.states: tuple[ToolServerState, ...] = ()
        self._new_id = new_id
        self._listed: dict[str, dict[str, tuple[Tool, Any]]] = {}
        """The tools of each server that a request has named, as listed for the client."""
        self._operators: dict[str, Tool] = {}
        for cassette in folder.cassettes.values():
            for value in cassette.mcp:
                tool = _tool(value)
                assert tool.mcp is not None
                if value.get("listed"):
                    self._listed.setdefault(tool.mcp.server_label, {})[tool.name] = tool, value["listed"]
                else:
                    self._operators[tool.name] = tool
        self.has_operators = bool(self._operators)
        self._calls = [call for cassette in folder.cassettes.values() for call in cassette.calls]

    def check(self, offers: Sequence[McpOffer]) -> None:
        """Allows every server, since none is contacted."""

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        tools: list[Tool] = []
        lists: list[Event] = []
        for offer in request.offers:
            found = tuple(self._listed.get(offer.server.server_label, {}).values())
            tools += (tool for tool, _ in found)
            if offer.server.server_label not in request.known:
                id = self._new_id("mcpl_")
                told = msgspec.json.encode([entry for _, entry in found])
                lists += [ItemStarted(McpTools(id, offer.server.server_label, told)), ItemEnded(id)]
        return ServerTools(
            tools=tuple(tools),
            operator_tools=tuple(self._operators.values()) if operators else (),
            lists=tuple(lists),
            runner=self,
        )

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        """Returns the tool's next recorded output in the played cassette, else the recorded output of any call with
        the same arguments.
        """
        replayed = REPLAYED_TURN.get()
        own = [] if replayed is None else replayed.calls
        call = next((each for each in own if each["tool"] == tool.name), None)
        if call is not None:
            own.remove(call)
        else:
            call = next(
                (each for each in self._calls if (each["tool"], each["arguments"]) == (tool.name, arguments)),
                None,
            )
        if call is None:
            text = f"No cassette has a call of {tool.name} with these arguments."
            return ToolOutput(parts_of([{"text": text}]), text, failed=True)
        output = call["output"]
        return ToolOutput(parts_of(output["parts"]), output["text"], output.get("failed", False))


def _tool(value: dict[str, Any]) -> Tool:
    origin = msgspec.convert(value["mcp"], McpOrigin)
    parameters = value.get("parameters")
    raw = None if parameters is None else msgspec.Raw(msgspec.json.encode(parameters))
    return Tool(value["name"], value.get("description", ""), raw, mcp=origin)
