"""A server that is started in a terminal: what it shows there approves, and no child of an agent finds it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.parts.sessions.approving import answer_to
from tests.waiting import PATIENCE, eventually

LINK: Final = re.compile(r"(http://127\.0\.0\.1:\d+)/#key=(\S+)")
ROOT: Final = Path(__file__).parents[3]
LOOKING_CHILD: Final = """#!/bin/sh
{{
  env; echo "$@"
  cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ
  find {folder} -type f -not -name 'found*' -exec cat {{}} +
}} > {folder}/found.part 2>/dev/null
mv {folder}/found.part {folder}/found.$$
exec {python} -P -m fake_proto claude "$@"
"""


@asynccontextmanager
async def in_terminal(folder: Path, *arguments: str) -> AsyncIterator[tuple[str, str]]:
    """A server whose output is a terminal. Yields its address, and the key of this start."""
    child = folder / "claude"
    child.write_text(LOOKING_CHILD.format(folder=folder, python=shlex.quote(sys.executable)))
    child.chmod(0o755)
    (folder / "work").mkdir()
    own, theirs = os.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PROXY_STATE_DIR": str(folder / "state"),
        "PROXY_CLAUDE_BIN": str(child),
        "PROXY_APPROVALS": "ask",
        "PROXY_DRAIN_MS": "0",
    }
    with open(own, "rb", 0) as screen, open(theirs, "wb", 0) as terminal, (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "codex_proxy", "serve", "--port", "0", "--agent", "claude-code"),
            *("--workdir", str(folder / "work"), "--sandbox", "danger-full-access", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=terminal,
            stderr=log,
            env=environment,
            cwd=folder,
        )
        shown = bytearray()
        loop = asyncio.get_running_loop()
        loop.add_reader(screen, lambda: shown.extend(screen.read(65536) or b""))
        try:
            found = await eventually(lambda: LINK.search(shown.decode()) or process.returncode is not None)
            assert isinstance(found, re.Match), (shown.decode(), (folder / "log").read_text())
            yield found[1], found[2]
        finally:
            loop.remove_reader(screen)
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(PATIENCE):
                await process.wait()


async def test_what_the_terminal_shows_approves_and_no_child_finds_it(tmp_path: Path) -> None:
    folder: Any = {"type": "self_hosted", "workspace_directory": str(tmp_path / "work"), "remote_url": ""}
    agent: Any = {"model": "codex-5"}
    async with (
        in_terminal(tmp_path) as (url, key),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as person,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as program,
    ):
        for text in ("[[fake:approval]]", "[[fake:approval_patch]]"):
            stream = await program.beta.agents.sessions.create(
                environment=folder, agent=agent, input=text, stream=True
            )
            events = []
            async for event in stream:
                events.append(event.type)
                if event.type == "agent.session.requires_action":
                    sent = answer_to({"request_id": event.session.required_actions[0].request_id})  # type: ignore[union-attr]
                    with pytest.raises(openai.PermissionDeniedError, match="key of this start"):
                        await program.beta.agents.sessions.events.create(event.session.id, events=[sent])  # type: ignore[list-item]
                    await person.beta.agents.sessions.events.create(event.session.id, events=[sent])  # type: ignore[list-item]
            assert events[-2:] == ["agent.session.turn.completed", "agent.session.idle"]
        found = b"".join(path.read_bytes() for path in tmp_path.glob("found.[0-9]*"))
        assert b"codex_proxy\0serve" in found  # it has seen the server's process,
        assert b"SQLite format 3" in found  # and the files of the state folder
        assert key.encode() not in found
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key.encode() not in kept
