"""What recordings need to know of the dialects. Lines of an agent are recorded unchanged, so that today's dialect reads
them; other messages (parts of an HTTP answer, events of a tool server) as objects.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from codex_proxy.agents.dialect import Dialect, Remakeable, RemakeContext
from codex_proxy.core.json_values import UNREADABLE

DIALECTS: Final[Mapping[str, str]] = {
    "app-server": "codex_proxy.agents.codex_app_server.dialect:AppServerTurn",
    "proto": "codex_proxy.agents.codex_proto.dialect:CodexProto",
    "exec": "codex_proxy.agents.codex_exec.dialect:CodexExec",
    "claude-code": "codex_proxy.agents.claude_code.dialect:ClaudeCodeTurn",
    "acp": "codex_proxy.agents.acp.dialect:AcpTurn",
    "chat": "codex_proxy.agents.openai_chat.dialect:OpenAIChat",
    "responses": "codex_proxy.agents.openai_responses.dialect:OpenAIResponses",
}
"""Dialects by their names in recordings. A plugin's is recorded as `MODULE:CLASS`."""
MAX_FACTS_BYTES: Final = 1 << 16
_NAMES: Final = {reference: name for name, reference in DIALECTS.items()}

RECORDED_HEADERS: Final = ("content-type", "retry-after", "x-ratelimit-", "x-should-retry")
"""How the names of an upstream's recorded headers begin."""


class UnknownDialectError(Exception):
    """A recording was made with a dialect that this server does not have, or cannot make."""


def attempt_of(found: Any) -> tuple[Any, str]:
    """Returns the dialect of the current attempt at an upstream, and its name; for others the dialect and an empty
    name.
    """
    from codex_proxy.agents.upstream.attempted_turn import AttemptedTurn, UpstreamAttempt

    if isinstance(found, AttemptedTurn):
        return found.current
    return (found.dialect, found.name) if isinstance(found, UpstreamAttempt) else (found, "")


def name_of(dialect: object) -> str:
    kind = type(dialect)
    reference = f"{kind.__module__}:{kind.__qualname__}"
    return _NAMES.get(reference, reference)


def facts_of(dialect: Any) -> dict[str, Any]:
    """Returns what `remake` needs, as JSON."""
    return dialect.facts() if isinstance(dialect, Remakeable) else {}


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


def _acp_facts() -> Any:
    from codex_proxy.agents.acp.presets import AcpPreset, UsageRule
    from codex_proxy.agents.acp.program import DeclaredFeatures

    fields: list[tuple[str, Any, Any]] = [
        ("usage", UsageRule | None | msgspec.UnsetType, msgspec.UNSET),
        ("declared", DeclaredFeatures, msgspec.field(default_factory=DeclaredFeatures)),
        *((name, bool, False) for name in ("unconfined", "confined", "tools", "ahead", "alone")),
    ]
    return msgspec.defstruct("AcpFacts", [("preset", str | AcpPreset), *fields], bases=(Facts,), frozen=True)


_FACTS: Final[Mapping[str, type[Facts]]] = {
    "app-server": AppServerFacts,
    "proto": ProtoFacts,
    "claude-code": ClaudeCodeFacts,
    "chat": ChatFacts,
    "responses": UpstreamFacts,
}
"""The types of facts by dialect; others have none, or are made when needed."""


def class_of(name: str, own: Mapping[str, type] | None = None) -> type[Any]:
    """Returns the class of a recorded dialect: one of `DIALECTS`, or of the plugin's `own`. Raises
    `UnknownDialectError`.
    """
    if name in DIALECTS:
        found: type[Any] = pkgutil.resolve_name(DIALECTS[name])
        return found
    if own is not None and name in own:
        return own[name]
    raise UnknownDialectError(
        f"there is no dialect {name[:100]!r}. If it is a plugin's, name the plugin with --agent-plugin"
    )


def check_facts(name: str, facts: Mapping[str, Any]) -> None:
    """Checks the facts of a dialect against their type. Raises `UnknownDialectError`."""
    kind = _acp_facts() if name == "acp" else _FACTS.get(name, Facts)
    try:
        if len(msgspec.json.encode(facts)) > MAX_FACTS_BYTES:
            raise UnknownDialectError(f"the facts of its dialect are larger than {MAX_FACTS_BYTES >> 10} KiB")
        found: Any = msgspec.convert(facts, kind)
        if name == "acp":
            _check_preset(facts["preset"], found.preset)
    except UNREADABLE as error:
        raise UnknownDialectError(f"the facts of its dialect do not fit: {error}") from error


def _check_preset(given: Any, preset: Any) -> None:
    from codex_proxy.agents.acp.presets import PRESETS

    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"there is no preset {preset[:100]!r}")
    elif unknown := given.keys() - set(type(preset).__struct_fields__):
        raise ValueError(f"a preset has no field {min(unknown)[:100]!r}")


def remake(
    name: str, facts: Mapping[str, Any], context: RemakeContext, own: Mapping[str, type] | None = None
) -> Dialect[Any]:
    """Makes a recorded dialect again. `own`: the dialects of the plugin, see `class_of`. Raises
    `UnknownDialectError`.
    """
    kind = class_of(name, own)
    check_facts(name, facts)
    try:
        make: Any = kind.remake if issubclass(kind, Remakeable) else lambda facts, _: kind(**facts)
        dialect: Dialect[Any] = make(facts, context)
        return dialect
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UnknownDialectError(f"the dialect {name!r} cannot be made ({error})") from error


