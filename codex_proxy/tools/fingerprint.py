"""Whether a history goes on where another ended: each item as a digest, and what a client will echo.

A thread that was kept may be used again only if the new request's history begins with exactly what that thread
has seen and said. Items that clients do not echo (reasoning, messages that say nothing, calls that this server ran)
do not count.
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
    """The digests of a history, and for each the index behind its last item (assistant messages count as one)."""
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
    """Whether the item is a call that this server ran, or its output: not every API shows these to clients."""
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
    """What of `history` is new to a thread that has seen `seen`; None where it does not begin with that, or ends
    there. Items that do not count and stand right behind what was seen are taken as seen. `printed` is `prints_of`
    the history: made once, however many threads are asked."""
    prints, ends = printed
    if not seen or len(prints) <= len(seen) or prints[: len(seen)] != seen:
        return None
    return tuple(history[ends[len(seen) - 1] :])
