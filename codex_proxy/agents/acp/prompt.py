"""Builds the prompt of an agent: ACP content blocks, made of the history that its session has not seen.

A session takes one user message at a time, and instructions only if the agent declares a system prompt. Any other
history is sent as one text with labelled messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from codex_proxy.agents.acp.client_tools import data_image
from codex_proxy.agents.transcript import flattened
from codex_proxy.core.items import HistoryItem, HistoryMessage, ImagePart, Part, TextPart


class Prompt(msgspec.Struct, frozen=True):
    """The content blocks of a prompt, and the system prompt of the session (for its first prompt only)."""

    blocks: list[dict[str, Any]]
    system: str = ""
    flattened: bool = False
    """Whether the history is sent as one text, in which the roles of messages are only words."""


def first_prompt(history: Sequence[HistoryItem], *, takes_system: bool) -> Prompt:
    """Returns the prompt of a new session. `takes_system`: the agent declares a system prompt."""
    rest = list(history)
    system: list[str] = []
    while takes_system and rest and _is(rest[0], "developer"):
        system += _texts(rest.pop(0))
    prompt = later_prompt(rest)
    return Prompt(prompt.blocks, "\n\n".join(system), prompt.flattened)


def later_prompt(items: Sequence[HistoryItem]) -> Prompt:
    """Returns the prompt for a session that has seen everything before these items. A single message of the user is
    sent as it is, and instructions that follow it are added as text blocks that begin with `[system]`. Any other
    items are sent as one text with labelled messages.
    """
    first, *rest = items or (None,)
    if (
        isinstance(first, HistoryMessage)
        and first.role == "user"
        and all(_is(each, "developer") for each in rest)
    ):
        instructions = [TextPart(f"[system]\n{text}") for each in rest for text in _texts(each)]
        return Prompt(_blocks((*first.parts, *instructions)), flattened=bool(rest))
    text, images = flattened(items)
    return Prompt(_blocks((TextPart(text), *images)), flattened=True)


def _is(item: HistoryItem, role: str) -> bool:
    return isinstance(item, HistoryMessage) and item.role == role


def _texts(item: HistoryItem) -> list[str]:
    parts = item.parts if isinstance(item, HistoryMessage) else ()
    return [part.text for part in parts if isinstance(part, TextPart)]


def _blocks(parts: Sequence[Part]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, ImagePart):
            image = data_image(part)
            if image is None:
                blocks.append({"type": "text", "text": "[an image that is not included]"})
            else:
                blocks.append({"type": "image", "mimeType": image[0], "data": image[1]})
        else:
            blocks.append({"type": "text", "text": part.text})
    return blocks or [{"type": "text", "text": ""}]
