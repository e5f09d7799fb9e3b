"""`codex-proxy run` on the real Codex, whose model is scripted: a client is answered, and no file is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.parts.clients.test_run import Home
from tests.real.claude_code import claude_path
from tests.real.codex_home import KEY, KEY_NAME, CodexHome
from tests.real.model_plans import plan, say
from tests.real.release import PLAIN_MODEL, codex_path

pytestmark = PLAIN_MODEL


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("name", ["codex", pytest.param("claude", marks=pytest.mark.exhaustive)])
async def test_a_client_is_answered_and_every_file_stays_as_it_was(
    name: str, codex_home: CodexHome, tmp_path: Path
) -> None:
    (folder := tmp_path / "run").mkdir()
    home = Home(folder)
    (home.programs / "codex").symlink_to(codex_path())
    if name == "claude":
        (home.programs / name).symlink_to(claude_path())
    before = files_in(codex_home.path)
    flags = ("exec", "--skip-git-repo-check") if name == "codex" else ("-p",)
    done = await asyncio.to_thread(
        home.run,
        *(name, "--", *flags, plan([say("Hello there.")])),
        **{"PROXY_CODEX_HOME": str(codex_home.path), KEY_NAME: KEY},
    )
    assert "Hello there." in done.stdout, done.stderr
    assert home.is_empty()
    assert files_in(codex_home.path) == before
