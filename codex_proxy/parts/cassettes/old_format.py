"""Reads cassettes of version 1, which have the lines of an agent: today's dialects read them, and their events are
played. Release 0.4 reads version 2 alone: this module goes then.

A file names no code: its dialects are those of `DIALECTS`, made from facts of their own types.
"""

from __future__ import annotations

import base64
import itertools
import pkgutil
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec

from codex_proxy.agents.dialect import Decision, Dialect, Ended, Step, ToolReply, TooMuchHeld
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.events import ApprovalRequested, InputRequested, ToolCallRequested
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, RawHistoryItem
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.turn import Turn
from codex_proxy.parts import absent_part_text, parts
from codex_proxy.parts.cassettes.content import Content, key_of
from codex_proxy.parts.cassettes.file_lines import (
    Line,
    McpCallLine,
    ReplyLine,
    ReplyParts,
    Status,
    UnplayableError,
    milliseconds_of,
    parts_of,
)
from codex_proxy.parts.cassettes.scrubbing import stable_id

DIALECTS: Final[Mapping[str, str]] = {
    "app-server": "codex_proxy.agents.codex_app_server.app_server_dialect:AppServerTurn",
    "proto": "codex_proxy.agents.codex_proto.proto_dialect:CodexProto",
    "exec": "codex_proxy.parts.cassettes.old_exec:CodexExec",
    "claude-code": "codex_proxy.parts.claude_code.claude_dialect:ClaudeCodeTurn",
    "acp": "codex_proxy.parts.acp.acp_dialect:AcpTurn",
    "chat": "codex_proxy.parts.upstream.openai_chat.chat_dialects:OpenAIChat",
    "responses": "codex_proxy.parts.upstream.openai_responses.responses_dialect:OpenAIResponses",
}
"""Dialects by their names in files."""
MAX_FACTS_BYTES: Final = 1 << 16
BYTE_KINDS: Final = frozenset({"to", "from", "data", "body"})
"""The kinds of lines with bytes of the agent; bytes that are no JSON stand in `KIND_text`, or in base64 in
`KIND_bytes`.
"""
KINDS: Final = frozenset(
    {
        *(f"{kind}{form}" for kind in BYTE_KINDS for form in ("", "_text", "_bytes")),
        *("head", "line", "over", "event"),
        *("begin", "resume", "reopen", "answer", "call", "ended", "failed"),
    }
)
UPSTREAM_KINDS: Final = frozenset({"head", "data", "line", "body", "over"})
"""The kinds of lines that are an upstream's answer."""


class OldLine(msgspec.Struct, frozen=True, gc=False):
    ms: int
    kind: str
    value: Any
    """The agent's line as bytes if the kind is in `BYTE_KINDS`, else the decoded JSON."""


class OldSession(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"dialect": "session"}
):
    """A session with the agent: its dialect's name and facts, and its lines."""

    dialect: str
    facts: dict[str, Any] = {}
    lines: list[OldLine] = []
    origin: str = ""
    """The name that marked its encrypted content, if any."""


class OldCassette(Protocol):
    """A `format.Cassette` of version 1."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def content(self) -> Content: ...
    @property
    def old_sessions(self) -> list[OldSession]: ...


# --- the file -------------------------------------------------------------------------------------


class OldSessions:
    """The sessions of a file, read so far. The methods raise `ValueError` or another error of decoding."""

    def __init__(self) -> None:
        self.sessions: list[OldSession] = []

    def add_session(self, line: bytes) -> None:
        session = msgspec.json.decode(line, type=OldSession)
        if session.dialect or session.facts:  # without an agent only MCP calls are recorded
            _class_of(session.dialect)
        elif session.origin:
            raise ValueError("a session has a dialect")
        check_facts(session.dialect, session.facts)
        self.sessions.append(session)

    def add_line(self, kind: str, content: Any, ms: msgspec.Raw) -> None:
        """Adds a line to its session. `kind` is without its form; `content`: what `content_of_line` has returned."""
        session = self.sessions[-1]
        _check_line(session.dialect, kind, content)
        session.lines.append(OldLine(milliseconds_of(ms), kind, content))


def content_of_line(kind: str, value: msgspec.Raw) -> tuple[str, Any]:
    """Returns a line's kind without its form, and its bytes or JSON."""
    base, _, form = kind.partition("_")
    if base not in BYTE_KINDS:
        return base, msgspec.json.decode(value)
    if not form:
        return base, bytes(value)
    text = msgspec.json.decode(value, type=str)
    return base, text.encode() if form == "text" else base64.b64decode(text, validate=True)


