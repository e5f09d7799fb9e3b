"""The vendors' SDKs for TypeScript as clients of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.npm import run_beside

pytestmark = pytest.mark.exhaustive
"""npm has to install them first."""

PROGRAM = Path(__file__).with_name("sdks.mjs")


async def test_both_sdks_for_typescript_keep_files(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        printed = await run_beside(
            ("openai@7.59.0", "@anthropic-ai/sdk@1.14.0"), PROGRAM.read_text(), tmp_path, proxy.url
        )
    assert json.loads(printed) == {
        "openai": ["file", "a.txt", 6, 3600],
        "anthropic": ["file", "b.txt", 6, None],
        "texts": ["Hello.", "Hello."],
        "listed": [["b.txt", "a.txt"]] * 2,
        "deleted": [True, "file_deleted"],
        "missing": [404, 404],
    }
