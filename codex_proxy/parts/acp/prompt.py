"""Converts what a session has not seen of a history to a prompt: ACP content blocks. A single message of the user
is passed on as it is. Other histories, and what an agent would take for a command, become one text with labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import mcp_content, message_for_agent
from codex_proxy.agents.dialects.transcript import flatten
from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart, texts_of
from codex_proxy.parts.acp.client_tools import SERVER, agent_name

_COMMAND: Final = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*/")
"""Matches a text that an agent may take for a command."""


class Prompt(msgspec.Struct, frozen=True):
    """Content blocks, and the system prompt, which only a session's first prompt has."""

    blocks: list[dict[str, Any]]
    system: str = ""


def first_prompt(history: Sequence[HistoryItem], *, takes_system: bool) -> Prompt:
    """Returns a session's first prompt. `takes_system`: whether instructions at the beginning become its system
    prompt.
    """
    rest = _in_agents_words(history)
    system: list[str] = []
    while takes_system and rest and _is_instruction(rest[0]):
        system += _texts(rest.pop(0))
    prompt = _prompt(rest)
    return Prompt(prompt.blocks, "\n\n".join(system))


def later_prompt(items: Sequence[HistoryItem]) -> Prompt:
    """Returns the prompt for a session that has seen everything before `items`. Instructions after a single user
    message become texts that begin with `[system]`.
    """
    return _prompt(_in_agents_words(items))


def _prompt(items: Sequence[HistoryItem]) -> Prompt:
    first, *rest = items or (None,)
    if (
        isinstance(first, HistoryMessage)
        and first.role == "user"
        and all(map(_is_instruction, rest))
        and not any(_COMMAND.match(text) for text in _texts(first))
    ):
        instructions = [TextPart(f"[system]\n{text}") for each in rest for text in _texts(each)]
        return Prompt(mcp_content((*first.parts, *instructions)))
    text, images = flatten(items)
    return Prompt(mcp_content((TextPart(text), *images)))


def _in_agents_words(items: Sequence[HistoryItem]) -> list[HistoryItem]:
    """Returns the items, in which tools are named so that the agent's own of the same name is not meant."""
    return [
        message_for_agent(item, _words_for) if isinstance(item, HistoryMessage) else item for item in items
    ]


def _words_for(name: str) -> str:
    return f"`{agent_name(name)}` of the MCP server `{SERVER}`"


def _is_instruction(item: HistoryItem) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _texts(item: HistoryItem) -> list[str]:
    parts = item.parts if isinstance(item, HistoryMessage) else ()
    return texts_of(parts)
