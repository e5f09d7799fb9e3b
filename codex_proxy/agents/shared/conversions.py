"""Converts what an agent's protocol lacks: custom tools to functions with one string `input`, raw items of the
Responses API to other history items, the client's tools to tools of an MCP server, their names to the agent's, what is
changed in a file to a diff.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from codex_proxy.core.items import (
    PROVIDER_FIELDS,
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    Role,
    TextPart,
    Tool,
    texts_of,
)
from codex_proxy.core.json_values import UNREADABLE, objects_in

MAX_DETAIL: Final = 256 << 10
"""Maximum characters of a command, a diff, or what else an activity tells in full."""


def cut_detail(text: str) -> str:
    """Returns at most `MAX_DETAIL` characters of a text, and how many were cut."""
    if len(text) <= MAX_DETAIL:
        return text
    return f"{text[:MAX_DETAIL]}\n[cut: {len(text) - MAX_DETAIL} characters]"


def marked_lines(mark: str, text: str) -> str:
    """Returns the lines of a text as a diff has them, each behind the mark. Only a line feed ends one."""
    return "".join(f"{mark}{line}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


# --- custom tools -------------------------------------------------------------------------------

INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The parameters of a function for which the request has none."""
_NULL: Final = "null"
MAX_OPENING: Final = 1000
"""Maximum characters before the input in arguments that are read as they arrive."""

_SPACES: Final = frozenset(" \t\n\r")
_ESCAPES: Final = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_HEX: Final = "[0-9a-fA-F]"
_HIGH: Final = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW: Final = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_TOKEN: Final = re.compile(rf'[^"\\]+|{_HIGH}{_LOW}|\\u{_HEX}{{4}}|\\.|"|\\', re.DOTALL)
"""A piece of a JSON string: plain characters, an escape (a pair of surrogates is one), or the closing quote."""
_CUT_ESCAPE: Final = re.compile(rf"\\(?:u{_HEX}{{0,3}})?|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?")


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON Schema; its `title` has the name that the client gave it."""

    title: str = "answer"


def schema_words(schema: bytes | msgspec.Raw) -> str:
    """Returns an instruction that tells the model to answer by this schema, for a model server that accepts no
    schemas.
    """
    return "Answer with JSON alone, that matches this JSON schema: " + bytes(schema).decode()


def function_parameters(tool: Tool) -> Any:
    if tool.kind == "custom":
        return INPUT_SCHEMA
    return NO_PARAMETERS if tool.parameters is None else tool.parameters


def custom_arguments(text: str) -> str:
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Reverses `custom_arguments`; arguments of another form stay unchanged."""
    reader = CustomInput()
    return reader.feed(arguments) + reader.close()


def object_text(arguments: str) -> str:
    """Returns a function's arguments: an empty object in place of none, or of `null`."""
    return "{}" if arguments.strip() in ("", _NULL) else arguments


class FunctionArguments:
    """Reads a function's arguments in pieces. They are held back while they may be none, or `null`."""

    def __init__(self) -> None:
        self._held: list[str] | None = []
        self._word = ""

    def feed(self, piece: str) -> str:
        if self._held is None:
            return piece
        self._held.append(piece)
        self._word += piece.strip()
        if _NULL.startswith(self._word):
            return ""
        text, self._held = "".join(self._held), None
        return text

    def close(self) -> str:
        return "" if self._held is None else object_text("".join(self._held))


class CustomInput:
    """Reads the arguments of custom tools in pieces: `{"input": "..."}` as it arrives, other forms when complete.
    Invalid JSON is read as far as possible: models leave newlines unescaped.
    """

    def __init__(self) -> None:
        self._begin: list[str] | None = []
        """The pieces until the arguments' form is known."""
        self._rest = ""
        self._usual = True
        self._ended = False

    def feed(self, piece: str) -> str:
        if self._begin is None:
            return "" if self._ended else self._read(piece)
        self._begin.append(piece)
        if not self._usual:
            return ""
        begin = "".join(self._begin)
        position = _end_of_opening(begin[:MAX_OPENING])
        if position is None or (position < 0 and len(begin) >= MAX_OPENING):
            self._usual = False
        elif position >= 0:
            self._begin = None
            return self._read(begin[position:])
        return ""

    def close(self) -> str:
        if self._begin is None:
            return ""
        arguments = "".join(self._begin)
        try:
            value = json.loads(arguments, strict=False)
        except UNREADABLE:
            return arguments
        given = value.get("input") if isinstance(value, dict) else None
        return given if isinstance(given, str) else arguments

    def _read(self, piece: str) -> str:
        """Decodes a piece of the JSON string, up to its closing quote."""
        text = self._rest + piece
        out: list[str] = []
        position, self._rest = 0, ""
        while position < len(text):
            if text[position] == "\\" and _CUT_ESCAPE.fullmatch(text, position):
                self._rest = text[position:]
                break
            token = _TOKEN.match(text, position)
            assert token is not None, "every character is a token"
            if token[0] == '"':
                self._ended = True
                break
            out.append(_unescape(token))
            position = token.end()
        return "".join(out)


