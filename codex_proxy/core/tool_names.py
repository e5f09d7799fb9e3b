"""Names for tools whose own name would be changed or refused."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_CHANGED: Final = re.compile(r"[^A-Za-z0-9_-]")


def generated_name(name: str, prefix: str, *, kept: int, digits: int) -> str:
    """Returns `prefix`, the first `kept` characters of the name, and `digits` of its digest."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{prefix}{_CHANGED.sub('_', name)[:kept]}_{digest}"
