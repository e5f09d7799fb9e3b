"""The releases of Codex that this version was tested with, and how many tests each failed.

Written by `scripts/codex-matrix`; docs/codex-matrix.json has all results.
"""

from collections.abc import Mapping
from typing import Final

TESTED: Final[Mapping[str, int]] = {
    "0.42.0": 0,
    "0.133.0": 1,
    "0.144.4": 0,
    "0.147.0": 0,
    "0.153.4": 0,
    "0.155.1": 0,
    "0.157.1": 0,
    "0.158.0": 0,
    "0.160.1": 0,
    "0.161.0": 0,
    "0.162.1": 0,
    "0.163.0": 0,
    "0.169.0": 0,
}
