"""The releases of Codex with which this version was tested, and the number of tests that failed with each.

Written by `scripts/codex-matrix`; docs/codex-matrix.json has all results.
"""

from collections.abc import Mapping
from typing import Final

TESTED: Final[Mapping[str, int]] = {
    "0.42.0": 0,
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
    "0.171.0": 0,
}
