"""Which releases of Codex can be driven, and by which of its protocols.

In: what ``codex --version`` or a ``userAgent`` says. Out: the release, and why it cannot be driven, if it cannot.
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


class _Range(NamedTuple):
    first: Version
    end: Version
    too_old: str
    too_new: str


_RANGES: Final[dict[Dialect, _Range]] = {
    # 0.163.0 and 0.169.0 are tested. Older releases speak another API under the same subcommand.
    "codex-app-server": _Range(
        first=Version(0, 160, 0),
        end=Version(0, 180, 0),
        too_old="Install a newer Codex, or give --agent codex-proto if it is older than 0.50.",
        too_new="Install Codex 0.169, or a newer release of this proxy.",
    ),
    # 0.42.0 is tested, by recordings. Later releases have no `codex proto`.
    "codex-proto": _Range(
        first=Version(0, 30, 0),
        end=Version(0, 50, 0),
        too_old="Install a newer Codex and use the codex-app-server agent.",
        too_new="Use the codex-app-server agent: this Codex no longer has `codex proto`.",
    ),
}

_VERSION = re.compile(r"(?:^codex-cli |^[^/\n]*/)(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


def version_from(text: str) -> Version | None:
    """The release named by ``codex --version`` (``codex-cli 0.163.0``) or a ``userAgent`` (``name/0.163.0``).

    Other lines before it (warnings of Codex) do no harm; no version at all gives ``None``.
    """
    found = _VERSION.search(text)
    return Version(*(int(part) for part in found.groups())) if found else None


def refusal(dialect: Dialect, version: Version) -> str | None:
    """Why this release cannot be driven by this dialect and what to do about it; ``None`` if it can."""
    accepted = _RANGES[dialect]
    if accepted.first <= version < accepted.end:
        return None
    old = version < accepted.first
    fault, advice = ("too old", accepted.too_old) if old else ("too new", accepted.too_new)
    span = f"{accepted.first} up to, not including, {accepted.end}"
    return f"Codex {version} is {fault} for the {dialect} agent, which knows {span}. {advice}"
