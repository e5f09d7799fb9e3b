"""Names of the client's tools that the agent forbids or swallows, there and back.

The agent takes `[A-Za-z0-9_-]{1,128}`, reserves `mcp__`, and accepts `exec_command` and `shell_command` only to
leave them out of the model's request. Source: experiments with 0.163 and 0.169.
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
RESERVED_PREFIX = "mcp__"
PREFIX = "client_"
"""What is put in front of a name that is not taken. A name of the client's that begins so is renamed too, so
that no two names meet."""

MAX_CHARS = 64
"""Characters of a renamed name: providers take no more, though the agent takes 128."""

DIGEST_DIGITS = 16
"""Of the digest, which tells apart what was cut or replaced: 64 bits, so that no two names meet by chance."""

MAX_KEPT_CHARS = MAX_CHARS - len(PREFIX) - 1 - DIGEST_DIGITS
"""Characters that are kept of a name which gets a digest."""

_ENDS_LIKE_A_DIGEST = re.compile(rf"_[0-9a-f]{{{DIGEST_DIGITS}}}\Z")


def agent_name(name: str) -> str:
    """The name under which the agent is offered a tool. The same name always gives the same one.

    A name that is only reserved keeps all its letters, unless it is too long or looks as if it had a digest.
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
    reserved = name in IGNORED_NAMES or name.startswith((RESERVED_PREFIX, PREFIX))
    return reserved or VALID_NAME.fullmatch(name) is None


class ToolNames:
    """The way back, for the tools of one turn."""

    def __init__(self, names: Iterable[str]) -> None:
        self._client = {agent_name(name): name for name in names}

    def is_offered(self, name: str) -> bool:
        """Whether the agent's name is that of a tool that was offered."""
        return name in self._client

    def client_name(self, name: str) -> str:
        """The client's name of the tool that the agent calls so."""
        return self._client.get(name, name)


def dynamic_tool(tool: Tool) -> dict[str, Any]:
    """A tool of the client as `thread/start` wants it."""
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
    """The input of a custom tool as the arguments of the function that it travels as."""
    return msgspec.json.encode({"input": text}).decode()


def custom_input(arguments: str) -> str:
    """The input of a custom tool, out of the arguments of the function that it travelled as."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except UNREADABLE:
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments
