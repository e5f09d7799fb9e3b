"""The client's tools as the agent takes them: their names, definitions and custom inputs, and the way back.

The agent accepts names that match `[A-Za-z0-9_-]{1,128}`, reserves the prefix `mcp__`, and silently leaves out some
names (`IGNORED_NAMES`). It has no custom tools. Source: experiments with releases 0.163 and 0.169.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.messages import UNREADABLE
from codex_proxy.core.items import Tool

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
IGNORED_NAMES = frozenset({"exec_command", "shell_command", "functions"})
"""Names that the agent accepts, but leaves out of the model's request."""
RESERVED_PREFIX = "mcp__"
PREFIX = "client_"
"""Put in front of a name that must be changed. A client's name that begins so is changed too, so that names stay
unique.
"""

MAX_CHARS = 64
"""The longest changed name: the agent takes 128 characters, but providers only 64."""

DIGEST_DIGITS = 16
"""The digits of a digest in a changed name: 64 bits, so that no two names become the same by chance."""

MAX_KEPT_CHARS = MAX_CHARS - len(PREFIX) - 1 - DIGEST_DIGITS
"""How many characters of a name are kept before a digest."""

_ENDS_LIKE_A_DIGEST = re.compile(rf"_[0-9a-f]{{{DIGEST_DIGITS}}}\Z")


def agent_name(name: str) -> str:
    """Returns the name under which the agent is offered a tool; always the same one for the same name.

    A name that is only reserved is kept in full behind the prefix, unless it is too long or ends like a digest.
    """
    if not _must_rename(name):
        return name
    if (
        VALID_NAME.fullmatch(name)
        and len(PREFIX + name) <= MAX_CHARS
        and not _ENDS_LIKE_A_DIGEST.search(name)
    ):
        return PREFIX + name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_KEPT_CHARS]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    return f"{PREFIX}{kept}_{digest}"


def _must_rename(name: str) -> bool:
    """Returns whether the agent would refuse or leave out a tool of this name."""
    reserved = name in IGNORED_NAMES or name.startswith((RESERVED_PREFIX, PREFIX))
    return reserved or VALID_NAME.fullmatch(name) is None


class ToolNames:
    """Converts the agent's names of one turn's tools back to the client's."""

    def __init__(self, names: Iterable[str]) -> None:
        self._client = {agent_name(name): name for name in names}

    def is_offered(self, name: str) -> bool:
        """Returns whether a tool was offered under the agent's name `name`."""
        return name in self._client

    def client_name(self, name: str) -> str:
        """Returns the client's name for the agent's name `name`."""
        return self._client.get(name, name)


def dynamic_tool(tool: Tool) -> dict[str, Any]:
    """Returns a tool's definition for `thread/start`. A custom tool becomes a function with one string `input`."""
    if tool.kind == "custom":
        schema: Any = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        }
    else:
        schema = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    name = agent_name(tool.name)
    return {"type": "function", "name": name, "description": tool.description, "inputSchema": schema}


def custom_arguments(text: str) -> str:
    """Returns the arguments of the function that stands for a custom tool, from the tool's input."""
    return msgspec.json.encode({"input": text}).decode()


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool, from the arguments of the function that stands for it."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except UNREADABLE:
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments
