"""Whether decoding JSON would take too long: megabytes of text take milliseconds, of small values seconds."""

from __future__ import annotations

from typing import Final

LONG_JSON: Final = 1 << 20
"""Maximum bytes that are decoded whatever they are."""
MAX_STRINGS: Final = 200_000
"""Maximum strings, names included, in JSON longer than `LONG_JSON`."""
MAX_BETWEEN_STRINGS: Final = 800_000
"""Maximum bytes between its strings: numbers, brackets, commas."""


def has_too_many_values(json: bytes) -> bool:
    """Whether the JSON is longer than `LONG_JSON` and would take some 30 ms to decode. For invalid JSON the result may
    be either.
    """
    if len(json) <= LONG_JSON:
        return False
    if b"\\" in json:
        json = json.replace(b"\\\\", b"").replace(b'\\"', b"")  # so that each quote begins or ends a string
    if json.count(b'"') > 2 * MAX_STRINGS:
        return True
    return sum(map(len, json.split(b'"')[::2])) > MAX_BETWEEN_STRINGS
