"""The releases of Codex that this version was tested with, and how many tests each failed.

Written by `scripts/codex-matrix`; docs/codex-matrix.json has the whole of it.
"""

from collections.abc import Mapping
from typing import Final

TESTED: Final[Mapping[str, int]] = {
    "0.42.0": 0,
}
