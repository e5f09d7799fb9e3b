"""The examples of docs/operations.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "operations.md").read_text("utf-8")


def example(kind: str, *, holding: str) -> str:
    """The one block of this kind that holds these words."""
    (found,) = [block for block in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if holding in block]
    return str(found)


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """The text with what depends on the machine put in its place; each of these is there exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
