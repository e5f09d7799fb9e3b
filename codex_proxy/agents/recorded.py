"""What recordings need to know of the dialects: the name of each, how one is made again to read a recording, and the
form in which its messages are written down.

A recording has the lines of an agent as they were, so that today's dialect reads them again. What is no line (the
parts of an HTTP answer, events of a tool server) is written as an object.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import UNREADABLE, Dialect

DIALECTS: Final[Mapping[str, str]] = {
    "app-server": "codex_proxy.agents.codex_app_server.dialect:AppServerTurn",
    "proto": "codex_proxy.agents.codex_proto.dialect:CodexProto",
    "exec": "codex_proxy.agents.codex_exec.dialect:CodexExec",
    "claude-code": "codex_proxy.agents.claude_code.dialect:ClaudeCodeTurn",
    "acp": "codex_proxy.agents.acp.dialect:AcpTurn",
    "chat": "codex_proxy.agents.openai_chat.dialect:OpenAIChat",
    "responses": "codex_proxy.agents.openai_responses.dialect:OpenAIResponses",
}
"""The name that each dialect has in recordings. The dialect of a plugin is recorded as `MODULE:CLASS`."""
_NAMES: Final = {reference: name for name, reference in DIALECTS.items()}

HEADERS: Final = ("content-type", "retry-after", "x-ratelimit-", "x-should-retry")
"""The beginnings of the names of those headers of an upstream's answer that are recorded."""


class UnknownDialectError(Exception):
    """A recording was made with a dialect that this server does not have, or of which it cannot make one."""


class RemakeContext(msgspec.Struct, frozen=True):
    """What a dialect that is made again gets beside its facts."""

    model: str
    new_id: Callable[[str], str]
    now: Callable[[], float]


def attempt_of(dialect: Any) -> tuple[Any, str]:
    """Returns the dialect of the current attempt at an upstream, and the upstream's name; for any other dialect, or for
    the message that begins another attempt, itself or its dialect, and an empty name.
    """
    from codex_proxy.agents.upstream.attempted_turn import Attempt, AttemptedTurn

    if isinstance(dialect, AttemptedTurn):
        return dialect._dialect, dialect._name
    return (dialect.dialect, dialect.name) if isinstance(dialect, Attempt) else (dialect, "")


def name_of(dialect: object) -> str:
    """Returns the name of a dialect in recordings."""
    kind = type(dialect)
    reference = f"{kind.__module__}:{kind.__qualname__}"
    return _NAMES.get(reference, reference)


def facts_of(dialect: Any) -> dict[str, Any]:
    """Returns what a dialect was made with, as JSON: what `remade` needs to make one like it."""
    make = _FACTS.get(name_of(dialect))
    return {} if make is None else make(dialect)


def remade(name: str, facts: Mapping[str, Any], context: RemakeContext) -> Dialect[Any]:
    """Returns a new dialect from its name and its facts. Raises `UnknownDialectError`."""
    module, _, attribute = DIALECTS.get(name, name).partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
        make = _REMAKE.get(name)
        dialect: Dialect[Any] = kind(**facts) if make is None else make(kind, facts, context)
        return dialect
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise UnknownDialectError(f"the dialect {name!r} cannot be made ({error})") from error


def message_of(name: str, line: bytes) -> Any:
    """Returns a recorded line as the dialect reads it; None if the dialect's connection would drop it."""
    if name == "app-server":
        from codex_proxy.agents.codex_app_server.wire import decode

        return decode(line)
    if name == "acp":
        from codex_proxy.agents.acp.messages import decode as decode_acp

        return decode_acp(line)
    return line


def is_rpc(name: str) -> bool:
    """Whether the dialect's lines are JSON-RPC: each answer has the id of a request."""
    return name in ("app-server", "acp")


def first_channel_id(name: str, id: Any) -> Any:
    """Returns the id of a JSON-RPC request as it would be on the first channel of a connection, so that recordings do
    not depend on how many sessions there were before. An id that no channel has made stays as it is.
    """
    if name == "app-server" and isinstance(id, str):
        head, dot, number = id.partition(".")
        return f"1.{number}" if dot and head.isdigit() else id
    if name == "acp" and isinstance(id, int) and not isinstance(id, bool):
        from codex_proxy.agents.acp.messages import channel_of, request_id

        channel = channel_of(id)
        return id if not channel else request_id(1, id - request_id(channel, 0))
    return id


def rpc_of(line: bytes) -> tuple[Any, str | None]:
    """Returns the id and the method of a JSON-RPC message; None for what it lacks, or if it is none."""
    try:
        found = msgspec.json.decode(line, type=_Rpc)
    except UNREADABLE:
        return None, None
    return found.id, found.method


