"""Writes a conversation as one text, for an agent with a single prompt: every message with its speaker's name. Images
are numbered, and returned in that order.
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
    texts_of,
)

PREAMBLE = "This is the conversation so far, oldest message first. Answer its last message."

_ROLES = {"developer": "system", "user": "user", "assistant": "assistant"}


def prompt_of(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    """Returns a history's prompt and images. A single user message with text stays as it is; others: see `flatten`."""
    first = history[0] if len(history) == 1 else None
    if isinstance(first, HistoryMessage) and first.role == "user":
        text = "\n".join(texts_of(first.parts))
        if text.strip():
            return text, [part for part in first.parts if isinstance(part, ImagePart)]
    return flatten(history)


def instructions_as_user_messages(history: Iterable[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Makes instructions messages of the user, for a model without a system prompt."""
    return tuple(_as_user_message(item) for item in history)


def _as_user_message(item: HistoryItem) -> HistoryItem:
    if not isinstance(item, HistoryMessage) or item.role != "developer":
        return item
    texts = texts_of(item.parts)
    return HistoryMessage("user", (TextPart("\n".join((f"[{_ROLES[item.role]}]", *texts))),))


def flatten(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    images: list[ImagePart] = []
    blocks = [PREAMBLE]
    blocks += [_block(item, images) for item in history if not isinstance(item, RawHistoryItem)]
    return "\n\n".join(blocks), images


def _block(item: HistoryMessage | HistoryCall | HistoryOutput, images: list[ImagePart]) -> str:
    if isinstance(item, HistoryMessage):
        return f"[{_ROLES[item.role]}]\n{_number_images(item.parts, images)}"
    if isinstance(item, HistoryCall):
        return f"[assistant calls tool {item.name}, {item.call_id}]\n{item.arguments}"
    return f"[tool output, {item.call_id}]\n{_number_images(item.parts, images)}"


def _number_images(parts: Iterable[Part], images: list[ImagePart]) -> str:
    words = []
    for part in parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        else:
            images.append(part)
            words.append(f"[image {len(images)}]")
    return "\n".join(words)
