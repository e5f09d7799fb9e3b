"""Compares what an agent repeats after a retry with what was sent: only text beyond it is new. If it differs, the
caller fails the turn.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from codex_proxy.core.items import Item, Message, Reasoning, ToolCall
from codex_proxy.core.json_values import without_surrogates

FIRST_HALF: Final = "\ud800"
SECOND_HALF: Final = "\udc00"
"""The lowest halves of surrogate pairs; the first halves are between them."""
TextKey = tuple[str, int]
"""A text of an item: its kind and the number of its part."""
TEXT_KEY: Final[TextKey] = ("text", 0)
REFUSAL_KEY: Final[TextKey] = ("refusal", 0)
ARGUMENTS_KEY: Final[TextKey] = ("arguments", 0)
OUTPUT_KEY: Final[TextKey] = ("output", 0)


class Repetition:
    """A text sent before a retry, and how much of it the agent has repeated."""

    __slots__ = ("_matched", "_sent")

    def __init__(self, sent: str) -> None:
        self._sent = sent
        self._matched = 0

    @property
    def complete(self) -> bool:
        return self._matched >= len(self._sent)

    def unsent_part_of(self, text: str) -> str | None:
        """Returns the unsent part of a delta; None if it differs from what was sent."""
        due = self._sent[self._matched : self._matched + len(text)]
        if not text.startswith(due):
            return None
        self._matched += len(due)
        return text[len(due) :]

    def rest_of(self, whole: str) -> str | None:
        """Returns what a whole text has behind the part that the agent has repeated; None if it does not begin with
        that part.
        """
        return whole[self._matched :] if whole.startswith(self._sent[: self._matched]) else None


class SentItem:
    """An item of the current model call with the pieces of its texts as sent, also after its end."""

    __slots__ = ("halves", "id", "item", "open", "repetition", "sent", "whole")

    def __init__(self, item: Item) -> None:
        self.id = item.id
        self.item = item
        self.open = True
        self.sent: dict[TextKey, list[str]] = {}
        self.whole: set[TextKey] = set()
        """Texts sent in full; a later delta can only repeat a part of one."""
        self.repetition: Repetition | None = None
        """The message as the agent repeats it, if it does."""
        self.halves: dict[TextKey, str] = {}
        """First halves of surrogate pairs, at the end of a text, whose second half may be in the next delta."""

    def with_half(self, key: TextKey, text: str) -> str:
        """Returns `text` behind the half of a surrogate pair that was held back before; a half at the end of `text` is
        held back for the next delta. A half that gets no other half becomes U+FFFD.
        """
        half = self.halves.pop(key, "") if self.halves else ""
        if not half and text.isascii():
            return text
        text = half + text
        if FIRST_HALF <= text[-1:] < SECOND_HALF:
            self.halves[key], text = text[-1], text[:-1]
        return without_surrogates(text) if half or key is ARGUMENTS_KEY else text

    def text(self, key: TextKey) -> str:
        pieces = self.sent.get(key)
        if not pieces:
            return ""
        if len(pieces) > 1:
            pieces[:] = ("".join(pieces),)  # so that the next call does not join them again
        return pieces[0]

    def size_sent_of(self, key: TextKey, whole: str) -> int | None:
        """Returns how many characters of the full text `whole` were sent; None if it does not begin with what was sent.
        The pieces are compared where they are: to join megabytes takes longer than to compare them.
        """
        size = 0
        for piece in self.sent.get(key, ()):
            if not whole.startswith(piece, size):
                return None
            size += len(piece)
        return size

    @property
    def still_to_repeat(self) -> bool:
        """Whether the agent must still repeat some of the sent text."""
        return self.repetition is not None and not self.repetition.complete


class SentStep:
    """The current model call: its items, and the messages that the agent must repeat after a retry."""

    def __init__(self) -> None:
        self._items: list[SentItem] = []
        self._to_repeat: OrderedDict[SentItem, None] = OrderedDict()
        """The messages that the agent has not begun to repeat, oldest first."""
        self.retries = 0
        """The number of times that the call was repeated."""
        self.mutes_reasoning = False
        """Whether reasoning is dropped: after a retry it may differ each time."""

    def add(self, item: SentItem) -> None:
        self._items.append(item)

    @property
    def still_to_repeat(self) -> bool:
        """Whether the agent must still repeat some message."""
        return self.retries > 0 and any(item.still_to_repeat for item in self._items)

    def complete(self) -> None:
        """Forgets the items of the call, which has succeeded."""
        for item in self._items:
            item.repetition = None
        self._items.clear()
        self._to_repeat.clear()
        self.mutes_reasoning = False
        self.retries = 0

    @property
    def can_retry(self) -> bool:
        """Whether the output of a retry can be matched with what was sent: not after a tool call or a refusal."""
        return not any(isinstance(item.item, ToolCall) or REFUSAL_KEY in item.sent for item in self._items)

    def retry(self) -> None:
        """Notes that the agent must repeat every message that has text or is open."""
        self.retries += 1
        self.mutes_reasoning |= any(isinstance(item.item, Reasoning) and item.sent for item in self._items)
        self._to_repeat.clear()
        for item in self._items:
            if not isinstance(item.item, Message):
                continue
            item.whole = set()
            item.halves.clear()
            sent = item.text(TEXT_KEY)
            item.repetition = Repetition(sent) if sent or item.open else None
            if item.repetition is not None:
                self._to_repeat[item] = None

    def waits_for(self, item: SentItem | None) -> bool:
        """Whether the agent must repeat this message and has not begun to."""
        return item in self._to_repeat

    def begin_to_repeat(self, item: SentItem | None) -> SentItem | None:
        """Returns the sent message that a starting item repeats: the one with its id, else the oldest not begun, if
        any.
        """
        if not self._to_repeat:
            return None
        if item is None or item not in self._to_repeat:
            return self._to_repeat.popitem(last=False)[0]
        del self._to_repeat[item]
        return item

    def note_repetition(self, item: SentItem) -> None:
        """Notes that the agent begins to repeat this message by a delta, without starting an item anew."""
        self._to_repeat.pop(item, None)
