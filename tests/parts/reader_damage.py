"""What may become of the bytes that a child prints, and what has to come out all the same: the readers of children,
each with its recordings, and the damages.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from codex_proxy.agents.dialect import Dialect, Ended
from codex_proxy.agents.sessions.session import LineFramer, LineTooLong
from codex_proxy.core.events import Event, Notice, Stop, TextDelta, TurnEnded
from codex_proxy.core.repair import TurnRepair
from codex_proxy.parts.acp.messages import ToolsSettled
from tests.agents import app_server_replayer, proto_child
from tests.agents.app_server_replayer import Line
from tests.parts.acp import replayer as acp_replayer
from tests.parts.claude_code import replayer as claude_code_replayer

HALF, OTHER_HALF = "\ud83d", "\ude00"
KILLED: Final = Ended(signal=9, stderr_tail="Killed")


class Outcome(NamedTuple):
    """What a client learns of a turn. `stop` is None while it waits; `told` are the codes of notices."""

    text: str
    stop: str | None
    told: tuple[str, ...] = ()


def outcome_of(events: Sequence[Event]) -> Outcome:
    log = TurnRepair().feed(list(events))
    end = next((event.stop for event in log if isinstance(event, TurnEnded)), None)
    return Outcome(
        "".join(event.text for event in log if isinstance(event, TextDelta)),
        end,
        tuple(event.code for event in log if isinstance(event, Notice)),
    )


def failed_if(lost: str, outcome: Outcome) -> Outcome:
    """The outcome of a turn whose process fails its turns if a line was lost."""
    return outcome._replace(stop=Stop.FAILED) if lost else outcome


def framed(parts: Sequence[Any], limit: int | None = None) -> Iterator[Any]:
    """The lines in what a child prints, as the transports cut them; parts that are no bytes stay where they are. A line
    that is too long ends the reading: a transport fails the turn then.
    """
    framer = LineFramer() if limit is None else LineFramer(limit)
    for part in parts:
        if not isinstance(part, bytes):
            yield part
            continue
        try:
            yield from framer.feed(part)
        except LineTooLong as fault:
            yield from fault.before
            return
    if rest := framer.close():
        yield rest


# --- the readers ------------------------------------------------------------------------------------


def _play(dialect: Dialect[Any], lines: Iterator[Any], *, dies: bool) -> Outcome:
    events: list[Event] = []
    for line in lines:
        events += dialect.receive([line]).events
    if dies:
        events += dialect.eof(KILLED).events
    return outcome_of(events)


def _codex_proto(name: Any, lines: Iterator[Any], *, dies: bool) -> Outcome:
    return _play(proto_child.begin_turn(extended=True), lines, dies=dies)


def _claude_code(name: Any, lines: Iterator[Any], *, dies: bool) -> Outcome:
    return _play(claude_code_replayer.begin_turn(name), lines, dies=dies)


def _app_server(name: Any, lines: Iterator[Any], *, dies: bool) -> Outcome:
    given = [Line("out", line) if isinstance(line, bytes) else line for line in lines]
    turn = app_server_replayer.recorded_turn(app_server_replayer.lines_of_recording(name), 0)
    played = app_server_replayer.play(given, turn)
    if dies:
        played.take_step(played.turn.eof(KILLED))
    return failed_if(played.lost, outcome_of(played.events))


PROMPT_ID = b'"@prompt"'


def _acp(turn: Any, lines: Iterator[Any], *, dies: bool) -> Outcome:
    name, nth, _ = turn
    tools = acp_replayer.TOOLS if "client_tool" in name else ()
    played = acp_replayer.begin_and_open(name, nth, tools=tools, unconfined=True)
    prompt = str(played.last_request("session/prompt")["id"]).encode()
    for line in lines:
        played.receive([line.replace(PROMPT_ID, prompt) if isinstance(line, bytes) else line])
        if tools:
            played.receive([ToolsSettled(last=True)])
            if played.turn.can_resume and played.waits_for_outputs:
                acp_replayer.give_outputs(played)
    if dies:
        played.take(played.turn.eof(KILLED))
    return failed_if(played.lost, outcome_of(played.events))


def _acp_parts(turn: Any) -> list[Any]:
    return [
        json.dumps(message if "method" in message else {**message, "id": "@prompt"}).encode() + b"\n"
        if isinstance(message, dict)
        else message
        for message in acp_replayer.messages_of(*turn)
    ]


def _app_server_parts(name: Any) -> list[Any]:
    """Answers keep their place among the lines of the client: the replayer finds them by their ids."""
    return [
        line.data + b"\n" if line.dir == "out" and "method" in line.json else line
        for line in app_server_replayer.lines_of_recording(name)
    ]


class Reader(NamedTuple):
    """A reader of children: its recordings (`turns`), what a child prints in one, and how the turn comes out."""

    turns: Sequence[Any]
    parts_of: Callable[[Any], Sequence[Any]]
    play: Callable[..., Outcome]


def _lines(lines: Sequence[bytes]) -> list[bytes]:
    return [line + b"\n" for line in lines]


READERS: Final[dict[str, Reader]] = {
    "codex proto": Reader(list(proto_child.ALL), lambda name: _lines(proto_child.ALL[name][0]), _codex_proto),
    "codex app-server": Reader(app_server_replayer.NAMES, _app_server_parts, _app_server),
    "claude code": Reader(
        claude_code_replayer.NAMES, lambda name: _lines(claude_code_replayer.output_lines(name)), _claude_code
    ),
    "acp": Reader(
        [
            (name, nth, 0)
            for name in acp_replayer.NAMES
            for nth, session in enumerate(acp_replayer.sessions_of(name))
            if session.prompts
        ],
        _acp_parts,
        _acp,
    ),
}

# --- the damages ------------------------------------------------------------------------------------

Damage = Callable[[Sequence[Any]], Sequence[Any]]
TEXT_FIELDS: Final = frozenset({"text", "delta", "thinking", "message", "last_agent_message", "result"})


def each_line(change: Callable[[bytes], bytes]) -> Damage:
    """A damage of each line alone; `change` gets it without its end."""
    return lambda parts: [
        change(part.removesuffix(b"\n")) + b"\n" if isinstance(part, bytes) else part for part in parts
    ]


def with_field(json_text: bytes) -> Damage:
    """A field that nobody reads, first in each line of JSON: what a reader may stumble over."""
    return each_line(lambda line: b'{"zz":' + json_text + b"," + line[1:] if line[:2] == b'{"' else line)


def between(*lines: bytes) -> Damage:
    def add(parts: Sequence[Any]) -> Sequence[Any]:
        return [each for part in parts for each in (*(line + b"\n" for line in lines), part)]

    return add


def in_pieces(size: int) -> Damage:
    def cut(parts: Sequence[Any]) -> Sequence[Any]:
        return [
            piece
            for part in parts
            for piece in (
                [part[at : at + size] for at in range(0, len(part), size)]
                if isinstance(part, bytes)
                else [part]
            )
        ]

    return cut


def asks(line: bytes) -> bool:
    """Whether the child waits for an answer before it prints more."""
    return b'"id"' in line and b'"method"' in line


def joined_by(end: bytes) -> Damage:
    """Other ends of lines; those that come together come in one write."""

    def join(parts: Sequence[Any]) -> Sequence[Any]:
        out: list[Any] = []
        for part in parts:
            if isinstance(part, bytes) and out and isinstance(out[-1], bytes) and not asks(out[-1]):
                out[-1] = out[-1].removesuffix(b"\n") + end + part
            else:
                out.append(part)
        return out

    return join


HARMLESS: Final[dict[str, Damage]] = {
    "pieces of one byte": in_pieces(1),
    "pieces of seven bytes": in_pieces(7),
    "byte order marks": each_line(lambda line: b"\xef\xbb\xbf" + line),
    "CRLF": each_line(lambda line: line + b"\r"),
    "bare CR": joined_by(b"\r"),
    "progress before a line": each_line(lambda line: b"loading 10%\rloading 20%\r" + line),
    "blank lines": between(b"", b"  ", b"\t"),
    "noise": between(b"npm warn old lockfile", b"{not json", b"[]", b'"x"', b"\xff\xfe", b"null"),
    "noise of JSON": between(b"{}", b'{"level":"info","msg":"x"}', b'{"id":null}', b'{"type":null}'),
    "half of a pair in a field": with_field(rb'"\ud83d"'),
    "the other half in a field": with_field(rb'"x \ude00"'),
    "a name with half of a pair": with_field(rb'1,"\ud83d":2'),
    "no UTF-8 in a field": with_field(b'"\xff\xed\xa0\xbd"'),
    "NaN in a field": with_field(b"[NaN,Infinity,-Infinity]"),
    "numbers beyond range": with_field(b"[1e999,%d]" % (2**70)),
    "a control character in a text": with_field(b'"a\tb\x00"'),
    "a field twice": with_field(b'1,"zz":2'),
}
"""Damages after which the turn comes out as without them."""


def _change(value: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    if isinstance(value, dict):
        changed = {key: _change(each, change, key) for key, each in value.items()}
        return {key: each for key, each in changed.items() if each is not GONE}
    if isinstance(value, list):
        return [each for inner in value if (each := _change(inner, change)) is not GONE]
    return change(name, value)


GONE: Final = object()


def each_value(change: Callable[[str, Any], Any]) -> Damage:
    def changed(line: bytes) -> bytes:
        try:
            return json.dumps(_change(json.loads(line), change), separators=(",", ":")).encode()
        except ValueError:
            return line

    return each_line(changed)


def with_half(name: str, value: Any) -> Any:
    return value + HALF if name in TEXT_FIELDS and isinstance(value, str) and value else value


ADDRESSES: Final = frozenset(
    {
        *TEXT_FIELDS,
        "content",
        *("type", "method", "id", "jsonrpc", "msg", "params", "sessionId", "threadId", "turnId", "subtype"),
        *(
            "itemId",
            "request_id",
            "sessionUpdate",
            "update",
            "server_name",
            "tool_use_id",
            "parent_tool_use_id",
        ),
    }
)
"""Fields without which nobody can know what a line is about, and the words themselves."""
WORDS_OF_PROTOCOLS: Final = ADDRESSES - TEXT_FIELDS - {"content", "parent_tool_use_id", "subtype", "jsonrpc"}


OF_NO_TYPE: Final[list[Any]] = [True, [1], {"x": "y"}, None]
"""Values that no such field has; None: the field is missing."""


def with_other_address(line: bytes, chance: random.Random) -> bytes:
    """The line with one of the fields that say what and whose it is as another value, or without it."""
    message = json.loads(line)
    within, name = chance.choice(list(_addresses(message)))
    value = chance.choice(OF_NO_TYPE)
    if value is None:
        del within[name]
    else:
        within[name] = value
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _addresses(value: Any, depth: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    for name, inner in value.items() if isinstance(value, dict) and depth < 3 else ():
        if name in WORDS_OF_PROTOCOLS:
            yield value, name
        yield from _addresses(inner, depth + 1)


def rewritten(parts: Sequence[Any]) -> Sequence[Any]:
    """The parts with JSON as it is written when one of its values is changed."""
    return each_value(lambda _, value: value)(parts)