class _Answer(msgspec.Struct, frozen=True):
    to: str
    reply: dict[str, Any]


def _check_line(dialect: str, kind: str, value: Any) -> None:
    if not dialect and kind != "call":
        raise ValueError("a session without a dialect has calls alone")
    is_upstream = dialect in ("chat", "responses")
    if (
        (kind in UPSTREAM_KINDS and not is_upstream)
        or (kind == "from" and is_upstream)
        or (kind in ("event", "reopen") and dialect != "acp")
    ) and dialect:
        raise ValueError(f"the dialect {dialect} has no such line")
    if kind in ("head", "over", "event"):
        message = message_of_object(kind, value)
        if kind == "head":
            msgspec.convert(message.status, Status)
    elif kind == "answer":
        reply = msgspec.convert(value, _Answer).reply
        msgspec.convert(reply, ReplyParts if "parts" in reply else Decision)
    elif (of := _TYPES.get(kind)) is not None:
        msgspec.convert(value, of)


_TYPES: Final[Mapping[str, Any]] = {
    "line": str,
    "reopen": str,
    "begin": dict[str, Any],
    "resume": dict[str, Any],
    "call": McpCallLine,
    "ended": Ended,
    "failed": Failure,
}


# --- dialects -------------------------------------------------------------------------------------


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facts of a dialect: values, which name no code. By default there are none."""


class AppServerFacts(Facts, frozen=True):
    parallel_calls: bool = True


class ProtoFacts(Facts, frozen=True):
    extended: bool = False


class ClaudeCodeFacts(Facts, frozen=True):
    takes_mark: bool = True


class UpstreamFacts(Facts, frozen=True):
    model: str | msgspec.UnsetType = msgspec.UNSET
    refused: Annotated[list[str], msgspec.Meta(max_length=100)] = []


class ChatFacts(UpstreamFacts, frozen=True):
    reasoning_back: str = ""


def _code_of(reference: str) -> Any:
    """Returns code of an agent. Raises `ValueError` if the agent's part is absent."""
    try:
        return pkgutil.resolve_name(reference)
    except ModuleNotFoundError as error:
        part = reference.removeprefix("codex_proxy.parts.").partition(".")[0]
        if part in {each.name for each in parts()}:
            raise
        raise ValueError(f"its agent is of {absent_part_text(part)}. Record the turn anew") from error


def _acp(name: str) -> Any:
    return _code_of(f"codex_proxy.parts.acp.{name}")


def _acp_facts() -> Any:
    declared, usage = _acp("presets:DeclaredFeatures"), _acp("presets:UsageRule")
    fields: list[tuple[str, Any, Any]] = [
        ("usage", usage | None | msgspec.UnsetType, msgspec.UNSET),
        ("declared", declared, msgspec.field(default_factory=declared)),
        *((name, bool, False) for name in ("unconfined", "confined", "tools", "ahead", "alone")),
    ]
    return msgspec.defstruct(
        "AcpFacts", [("preset", str | _acp("presets:AcpPreset")), *fields], bases=(Facts,), frozen=True
    )


def _upstream(name: str) -> Any:
    return _code_of(f"codex_proxy.parts.upstream.{name}")


_FACTS: Final[Mapping[str, type[Facts]]] = {
    "app-server": AppServerFacts,
    "proto": ProtoFacts,
    "claude-code": ClaudeCodeFacts,
    "chat": ChatFacts,
    "responses": UpstreamFacts,
}
"""The types of facts by dialect; others have none, or are made when needed."""