def _end_of_opening(text: str) -> int | None:
    """Returns the index behind `{"input": "`; -1 if `text` ends before, None for another form."""
    position = 0
    for token in ("{", '"input"', ":", '"'):
        while text[position : position + 1] in _SPACES:
            position += 1
        there = text[position : position + len(token)]
        if there != token:
            return -1 if token.startswith(there) else None
        position += len(token)
    return position


def _unescape(token: re.Match[str]) -> str:
    text = token[0]
    if text[0] != "\\":
        return text
    if len(text) > 2:
        return bytes.fromhex(text.replace("\\u", "")).decode("utf-16-be", "surrogatepass")
    return _ESCAPES.get(text[1], text)


# --- tools of an MCP server ---------------------------------------------------------------------

READ_ONLY: Final[Mapping[str, bool]] = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "openWorldHint": False,
}
"""MCP annotations of a harmless tool, which make an agent call several at a time."""
WHOLE_OUTPUTS: Final[Mapping[str, Any]] = {"anthropic/maxResultSizeChars": 500_000}
"""The `_meta` with which Claude Code gives its model outputs of so many characters whole."""
CLAUDE_MAX_OUTPUT: Final = 400_000
"""The bytes of the largest output that was seen to arrive whole."""
_DATA_URL: Final = re.compile(r"data:(image/[a-zA-Z0-9.+-]+);base64,", re.IGNORECASE)


def mcp_tool(name: str, tool: Tool, schema: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "description": tool.description,
        "inputSchema": schema,
        "annotations": READ_ONLY,
        "_meta": meta,
    }


def mcp_content(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Converts parts for MCP and ACP. An image without a `data:` URL becomes a text that says so; without parts there
    is one empty text.
    """
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
        elif (image := image_data(part)) is not None:
            content.append({"type": "image", "mimeType": image[0], "data": image[1]})
        else:
            content.append({"type": "text", "text": "[an image that is not included]"})
    return content or [{"type": "text", "text": ""}]


def image_data(part: ImagePart) -> tuple[str, str] | None:
    """Returns media type and base64 text of an image with a `data:` URL, else None."""
    head = _DATA_URL.match(part.url[:100])
    return None if head is None else (head.group(1).lower(), part.url[head.end() :])


# --- raw items ----------------------------------------------------------------------------------


class _Head(msgspec.Struct):
    call_id: str = ""


_HEAD: Final = msgspec.json.Decoder(_Head)


def call_ids_in(history: Iterable[HistoryItem]) -> Iterator[str]:
    """Yields the ids of the calls in a history, and of those in raw items, which have the place of a client's calls."""
    for item in history:
        if isinstance(item, HistoryCall):
            yield item.call_id
        elif isinstance(item, RawHistoryItem):
            with suppress(*UNREADABLE):
                yield _HEAD.decode(item.json).call_id


_ROLES: Final[Mapping[Any, Role]] = {
    "system": "developer",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


def items_of(raw: bytes) -> list[HistoryItem]:
    """Converts a raw item; none for types without an equivalent, and calls and outputs without id or name. Raises
    `ValueError`.
    """
    item = json.loads(raw)
    match item.get("type", "message"):
        case "message":
            role = _ROLES.get(item.get("role"))
            parts = _parts(item.get("content"))
            return [HistoryMessage(role, parts)] if role is not None and parts else []
        case "function_call" if "call_id" in item and "name" in item:
            own = item.get(PROVIDER_FIELDS) or ""
            return [
                HistoryCall(item["call_id"], item["name"], item.get("arguments") or "", provider_fields=own)
            ]
        case "custom_tool_call" if "call_id" in item and "name" in item:
            own = item.get(PROVIDER_FIELDS) or ""
            given = item.get("input") or ""
            return [HistoryCall(item["call_id"], item["name"], given, "custom", provider_fields=own)]
        case "function_call_output" | "custom_tool_call_output" if "call_id" in item:
            return [HistoryOutput(item["call_id"], _parts(item.get("output")))]
    return []


def reasoning_text(raw: bytes) -> str:
    """Returns the text in a reasoning item's `content`."""
    item = json.loads(raw)
    if item.get("type") != "reasoning":
        return ""
    return "".join(texts_of(_parts(item.get("content"))))


def _parts(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    parts: list[Part] = []
    for part in objects_in(content):
        if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
            parts.append(ImagePart(part["image_url"], part.get("detail")))
        elif isinstance(text := part.get("text") or part.get("refusal"), str):
            parts.append(TextPart(text))
    return tuple(parts)


# --- names of tools -------------------------------------------------------------------------------


def message_for_agent(message: HistoryMessage, words_for: Callable[[str], str]) -> HistoryMessage:
    """Returns the message with the agent's words for each of its `named_tools` in place of "`NAME`"."""
    words = {f"`{name}`": words_for(name) for name in message.named_tools}
    if all(name == given for name, given in words.items()):
        return message
    either = re.compile("|".join(map(re.escape, words)))
    parts: list[Part] = [
        TextPart(either.sub(lambda found: words[found[0]], part.text)) if isinstance(part, TextPart) else part
        for part in message.parts
    ]
    return msgspec.structs.replace(message, parts=tuple(parts))
