"""The check of `doctor` for programs of Codex that search a client's text for the names of installed skills."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from codex_proxy.core.checks import Check, CheckBuilder
from codex_proxy.core.shown_text import excerpt

MAX_SHOWN: Final = 10


def skills_check(codex_home: Path, home: str, workdir: Path) -> list[Check]:
    """Returns a check if a client's text with `$NAME` can add skills to an agent turn."""
    folders = [codex_home / "skills", workdir / ".codex" / "skills", workdir / ".agents" / "skills"]
    if home:
        folders.append(Path(home) / ".agents" / "skills")
    names = sorted({excerpt(name) for folder in folders for name in _skills_in(folder)})
    if not names:
        return []
    shown = ", ".join(names[:MAX_SHOWN]) + (
        f" and {len(names) - MAX_SHOWN} more" if names[MAX_SHOWN:] else ""
    )
    return [
        CheckBuilder("skills").warning(
            f"In agent turns a client's text with $NAME adds the skill of that name: {shown}.",
            "Remove skills that clients must not call, or serve Codex with --agent codex-app-server, which adds none.",
        )
    ]


def _skills_in(folder: Path) -> Iterable[str]:
    try:
        return [path.parent.name for path in folder.glob("*/SKILL.md")]
    except OSError:
        return []
