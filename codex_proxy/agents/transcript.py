"""A conversation as one text, for an agent that takes one prompt: every message with the name of who said it.

What roles mean is lost: the model reads them as words. Images are numbered in the text and given beside it, in that
order. Raw items (encrypted reasoning) have no text and are left out. Pure.
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
    """The prompt for a history, and its images: a single message of the user as it is, anything else flattened.

    So is a single message without any text, since agents refuse an empty prompt.
    """
    first = history[0] if len(history) == 1 else None
    if isinstance(first, HistoryMessage) and first.role == "user":
        text = "\n".join(part.text for part in first.parts if isinstance(part, TextPart))
        if text.strip():
            return text, [part for part in first.parts if isinstance(part, ImagePart)]
    return flattened(history)


def flattened(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    """The history as one text with numbers in place of images, and the images in that order."""
    images: list[ImagePart] = []
    blocks = [PREAMBLE]
    blocks += [_block(item, images) for item in history if not isinstance(item, RawHistoryItem)]
    return "\n\n".join(blocks), images


def _block(item: HistoryMessage | HistoryCall | HistoryOutput, images: list[ImagePart]) -> str:
    """One item as labelled text; appends its images to `images`."""
    if isinstance(item, HistoryMessage):
        return f"[{_ROLES[item.role]}]\n{_numbered(item.parts, images)}"
    if isinstance(item, HistoryCall):
        return f"[assistant calls tool {item.name}, {item.call_id}]\n{item.arguments}"
    return f"[tool output, {item.call_id}]\n{_numbered(item.parts, images)}"


def _numbered(parts: Iterable[Part], images: list[ImagePart]) -> str:
    """The text of the parts, with `[image N]` for each image, which is appended to `images`."""
    words = []
    for part in parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        else:
            images.append(part)
            words.append(f"[image {len(images)}]")
    return "\n".join(words)