def message_of(name: str, line: bytes) -> Any:
    """Returns a recorded line as the dialect reads it; None if its connection would drop it."""
    if name == "app-server":
        from codex_proxy.agents.codex_app_server.wire import decode

        return decode(line)
    if name == "acp":
        from codex_proxy.agents.acp.messages import decode as decode_acp

        return decode_acp(line)
    return line


def is_rpc(name: str) -> bool:
    return name in ("app-server", "acp")


def first_channel_id(name: str, id: Any) -> Any:
    """Returns the id as on a connection's first channel, so that recordings do not depend on earlier sessions."""
    if name == "app-server" and isinstance(id, str):
        head, dot, number = id.partition(".")
        return f"1.{number}" if dot and head.isdigit() else id
    if name == "acp" and isinstance(id, int) and not isinstance(id, bool):
        from codex_proxy.agents.acp.messages import channel_of, request_id

        channel = channel_of(id)
        return id if not channel else request_id(1, id - request_id(channel, 0))
    return id


_VARYING: Final = {
    "app-server": (
        (rb'"processId":"[0-9]{1,10}"', b'"processId":"0"'),
        (rb'(?<="output":")Chunk ID: [0-9a-f]{4,16}(?=\\n)', b"Chunk ID: 0"),
        (rb"(?<=\\n)Wall time: [0-9]{1,9}\.[0-9]{1,9} seconds(?=\\n)", b"Wall time: 0.0 seconds"),
        (rb'BackwardsCursor":"(?:[^"\\]|\\.){1,2000}"', b'BackwardsCursor":""'),
        (rb"<current_date>[0-9-]{10}</current_date>", b"<current_date>1970-01-01</current_date>"),
        (
            rb"/sessions/[0-9]{4}/[0-9]{2}/[0-9]{2}/rollout-[0-9T-]{19}",
            b"/sessions/1970/01/01/rollout-1970-01-01T00-00-00",
        ),
    ),
    "claude-code": (
        (rb'"uuid":"[0-9a-f-]{36}"', b'"uuid":""'),
        (rb'"messaging_socket_path":"[^"\\]{1,200}"', b'"messaging_socket_path":""'),
        (rb'"account":\{[^{}]{1,2000}\}', b'"account":{}'),
    ),
    "acp": ((rb'"url":"http://127\.0\.0\.1:[0-9]{2,5}(?=[/"])', b'"url":"http://127.0.0.1:0'),),
    "chat": (
        (rb'"obfuscation":\s?"[A-Za-z0-9]*"', b'"obfuscation":""'),
        (rb'"created":\s?[0-9]{10}(?=[,}])', b'"created":0'),
    ),
    "responses": (
        (rb'"obfuscation":\s?"[A-Za-z0-9]*"', b'"obfuscation":""'),
        (rb'"sequence_number":\s?[0-9]{1,9}', b'"sequence_number":0'),
    ),
}
"""By dialect, what differs in each recording, or names its user, and what is recorded for it: nothing that the dialect
reads.
"""
_VARYING_PATTERNS: Final = {
    name: tuple((re.compile(pattern), constant) for pattern, constant in each)
    for name, each in _VARYING.items()
}


def without_varying_fields(name: str, line: bytes) -> bytes:
    """Returns a line without what differs in each recording and the dialect does not read, so that deltas of one text
    differ in it alone.
    """
    for pattern, constant in _VARYING_PATTERNS.get(name, ()):
        line = pattern.sub(constant, line)
    return line


def is_recorded(name: str, line: bytes) -> bool:
    """Whether a line of the agent is recorded. A list of its own commands is not: it comes at any time, is long, and is
    not read.
    """
    return name != "acp" or b'"sessionUpdate":"available_commands_update"' not in line


def rpc_of(line: bytes) -> tuple[Any, str | None]:
    """Returns the id and the method of a JSON-RPC message; None for what it lacks."""
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
    """Returns the kind and the JSON value of a message that is no line; None for a decoded line, which is recorded as
    it came.
    """
    name = type(message).__name__
    if name == "Head":
        kept = {name: value for name, value in message.headers.items() if name.startswith(RECORDED_HEADERS)}
        return "head", {"status": message.status, "headers": kept}
    if name == "End":
        return "over", None if message.failure is None else msgspec.to_builtins(message.failure)
    return ("event", {"type": name, **msgspec.structs.asdict(message)}) if name in _EVENTS else None


def message_of_object(kind: str, value: Any) -> Any:
    """Reverses `object_of`. Raises `msgspec.ValidationError` or `KeyError`."""
    from codex_proxy.agents.upstream.stream import End, Head
    from codex_proxy.core.faults import Failure

    if kind == "head":
        return msgspec.convert(value, Head)
    if kind == "over":
        return End(None if value is None else msgspec.convert(value, Failure))
    fields = msgspec.convert(value, dict[str, Any])
    return msgspec.convert(fields, _event_types()[fields.pop("type")])


def _event_types() -> dict[Any, Any]:
    from codex_proxy.agents.acp import messages

    types = (
        messages.ToolsListed, messages.ToolCalled, messages.ToolsSettled, messages.ToolDropped,
        messages.ModelCallFailed,
    )  # fmt: skip
    return {each.__name__: each for each in types}


_EVENTS: Final = frozenset({"ToolsListed", "ToolCalled", "ToolsSettled", "ToolDropped", "ModelCallFailed"})