class _Rpc(msgspec.Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None


# --- messages that are no lines -------------------------------------------------------------------


def object_of(message: Any) -> tuple[str, Any] | None:
    """Returns the kind and the JSON value of a message that a dialect has read and that is no line; None for a line
    that was decoded before, which is recorded as it came.
    """
    from codex_proxy.agents.upstream.stream import End, Head

    if isinstance(message, Head):
        kept = {name: value for name, value in message.headers.items() if name.startswith(HEADERS)}
        return "head", {"status": message.status, "headers": kept}
    if isinstance(message, End):
        return "over", None if message.failure is None else msgspec.to_builtins(message.failure)
    if isinstance(message, msgspec.Struct) and type(message).__name__ in _EVENTS:
        return "event", {"type": type(message).__name__, **msgspec.structs.asdict(message)}
    return None


def message_of_object(kind: str, value: Any) -> Any:
    """Returns the message of which `object_of` has returned this kind and value. Raises `msgspec.ValidationError` or
    `KeyError` if there is none.
    """
    from codex_proxy.agents.acp import messages as acp
    from codex_proxy.agents.upstream.stream import End, Head
    from codex_proxy.core.faults import Failure

    if kind == "head":
        return msgspec.convert(value, Head)
    if kind == "over":
        return End(None if value is None else msgspec.convert(value, Failure))
    fields = dict(value)
    name = fields.pop("type")
    if name not in _EVENTS:
        raise KeyError(name)
    return msgspec.convert(fields, getattr(acp, name))


_EVENTS: Final = frozenset({"ToolsListed", "ToolCalled", "ToolsSettled", "ToolDropped", "ModelCallFailed"})

# --- what the dialects are made with --------------------------------------------------------------


def _acp_facts(dialect: Any) -> dict[str, Any]:
    program = dialect._program
    facts: dict[str, Any] = {
        "preset": program.preset.name,
        "declared": _changed(program.declared),
        "unconfined": program.unconfined,
        "confined": program.confined,
        "tools": bool(dialect._opening._servers),
        "ahead": dialect._opening._kind == "ahead",
        "alone": dialect.calls._alone,
        "usage": program.preset.usage,
    }
    if program.preset.name not in _acp_presets():
        facts["preset"] = msgspec.to_builtins(program.preset)
    return {name: value for name, value in facts.items() if value not in (False, {})}


def _acp_presets() -> Mapping[str, Any]:
    from codex_proxy.agents.acp.presets import PRESETS

    return PRESETS


def _changed(struct: msgspec.Struct) -> dict[str, Any]:
    default = type(struct)()
    return {
        name: value
        for name, value in msgspec.structs.asdict(struct).items()
        if value != getattr(default, name)
    }


def _remade_acp(kind: Any, facts: Mapping[str, Any], context: RemakeContext) -> Any:
    from codex_proxy.agents.acp.presets import AcpPreset
    from codex_proxy.agents.acp.program import Declared, Program

    named = facts["preset"]
    preset = _acp_presets()[named] if isinstance(named, str) else msgspec.convert(named, AcpPreset)
    preset = msgspec.structs.replace(preset, usage=facts.get("usage", preset.usage))
    declared = msgspec.convert(facts.get("declared", {}), Declared)
    program = Program(preset, declared, facts.get("unconfined", False), facts.get("confined", False))
    servers = ({"name": "client"},) if facts.get("tools") else ()
    ahead, alone = facts.get("ahead", False), facts.get("alone", False)
    return kind(1, program, context.new_id, servers=servers, ahead=ahead, alone=alone)


def _remade_upstream(kind: Any, facts: Mapping[str, Any], context: RemakeContext) -> Any:
    from codex_proxy.agents.upstream.failures import ErrorReader
    from codex_proxy.agents.upstream.turn import UpstreamContext

    shared = UpstreamContext(ErrorReader(()), set(facts.get("refused", ())), context.new_id, context.now)
    more = {name: value for name, value in facts.items() if name == "reasoning_back"}
    return kind(facts.get("model") or context.model, shared, **more)


def _upstream_facts(dialect: Any) -> dict[str, Any]:
    refused = sorted(dialect._refused)
    return {"model": dialect._model, **({"refused": refused} if refused else {})}


_FACTS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "app-server": lambda dialect: {"channel": 1, "parallel_calls": dialect._parallel_calls},
    "proto": lambda dialect: {"extended": True} if dialect._extended else {},
    "claude-code": lambda dialect: {"takes_mark": dialect._takes_mark},
    "acp": _acp_facts,
    "chat": lambda dialect: _upstream_facts(dialect) | {"reasoning_back": dialect._reasoning_back},
    "responses": _upstream_facts,
}
_REMAKE: Final[Mapping[str, Callable[[Any, Mapping[str, Any], RemakeContext], Any]]] = {
    "acp": _remade_acp,
    "chat": _remade_upstream,
    "responses": _remade_upstream,
}
