"""Fixtures of the tests of the scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.checkout import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)
