"""Writes the diagrams of states into the documents from the tables in the code; a test fails while they differ.

.venv/bin/python -m scripts.gen_states
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from codex_proxy.agents.codex_app_server import thread_turns
from codex_proxy.core.states import StateTable
from codex_proxy.process import child

DOCS = Path(__file__).resolve().parent.parent / "docs"

DIAGRAMS: dict[str, tuple[Path, StateTable[Any, Any]]] = {
    "turn": (DOCS / "architecture.md", thread_turns.TABLE),
    "child": (DOCS / "processes.md", child.TABLE),
}
"""The page and the table of each diagram, which is between `<!-- states of a NAME -->` and `<!-- end -->`."""


def diagram(table: StateTable[Any, Any]) -> str:
    """Returns a diagram for Mermaid. Changes that lead back to the same state are left out."""
    rows: list[tuple[Enum, Enum, Enum]] = [
        (*key, after) for key, after in table.items() if key[0] is not after
    ]
    lines = ["stateDiagram-v2", f"    [*] --> {table.start.name}"]
    lines += [f"    {state.name} --> {following.name}: {words(change)}" for state, change, following in rows]
    return "\n".join(["```mermaid", *lines, "```"])


def words(change: Enum) -> str:
    return change.name.lower().replace("_", " ")


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page, and what it should contain."""
    for name, (page, table) in DIAGRAMS.items():
        mark = f"<!-- states of a {name}: scripts/gen_states.py -->"
        text, found = re.subn(
            rf"(?s)({re.escape(mark)}\n).*?((?<=\n)<!-- end -->)",
            lambda match, table=table: match[1] + diagram(table) + "\n" + match[2],  # type: ignore[misc]
            page.read_text("utf-8"),
        )
        assert found == 1, f"{page} has no place for the states of a {name}"
        yield page, text


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text, "utf-8")
