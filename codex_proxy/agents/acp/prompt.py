"""Converts the part of a history that a session has not seen to a prompt: a list of ACP content blocks. A prompt is one
message of the user, so a history with other messages is one text, in which each has a label with its role. So is a
message that begins with `/`, which agents take for a command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import mcp_content
from codex_proxy.agents.dialects.transcript import flattened
from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart

_COMMAND: Final = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*/")
"""The beginning of a text that an agent may take for a command: `/` behind nothing that is visible."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt: its content blocks, and the system prompt of the session, which only the first prompt of a session
    has.
    """

    blocks: list[dict[str, Any]]
    system: str = ""
    flattened: bool = False
    """Whether the history is sent as one text, in which labels name the roles of its messages."""


def first_prompt(history: Sequence[HistoryItem], *, takes_system: bool) -> Prompt:
    """Returns the prompt of a new session. `takes_system`: instructions at the beginning are the system prompt, not a
    part of the text.
    """
    rest = list(history)
    system: list[str] = []
    while takes_system and rest and _is(rest[0], "developer"):
        system += _texts(rest.pop(0))
    prompt = later_prompt(rest)
    return Prompt(prompt.blocks, "\n\n".join(system), prompt.flattened)


def later_prompt(items: Sequence[HistoryItem]) -> Prompt:
    """Returns the prompt for a session that has seen everything before `items`. A single message of the user is sent
    unchanged, instructions after it as texts that begin with `[system]`; anything else as one text with labels.
    """
    first, *rest = items or (None,)
    if (
        isinstance(first, HistoryMessage)
        and first.role == "user"
        and all(_is(each, "developer") for each in rest)
        and not any(_COMMAND.match(text) for text in _texts(first))
    ):
        instructions = [TextPart(f"[system]\n{text}") for each in rest for text in _texts(each)]
        return Prompt(mcp_content((*first.parts, *instructions)), flattened=bool(rest))
    text, images = flattened(items)
    return Prompt(mcp_content((TextPart(text), *images)), flattened=True)


def _is(item: HistoryItem, role: str) -> bool:
    return isinstance(item, HistoryMessage) and item.role == role


def _texts(item: HistoryItem) -> list[str]:
    parts = item.parts if isinstance(item, HistoryMessage) else ()
    return [part.text for part in parts if isinstance(part, TextPart)]