def _class_of(name: str) -> type[Any]:
    if name not in DIALECTS:
        raise ValueError(f"there is no dialect {name[:100]!r}. If it is a plugin's, record the turn anew")
    found: type[Any] = _code_of(DIALECTS[name])
    return found


def check_facts(name: str, facts: Mapping[str, Any]) -> None:
    """Checks the facts of a dialect against their type. Raises `ValueError`."""
    kind = _acp_facts() if name == "acp" else _FACTS.get(name, Facts)
    try:
        if len(msgspec.json.encode(facts)) > MAX_FACTS_BYTES:
            raise ValueError(f"they are larger than {MAX_FACTS_BYTES >> 10} KiB")
        found: Any = msgspec.convert(facts, kind)
        if name == "acp":
            _check_preset(facts["preset"], found.preset)
    except UNREADABLE as error:
        raise ValueError(f"the facts of its dialect do not fit: {error}") from error


def _check_preset(given: Any, preset: Any) -> None:
    if isinstance(preset, str):
        if preset not in _acp("presets:PRESETS"):
            raise ValueError(f"there is no preset {preset[:100]!r}")
    elif unknown := given.keys() - set(type(preset).__struct_fields__):
        raise ValueError(f"a preset has no field {min(unknown)[:100]!r}")


def dialect_of(session: OldSession, chain: Sequence[OldCassette], turn: Turn) -> Dialect[Any]:
    """Makes the dialect of a session. Raises `UnplayableError`."""
    key, count = key_of(chain[0].content, ("messages", "tools")) if chain else b"", itertools.count(1)

    def new_id(prefix: str) -> str:
        return stable_id(prefix + "1", key, next(count))

    name, facts = session.dialect, dict(session.facts)
    try:
        check_facts(name, facts)
        kind = _class_of(name)
        if name == "app-server":
            found = kind(1, **facts)
        elif name == "acp":
            found = _acp_dialect(kind, facts, new_id)
        elif name in ("chat", "responses"):
            found = _upstream_dialect(kind, facts, turn.model, new_id)
        else:
            found = kind(**facts)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UnplayableError(f"its dialect {name!r} cannot be made ({error})") from error
    dialect: Dialect[Any] = found
    return dialect


def _acp_dialect(kind: type[Any], facts: dict[str, Any], new_id: Any) -> Any:
    named, presets = facts.pop("preset"), _acp("presets:PRESETS")
    preset = presets[named] if isinstance(named, str) else msgspec.convert(named, _acp("presets:AcpPreset"))
    preset = msgspec.structs.replace(preset, usage=facts.pop("usage", preset.usage))
    declared = msgspec.convert(facts.pop("declared", {}), _acp("presets:DeclaredFeatures"))
    program = _acp("presets:Program")(
        preset, declared, facts.pop("unconfined", False), facts.pop("confined", False)
    )
    servers = ({"name": "client"},) if facts.pop("tools", False) else ()
    return kind(1, program, new_id, servers=servers, **facts)


def _upstream_dialect(kind: type[Any], facts: dict[str, Any], model: str, new_id: Any) -> Any:
    model, refused = facts.pop("model", model), set(facts.pop("refused", ()))
    errors = _upstream("failures:ErrorReader")()
    return kind(model, _upstream("turn:UpstreamContext")(errors, refused, new_id, lambda: 0.0, **facts))


# --- messages -------------------------------------------------------------------------------------


def _message_of(name: str, line: bytes) -> Any:
    """Returns a line as the dialect reads it; None if its connection would drop it."""
    if name == "app-server":
        from codex_proxy.agents.codex_app_server.wire import decode

        return decode(line)
    if name == "acp":
        return _acp("messages:decode")(line)
    return line


def message_of_object(kind: str, value: Any) -> Any:
    """Returns a message that is no line. Raises `msgspec.ValidationError` or `KeyError`."""
    if kind == "head":
        return msgspec.convert(value, _upstream("stream:Head"))
    if kind == "over":
        return _upstream("stream:End")(None if value is None else msgspec.convert(value, Failure))
    fields = msgspec.convert(value, dict[str, Any])
    return msgspec.convert(fields, _event_types()[fields.pop("type")])


