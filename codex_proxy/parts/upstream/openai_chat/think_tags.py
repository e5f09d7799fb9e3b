"""Separates reasoning from the answer in a text that begins with `<think>...</think>`, piece by piece."""

from __future__ import annotations

from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ThinkTags:
    """Separates one text into reasoning and answer. `plain`: all further text is the answer."""

    def __init__(self) -> None:
        self.plain = False
        self._inside = False
        self._after = False
        """Whether the closing tag was read, but no answer yet."""
        self._spaces: list[str] = []
        """White space before the text, which is part of the answer only if no tag follows."""
        self._held = ""
        """Text that may be part of a tag."""

    def feed(self, piece: str) -> tuple[str, str]:
        """Returns the reasoning and the answer in the next piece."""
        if self.plain:
            return "", piece
        if not (self._held or self._inside or self._after):
            start = piece.lstrip()
            self._spaces.append(piece[: len(piece) - len(start)])
            piece = start
        self._held += piece
        if not self._inside and not self._after:
            if self._held.startswith(OPEN):
                self._inside, self._held = True, self._held[len(OPEN) :]
                self._spaces.clear()
            elif OPEN.startswith(self._held):
                return "", ""
            else:
                return "", self._all_plain()
        reasoning = self._reasoning() if self._inside else ""
        if self._inside:
            return reasoning, ""
        self._held = self._held.lstrip()
        return reasoning, self._all_plain() if self._held else ""

    def close(self) -> tuple[str, str]:
        """Returns the reasoning and the answer that were held back."""
        if self._inside:
            held, self._held = self._held, ""
            return held, ""
        return "", "" if self._after else self._all_plain()

    def _reasoning(self) -> str:
        said, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._inside, self._after, self._held = False, True, rest
            return said
        keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if said.endswith(CLOSE[:n])), 0)
        self._held = said[len(said) - keep :]
        return said[: len(said) - keep]

    def _all_plain(self) -> str:
        self.plain = True
        text = "".join((*self._spaces, self._held))
        self._spaces.clear()
        self._held = ""
        return text
