"""How paths begin of what is not there without a part. Tests of several parts lie beside the folders of parts."""

from __future__ import annotations

from typing import Final

from codex_proxy.parts import absent_parts

OF_ABSENT_PARTS: Final = tuple(
    path
    for name in absent_parts()
    for path in (f"codex_proxy/parts/{name}", f"tests/parts/{name}", "tests/parts/test_")
)
