"""What a turn has done to the files of its folder, in words and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from codex_proxy.parts.terminal.text import FOLDED_LINES, diff_line, folded, line

MAX_FILES: Final = 200
"""Maximum files that are listed."""
MAX_LINES: Final = 600
"""Lines of diffs after which those of further files are folded to nothing."""
MAX_NAMED: Final = 20
"""Maximum paths that a note names."""
_SIGNS: Final = {"added": "A", "deleted": "D", "modified": "M", "mode": "M", "link": "L"}
_LINK: Final = "120000"


def headline(changes: dict[str, Any]) -> str:
    """Returns how many files a turn has changed; empty if it has changed none, or its files are not kept."""
    data = changes["data"]
    if not data:
        return ""
    added, removed = (sum(each[name] for each in data) for name in ("additions", "deletions"))
    least = "at least " if changes["truncated"] else ""
    return f"{least}{len(data)} {'file' if len(data) == 1 else 'files'} changed (+{added} -{removed})"


def why_nothing(changes: dict[str, Any]) -> str:
    """Returns why there is no list of changes; empty if there is one."""
    match changes["state"]:
        case "kept":
            return "" if changes["data"] else "The turn has changed no files."
        case "running":
            return "The turn goes on. Its changes are known when it has ended."
        case "failed":
            return f"The files of this turn are not kept: {changes['reason'] or 'no reason is known'}."
        case _:
            return (
                "The files of this turn are not kept: it may not write (--sandbox workspace-write), or the server "
                "keeps no files (it does when started with PROXY_SNAPSHOTS=sessions)."
            )


def file_line(change: dict[str, Any]) -> str:
    """Returns the line of a change: its sign, its path, and what there is to know besides its lines."""
    words = [f"+{change['additions']} -{change['deletions']}"] if change["diff"] is not None else []
    sizes = [f"{size:,} bytes" for size in (change["size_before"], change["size_after"]) if size is not None]
    if change["binary"]:
        words.append(f"binary, {' to '.join(sizes)}")
    elif change["diff"] is None and change["kind"] != "mode":
        words.append(f"diff too large, {' to '.join(sizes)}" if sizes != ["0 bytes"] else "empty")
    words += [mode] if (mode := _mode_words(change["mode_before"], change["mode_after"])) else []
    return f"{_SIGNS.get(change['kind'], 'M')} {change['path']} ({', '.join(words)})"


def _mode_words(before: str | None, after: str | None) -> str:
    if before == after:
        return ""
    if after == _LINK:
        return "new link" if before is None else "became a link"
    if before == _LINK:
        return "link deleted" if after is None else "was a link"
    return f"permissions {before[-3:]} to {after[-3:]}" if before and after else ""


def notes(changes: dict[str, Any]) -> Iterator[str]:
    """Yields what is to be known of a turn's changes besides them."""
    if changes["others_wrote"]:
        yield "Another turn wrote in this folder meanwhile: some of the changes may be its."
    if changes["newly_ignored"]:
        yield f"Ignored from now on, and kept no more: {named(changes['newly_ignored'])}"
    if changes["left_out"]:
        yield f"Not kept, and not taken back: {named(changes['left_out'])}"
    if changes["truncated"]:
        yield "There is more than is shown here."


def named(paths: Sequence[str]) -> str:
    """Returns the first paths of a list."""
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return ", ".join(paths[:MAX_NAMED]) + more


def diff_lines(changes: dict[str, Any], more: str) -> Iterator[Text]:
    """Yields all lines about a turn's changes. Long diffs are folded; `more`: how to see them."""
    yield line(headline(changes), "bold")
    shown = 0
    for change in changes["data"][:MAX_FILES]:
        yield line(file_line(change), "bold")
        if change["diff"] is None:
            continue
        if shown > MAX_LINES:
            yield line(f"... lines folded{more} ...", "dim")
            continue
        for each in folded(change["diff"], more, 4 * FOLDED_LINES):
            shown += 1
            yield diff_line(each)
    if len(changes["data"]) > MAX_FILES:
        yield line(f"... {len(changes['data']) - MAX_FILES} more files{more} ...", "dim")
    for each in notes(changes):
        yield line(each, "yellow")


def whole_diff(changes: dict[str, Any]) -> str:
    """Returns all that is known of a turn's changes as a text."""
    parts = [f"{file_line(change)}\n{change['diff'] or ''}".rstrip("\n") for change in changes["data"]]
    return "\n".join([headline(changes), *parts, *notes(changes)])
