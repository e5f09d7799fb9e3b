"""Anthropic's SDK for TypeScript as a client of definitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.npm import run_beside

pytestmark = pytest.mark.exhaustive
"""npm has to install it first."""

PROGRAM = Path(__file__).with_name("anthropic_definitions.mjs")


async def test_the_sdk_for_typescript_keeps_definitions(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        printed = await run_beside(("@anthropic-ai/sdk@1.14.0",), PROGRAM.read_text(), tmp_path, proxy.url)
    assert json.loads(printed) == {
        "null": [True, True, True],
        "changed": [2, "Be kind."],
        "stale": [True, 409],
        "versions": [2, 1],
        "archived": True,
        "names": ["c", "b", "a"],
    }
