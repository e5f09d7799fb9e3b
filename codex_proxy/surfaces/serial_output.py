"""Things of one kind go out one after the other, however their pieces come in.

Two open calls (or two open messages) may get their deltas in turns. On the wire they are serialised: the
first that was opened speaks, the pieces of the others wait until it is closed. Source: docs/contract.md#streams.
"""

from __future__ import annotations


class SerialOutput:
    """An order of ids. The oldest open one has the word; what the others say is kept.

    In a `whole` lane nobody speaks before the end: each is heard once, all of it, when it is closed.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.speaker: str | None = None
        self._whole = whole
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()

    def open(self, id: str) -> bool:
        """Whether `id` has the word at once."""
        if self.speaker is None and not self._whole:
            self.speaker = id
            return True
        self._waiting[id] = []
        return False

    def keep(self, id: str, text: str) -> None:
        """Keeps a piece of one that waits; nothing for one that was never opened."""
        if id in self._waiting:
            self._waiting[id].append(text)

    def close(self, id: str) -> list[tuple[str, str]]:
        """Ends `id`. Gives those that have the word now, in order, each with the text it kept.

        All of them but the last have ended already; the last may go on.
        """
        if id == self.speaker:
            self.speaker = None
        elif id in self._waiting:
            self._ended.add(id)
        heard: list[tuple[str, str]] = []
        while self._waiting and self.speaker is None:
            next_id = next(iter(self._waiting))
            if next_id not in self._ended:
                if self._whole:
                    break
                self.speaker = next_id
            heard.append((next_id, "".join(self._waiting.pop(next_id))))
        return heard
