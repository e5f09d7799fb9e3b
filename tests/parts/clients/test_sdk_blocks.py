"""The Python blocks of docs/clients.md answer as they are, with the packages that the tests have.
`tests/clients/test_blocks.py` runs those of other packages.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from codex_proxy.parts.clients.clients import BY_NAME
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess
from tests.http.serving import fake_proxy
from tests.waiting import PATIENCE

TEXT = "Hello from the deterministic fake agent."


NAMES = ("langchain", "openai-python", "anthropic-python")
OF_PARTS = {"openai-agents-api": "sessions", "anthropic-managed-agents": "managed_agents"}


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=pytest.mark.part(part)) for name, part in OF_PARTS.items())]
)
async def test_a_block_prints_the_answer(tmp_path: Path, name: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        access = ServerAccess(base_url=f"{proxy.url}/v1", model="codex-5", key=NO_KEY)
        block = access.fill(BY_NAME[name].text)
        if name == "langchain":
            block += "assert isinstance(chunk.content, str), chunk\n"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", block),
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert said.decode().strip() == TEXT, errors.decode()[-500:]
