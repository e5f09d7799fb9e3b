"""Tells the messages of a turn from those of earlier turns, whose text may come late. By the protocol each message has
an id of its own. If a turn has only ids of earlier turns, the program gives them again, and they tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codex_proxy.parts.acp.messages import Update

MAX_EARLIER: Final = 1000
"""Maximum ids of earlier messages."""
MAX_LATE: Final = 16_384
"""Maximum characters of late text; more is an answer."""


class MessageNames:
    """The ids of a session's messages, and the chunks that may be late."""

    def __init__(self) -> None:
        self.own: set[str] = set()
        """The ids of this turn's messages."""
        self._earlier: dict[str, None] = {}
        self._given_again = False
        self._doubtful: list[Update] = []
        self._doubtful_size = 0

    def start_turn(self) -> None:
        for name in self.own:
            self.add_earlier(name)
        self.own.clear()
        self.drop_doubtful()

    def add_earlier(self, name: str) -> None:
        self._earlier[name] = None
        if len(self._earlier) > MAX_EARLIER:
            del self._earlier[next(iter(self._earlier))]

    def is_own(self, name: str) -> bool:
        """Whether the message is of this turn; False if only what follows tells that."""
        if name in self._earlier and not self._given_again:
            return False
        self.own.add(name)
        return True

    def keep_doubtful(self, chunk: Update, size: int) -> Sequence[Update]:
        """Keeps a chunk. If it is the answer, because there are so many of them, returns all."""
        self._doubtful.append(chunk)
        self._doubtful_size += 1 + size
        return self.take_doubtful() if self._doubtful_size > MAX_LATE else ()

    def take_doubtful(self) -> Sequence[Update]:
        """Returns the chunks as this turn's, since it has no others."""
        chunks = self._doubtful[:]
        self._given_again = self._given_again or bool(chunks)
        self.own.update(chunk.message_id for chunk in chunks if chunk.message_id is not None)
        self.drop_doubtful()
        return chunks

    def drop_doubtful(self) -> bool:
        """Forgets the chunks, which are late. Returns whether there were any."""
        dropped = bool(self._doubtful)
        self._doubtful.clear()
        self._doubtful_size = 0
        return dropped
