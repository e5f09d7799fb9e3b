"""What a test does where a program of the machine is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_unless_ci(reason: str) -> NoReturn:
    """Skips the test, but fails in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
