"""Writes a conversation as one text, for an agent that accepts a single prompt: every message with the name of its
speaker. Images are numbered in the text, and returned in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
)

PREAMBLE = "This is the conversation so far, oldest message first. Answer its last message."

_ROLES = {"developer": "system", "user": "user", "assistant": "assistant"}


def prompt_of(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    """Returns the prompt for a history, and its images: a single user message with text as it is, otherwise
    `flattened`.
    """
    first = history[0] if len(history) == 1 else None
    if isinstance(first, HistoryMessage) and first.role == "user":
        text = "\n".join(part.text for part in first.parts if isinstance(part, TextPart))
        if text.strip():
            return text, [part for part in first.parts if isinstance(part, ImagePart)]
    return flattened(history)


def with_instructions_of_user(history: Iterable[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Returns the history with each developer message as a user message with a label, for a model that takes no
    system prompt.
    """
    return tuple(_as_users(item) for item in history)


def _as_users(item: HistoryItem) -> HistoryItem:
    if not isinstance(item, HistoryMessage) or item.role != "developer":
        return item
    texts = [part.text for part in item.parts if isinstance(part, TextPart)]
    return HistoryMessage("user", (TextPart("\n".join((f"[{_ROLES[item.role]}]", *texts))),))


def flattened(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    """Returns the whole history as one text in which every message has the name of its speaker, and the images, for
    which numbers stand in the text.
    """
    images: list[ImagePart] = []
    blocks = [PREAMBLE]
    blocks += [_block(item, images) for item in history if not isinstance(item, RawHistoryItem)]
    return "\n\n".join(blocks), images


def _block(item: HistoryMessage | HistoryCall | HistoryOutput, images: list[ImagePart]) -> str:
    """Returns one item as text with a label. Appends its images to `images`."""
    if isinstance(item, HistoryMessage):
        return f"[{_ROLES[item.role]}]\n{_numbered(item.parts, images)}"
    if isinstance(item, HistoryCall):
        return f"[assistant calls tool {item.name}, {item.call_id}]\n{item.arguments}"
    return f"[tool output, {item.call_id}]\n{_numbered(item.parts, images)}"


def _numbered(parts: Iterable[Part], images: list[ImagePart]) -> str:
    """Returns the text of the parts, with `[image N]` in place of each image, which is appended to `images`."""
    words = []
    for part in parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        else:
            images.append(part)
            words.append(f"[image {len(images)}]")
    return "\n".join(words)
