"""The files of deploy/, as they stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"


def example(name: str) -> str:
    """The text of a file of deploy/."""
    return (DEPLOY / name).read_text("utf-8")


def replace_all(text: str, *changes: tuple[str, str]) -> str:
    """The text with what depends on the machine put in its place; each of these is there exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
