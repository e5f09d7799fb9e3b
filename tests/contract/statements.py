"""The statements of a page: its paragraphs, points and rows of tables, by the heading above them."""

from __future__ import annotations

import re

POINT = re.compile(r"(?:-|\d+\.) ")


def statements(page: str) -> dict[str, list[str]]:
    """Returns the statements below each heading of the page, each in one line. Left out: the page's introduction, what
    only introduces the points or the table below it, and the heads of tables.
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    rows, is_open = 0, False
    for line in page.splitlines():
        if line.startswith("##"):
            current = found.setdefault(line.lstrip("# "), [])
        rows = rows + 1 if line.startswith("|") else 0
        if rows > 2 or POINT.match(line):
            current.append(POINT.sub("", line, count=1).strip("| "))
        elif line and not line.startswith(("#", "|", "<!--")):
            if is_open:
                current[-1] += " " + line.strip()
            else:
                current.append(line)
        is_open = bool(line) and not line.startswith(("#", "|", "<!--"))
    return {
        heading: [each for each in texts if not each.endswith(":")]
        for heading, texts in found.items()
        if texts
    }
