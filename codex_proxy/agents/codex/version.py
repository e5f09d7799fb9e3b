"""The releases of Codex: what a program says of itself, and which of them were tested.

In: what ``codex --version`` or a ``userAgent`` says. Out: the release, for people to read.
"""

import re
from typing import Final, Literal, NamedTuple


class Version(NamedTuple):
    """A release of Codex; pre-release suffixes are not told apart."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


Dialect = Literal["codex-app-server", "codex-proto"]


NEWEST_TESTED: Final = Version(0, 169, 0)
"""The newest release that this version of the proxy was tested with; docs/agents.md lists them all. A newer one is
driven, too, if it speaks what is needed: that is asked of the program, never of its number."""

_VERSION = re.compile(r"(?:^codex-cli |^[^/\n]*/)(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


def version_from(text: str) -> Version | None:
    """The release named by ``codex --version`` (``codex-cli 0.163.0``) or a ``userAgent`` (``name/0.163.0``).

    Other lines before it (warnings of Codex) do no harm; no version at all gives ``None``.
    """
    found = _VERSION.search(text)
    return Version(*(int(part) for part in found.groups())) if found else None
