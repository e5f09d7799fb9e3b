"""Each stream of these tests is rendered anew, and compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rerendered import all_rendered_anew


@pytest.fixture(autouse=True)
def _rendered_anew() -> Iterator[None]:
    with all_rendered_anew():
        yield
