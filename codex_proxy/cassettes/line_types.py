"""Checks the content of a cassette's lines, so that what is replayed later has the types that a recording writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from codex_proxy.agents.dialect import Decision, Ended
from codex_proxy.agents.recorded import DIALECTS, message_of_object
from codex_proxy.cassettes.content import CONTENT_FIELDS
from codex_proxy.cassettes.settings import RELEVANT_SETTINGS
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import McpOrigin, ToolKind

REQUEST_LINE: Final = re.compile(r"(?:POST|GET) /[!-~]{0,2000}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,20000}")

UPSTREAM_KINDS: Final = frozenset({"head", "data", "line", "body", "over"})
"""The kinds of lines that are an upstream's answer."""


class _Turn(msgspec.Struct, frozen=True):
    mode: Literal["agent", "model"] = "agent"
    format: str | dict[str, Any] | bool = "text"
    model: str = ""
    tool_choice: str | dict[str, Any] = "auto"
    effort: str | None = None
    sampling: dict[str, Any] = {}


class _Tool(msgspec.Struct, frozen=True):
    name: str
    kind: ToolKind = "function"
    description: str = ""
    parameters: Any = None


class _Said(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    text: str
    images: list[str] = []
    message: str = ""


class _Call(msgspec.Struct, frozen=True):
    call: int
    tool: str
    arguments: Any


class _Output(msgspec.Struct, frozen=True):
    output: int
    text: str
    images: list[str] = []


class _Part(msgspec.Struct, frozen=True):
    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    detail: str | None = None

    def __post_init__(self) -> None:
        if (self.text is msgspec.UNSET) == (self.url is msgspec.UNSET):
            raise ValueError("a part has either a text or a url")


class _Parts(msgspec.Struct, frozen=True):
    parts: list[_Part]
    success: bool = True


class _Answer(msgspec.Struct, frozen=True):
    to: str
    reply: dict[str, Any]


class _ToolOutput(msgspec.Struct, frozen=True):
    parts: list[_Part]
    text: str
    failed: bool = False


class _McpCall(msgspec.Struct, frozen=True):
    tool: str
    arguments: str
    output: _ToolOutput


class _McpTool(msgspec.Struct, frozen=True):
    name: str
    mcp: McpOrigin
    description: str = ""
    parameters: Any = None
    listed: dict[str, Any] | None = None


_Status = Annotated[int, msgspec.Meta(ge=100, le=599)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=7 * 24 * 3_600_000)]


def check_head(settings: Mapping[str, Any], mcp: list[Any], match: list[str]) -> None:
    """Checks the settings, MCP tools and `match` of a head. Raises `ValueError`."""
    for name in settings:
        if name not in RELEVANT_SETTINGS:
            raise ValueError(f"`{name[:100]}` is no setting of a recording")
    if settings:
        from codex_proxy.settings.fields import Settings

        Settings.model_validate({**Settings.model_construct().model_dump(), **settings})
    for tool in mcp:
        msgspec.convert(tool, _McpTool)
    for name in match:
        if name not in CONTENT_FIELDS:
            raise ValueError(f"`{name[:100]}` is no field to match")


def check_request(line: str, headers: Mapping[str, str]) -> None:
    """Checks where a request goes. Raises `ValueError`."""
    if REQUEST_LINE.fullmatch(line) is None:
        raise ValueError("a request begins with `POST /` or `GET /`")
    for name, value in headers.items():
        if _HEADER.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise ValueError("a header has a name and a value of one line")


def check_turn(turn: Any) -> None:
    msgspec.convert(turn, _Turn)


def check_tool(tool: Any) -> None:
    msgspec.convert(tool, _Tool)


def check_message(message: Any) -> None:
    fields = msgspec.convert(message, dict[str, Any])
    msgspec.convert(fields, _Said if "role" in fields else _Call if "call" in fields else _Output)


def check_answer(status: Any) -> None:
    msgspec.convert(status, _Status)


def milliseconds_of(value: msgspec.Raw) -> int:
    """Returns a line's time. Raises `ValidationError`."""
    return msgspec.json.decode(value, type=_Milliseconds)


def check_line(dialect: str, kind: str, value: Any) -> None:
    """Checks a line of a session with this dialect. Raises `ValueError` or `LookupError`."""
    if not dialect and kind != "call":
        raise ValueError("a session without a dialect has calls alone")
    is_upstream = dialect in ("chat", "responses")
    if dialect in DIALECTS and (
        (kind in UPSTREAM_KINDS and not is_upstream)
        or (kind == "from" and is_upstream)
        or (kind == "event" and dialect != "acp")
    ):
        raise ValueError(f"the dialect {dialect} has no such line")
    if kind in ("head", "over", "event"):
        message = message_of_object(kind, value)
        if kind == "head":
            check_answer(message.status)
    elif kind == "line":
        msgspec.convert(value, str)
    elif kind == "answer":
        reply = msgspec.convert(value, _Answer).reply
        msgspec.convert(reply, _Parts if "parts" in reply else Decision)
    elif kind == "reopen":
        msgspec.convert(value, str)
    elif kind in ("begin", "resume"):
        msgspec.convert(value, dict[str, Any])
    elif kind == "call":
        msgspec.convert(value, _McpCall)
    elif kind == "ended":
        msgspec.convert(value, Ended)
    elif kind == "failed":
        msgspec.convert(value, Failure)
