"""The blocks of docs/clients.md answer as they are, with the packages that `scripts/clients --install` installs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codex_proxy.parts.clients.clients import BY_NAME, CLIENTS
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess
from tests.clients.running import CLIENTS as PACKAGES
from tests.clients.running import output_of
from tests.http.serving import fake_proxy
from tests.parts.clients import test_sdk_blocks

BLOCKS = [client.name for client in CLIENTS if client.language in ("python", "js")]
RUN_ELSEWHERE = {*test_sdk_blocks.NAMES, *test_sdk_blocks.OF_PARTS, "agent-sdk"}
"""The latter runs Claude Code, as tests/real/test_claude_code_as_client.py does."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in RUN_ELSEWHERE])
async def test_a_block_prints_the_answer(name: str, tmp_path: Path) -> None:
    (package,) = [each for each in PACKAGES if each.name == name]
    if package.missing:
        pytest.skip(package.missing)
    async with fake_proxy(tmp_path) as proxy:
        access = ServerAccess(base_url=f"{proxy.url}/v1", model="codex-5", key=NO_KEY)
        block = access.fill(BY_NAME[name].text)
        if package.kind == "npm":
            program = package.folder / "block.mjs"
            command = ["node", str(program)]
        else:
            program = tmp_path / "block.py"
            command = [str(package.python), str(program)]
        program.write_text(block)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        said = await output_of(command, environment, program.parent)
    assert said.strip() == test_sdk_blocks.TEXT