def _event_types() -> dict[Any, Any]:
    names = ("ToolsListed", "ToolCalled", "ToolsSettled", "ToolDropped", "ModelCallFailed")
    return {name: _acp(f"messages:{name}") for name in names}


class _Rpc(msgspec.Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None


def _rpc_of(line: bytes) -> tuple[Any, str | None]:
    """Returns the id and the method of a JSON-RPC message; None for what it lacks."""
    try:
        found = msgspec.json.decode(line, type=_Rpc)
    except UNREADABLE:
        return None, None
    return found.id, found.method


class LineReader:
    """Converts the lines of a session to messages for today's dialect. Ids of JSON-RPC are replaced by those of today's
    requests of the same method.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._is_rpc = dialect in ("app-server", "acp")
        self._waiting: dict[str, deque[Any]] = defaultdict(deque)
        """Recorded ids of requests that today's dialect has not made yet, by method."""
        self._today: dict[Any, Any] = {}
        self._recorded: set[Any] = set()

    def expect(self, lines: Iterable[OldLine]) -> None:
        """Notes the recorded requests in the lines of the session's next turn."""
        for line in lines:
            id, method = _rpc_of(line.value) if line.kind == "to" else (None, None)
            if id is not None and method is not None:
                self._waiting[method].append(id)
                self._recorded.add(id)

    def note_written(self, writes: bytes) -> None:
        """Notes the requests in bytes that today's dialect writes: its first request of a method takes the place of
        the first recorded one, whose answer then gets its id.
        """
        for line in writes.split(b"\n") if self._is_rpc else ():
            id, method = _rpc_of(line) if line else (None, None)
            if method is not None and id is not None and self._waiting[method]:
                self._today[self._waiting[method].popleft()] = id

    def message(self, line: OldLine) -> Any:
        """Returns a line as the dialect reads it; None if the dialect does not."""
        kind, value = line.kind, line.value
        if kind == "from":
            return self._message(value)
        if kind == "data":
            return b"data: " + value + b"\n\n"
        if kind == "line":
            return value.encode() + (b"\n\n" if value.startswith("data:") else b"\n")
        if kind == "body":
            return value
        if kind in ("head", "over", "event"):
            return message_of_object(kind, value)
        return None

    def _message(self, line: bytes) -> Any:
        message = _message_of(self._dialect, line)
        if not self._is_rpc or message is None or message.method is not None:
            return message
        if message.id not in self._recorded:
            return message  # it answers a request from before the recording, as for a session opened ahead
        id = self._today.get(message.id)
        return None if id is None else msgspec.structs.replace(message, id=id)


# --- as version 2 ---------------------------------------------------------------------------------


def as_events(chain: Sequence[OldCassette], turn: Turn) -> list[Line]:
    """Returns the lines that the last cassette of `chain`, which continues those before, has in version 2. `turn` has
    its content. Raises `UnplayableError`.
    """
    cassette, found = chain[-1], list[Line]()
    for session in cassette.old_sessions:
        if not session.dialect:
            found += [Line(line.ms, "call", line.value) for line in session.lines]
            continue
        act, _ = _act_of(session)
        if act == "resume" and len(chain) < 2:
            raise UnplayableError(
                f"it continues {cassette.after or 'another cassette'}, which is not in the folder"
            )
        reading = _Reading(session, dialect_of(session, chain, turn))
        if act == "resume":
            reading.read_earlier(chain, turn)
        try:
            found += reading.read(session, turn)
        except TooMuchHeld as error:
            raise UnplayableError(str(error)) from error
    return found


class _Reading:
    """Lets today's dialect read a session, and answers it as the server has done."""

    def __init__(self, session: OldSession, dialect: Dialect[Any]) -> None:
        self._dialect = dialect
        self._marks = OriginMarks(session.origin) if session.origin else None
        self._reader = LineReader(session.dialect)
        self._lines: list[Line] = []
        self._asked: list[str] = []
        """The calls that wait for an output."""

    def read_earlier(self, chain: Sequence[OldCassette], turn: Turn) -> None:
        """Reads the session's earlier turns."""
        name = chain[-1].old_sessions[0].dialect
        for left in range(len(chain) - 1, 0, -1):
            history = tuple(itertools.chain.from_iterable(_rounds(turn.history)[: -2 * left]))
            before = chain[-1 - left]
            if not before.old_sessions or before.old_sessions[-1].dialect != name:
                raise UnplayableError(f"it continues {before.name}, which has no session of this agent")
            self.read(before.old_sessions[-1], msgspec.structs.replace(turn, history=history))

    def read(self, session: OldSession, turn: Turn) -> list[Line]:
        """Returns the session of a turn as lines of version 2."""
        dialect, lines = self._dialect, session.lines
        self._reader.expect(lines)
        act, index = _act_of(session)
        new_items = tuple(itertools.chain.from_iterable(_rounds(turn.history)[-1:]))
        if act == "resume":
            self._read(lines[:index])
            lines = lines[index:]
        self._lines, self._asked = [Line(lines[0].ms if lines else 0, "session", act)], []
        if act == "begin":
            self._take(0, dialect.begin(turn))
        elif act == "resume":
            self._take(lines[0].ms, dialect.resume(turn, new_items))
        else:
            self._take(lines[index].ms, dialect.reopen(turn, lines[index].value, new_items))  # type: ignore[attr-defined]
        self._read(lines)
        return self._lines

    def _read(self, lines: Sequence[OldLine]) -> None:
        for line in lines:
            if line.kind == "answer":
                self._answer(line)
            elif line.kind == "ended":
                self._take(line.ms, self._dialect.eof(msgspec.convert(line.value, Ended)))
            elif line.kind == "failed":
                self._lines.append(Line(line.ms, "failed", msgspec.convert(line.value, Failure)))
            elif line.kind == "call":
                self._lines.append(Line(line.ms, "call", line.value))
            elif (message := self._reader.message(line)) is not None:
                self._take(line.ms, self._dialect.receive([message]))

    def _answer(self, line: OldLine) -> None:
        reply = line.value["reply"]
        if "parts" in reply and self._asked:  # others were given as soon as they were asked for
            to = line.value["to"] if line.value["to"] in self._asked else self._asked[0]
            self._asked.remove(to)
            parts, success = parts_of(reply["parts"]), reply.get("success", True)
            self._lines.append(Line(line.ms, "reply", ReplyLine(to, reply["parts"], success)))
            self._take(line.ms, self._dialect.answer(to, ToolReply(parts, success)))

    def _take(self, ms: int, step: Step) -> None:
        self._reader.note_written(step.writes)
        if not step.events:
            return
        events = list(step.events) if self._marks is None else self._marks.mark(step.events)
        self._lines.append(Line(ms, "events", events))
        for event in events:
            if isinstance(event, ApprovalRequested | InputRequested):
                self._lines.append(Line(ms, "reply", ReplyLine(event.request_id)))
                self._take(ms, self._dialect.answer(event.request_id, Decision(approve=False)))
            elif isinstance(event, ToolCallRequested):
                self._asked.append(event.request_id)


def _act_of(session: OldSession) -> tuple[str, int]:
    acts = ((line.kind, index) for index, line in enumerate(session.lines))
    return next((each for each in acts if each[0] in ("begin", "resume", "reopen")), ("begin", 0))


def _rounds(history: Sequence[HistoryItem]) -> list[list[HistoryItem]]:
    """Returns the items of the client and of the model alternately; the last are the client's."""
    rounds = [list(same) for _, same in itertools.groupby(history, _is_models)]
    if len(rounds) > 1 and _is_models(history[-1]):
        begun = rounds.pop()  # the client asks for the rest of an answer
        rounds[-1] += begun
    return rounds


def _is_models(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, HistoryCall | RawHistoryItem)
