"""A checksum for each row, so that damaged data is never returned: a digest of an item, which also finds equal ones,
and a CRC-32 of other rows. Both detect accidents, not tampering.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b

from codex_proxy.store.values import StoreDamaged


def checksum(data: object) -> int:
    """Returns the CRC-32 of bytes; -1 for another type, which is damage."""
    return zlib.crc32(data) if isinstance(data, bytes) else -1


def item_digest(json: object, raw: object) -> bytes:
    """Returns the digest of JSON and raw form; empty if one is not bytes, which is damage."""
    if not (isinstance(json, bytes) and isinstance(raw, bytes)):
        return b""
    length = len(json).to_bytes(8, "big")
    return blake2b(length + json + raw, digest_size=16).digest()


def verify(data: bytes, stored: int, what: str) -> bytes:
    """Returns `data`; raises `StoreDamaged`, naming it `what`, if its checksum is not `stored`."""
    if checksum(data) != stored:
        raise damage_error(what)
    return data


def damage_error(what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{what} in the store is damaged: its checksum does not match; see `codex-proxy store check`"
    )
