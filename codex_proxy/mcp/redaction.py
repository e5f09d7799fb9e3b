"""Takes what is secret out of a text that somebody else wrote, before anybody reads it."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST = 4
"""A shorter value (`1`, `on`) is no secret, and taking it out would make any text unreadable."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets. The scheme before a credential (`Bearer`) is not part of the secret."""
    parts = {
        part for secret in secrets for part in (secret, secret.rpartition(" ")[2]) if len(part) >= SHORTEST
    }
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "[...]")
    return text
