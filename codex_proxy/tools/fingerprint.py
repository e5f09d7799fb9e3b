"""Finds out whether a history continues where a kept thread ended, by a digest of each item.

A kept thread is used again only where the new history begins with exactly what that thread has seen and said. Items
that clients do not send back (reasoning, empty messages, calls that this server ran) do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
)
from codex_proxy.tools.replay import said_text

Prints = tuple[bytes, ...]


def prints_of(history: Sequence[HistoryItem]) -> tuple[Prints, tuple[int, ...]]:
    """Returns the digests of a history, and for each the index after its last item. Assistant messages in a row count
    as one."""
    prints: list[bytes] = []
    ends: list[int] = []
    index = 0
    while index < len(history):
        item = history[index]
        end = index + 1
        if isinstance(item, RawHistoryItem) or _own(item):
            index = end
            if ends:
                ends[-1] = end
            continue
        if isinstance(item, HistoryMessage) and item.role == "assistant":
            while end < len(history) and _is_assistant(history[end]):
                end += 1
            text = said_text(history[index:end])
            if text:
                prints.append(_digest("assistant", text))
                ends.append(end)
            elif ends:
                ends[-1] = end
        else:
            prints.append(_print(item))
            ends.append(end)
        index = end
    return tuple(prints), tuple(ends)


def _is_assistant(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, RawHistoryItem) or _own(item)


def _own(item: HistoryItem) -> bool:
    """Whether the item is a call that this server ran, or its output. Not every API shows them to clients."""
    return isinstance(item, HistoryCall | HistoryOutput) and item.own


def _print(item: HistoryItem) -> bytes:
    if isinstance(item, HistoryMessage):
        return _digest(item.role, *_parts(item.parts))
    if isinstance(item, HistoryCall):
        return _digest("call", item.kind, item.call_id, item.name, item.arguments)
    assert isinstance(item, HistoryOutput)
    return _digest("output", item.kind, item.call_id, *_parts(item.parts))


def _parts(parts: Sequence[Part]) -> list[str]:
    out: list[str] = []
    for part in parts:
        if isinstance(part, ImagePart):
            out += ("image", part.url, part.detail or "")
        else:
            out += ("text", part.text)
    return out


def _digest(*parts: str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


def fresh_after(
    seen: Prints, history: Sequence[HistoryItem], printed: tuple[Prints, tuple[int, ...]]
) -> tuple[HistoryItem, ...] | None:
    """Returns the part of `history` that is new to a thread with the digests `seen`; None where the history does not
    begin with those, or contains nothing more. Items that do not count and follow right after them are not new.
    `printed` is `prints_of` the history, which is computed once for many threads."""
    prints, ends = printed
    if not seen or len(prints) <= len(seen) or prints[: len(seen)] != seen:
        return None
    return tuple(history[ends[len(seen) - 1] :])
