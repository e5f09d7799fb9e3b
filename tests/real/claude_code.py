"""The real Claude Code as a client of the proxy: a session is one process that is spoken to in lines of JSON.

The program is the one that ``TEST_CLAUDE`` names (`scripts/agent-programs` installs it), else it is installed by npm,
once, in the folder for temporary files.
It is told of the proxy by the file that `codex-proxy connect claude-code --write` makes, and sees no other settings.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from codex_proxy.parts.claude_code.launch import NEWEST_TESTED, version_text
from codex_proxy.parts.clients.clients import BY_NAME
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess, entries_of
from codex_proxy.parts.clients.documents import set_values
from tests.npm import installed
from tests.waiting import PATIENCE

VERSION = version_text(NEWEST_TESTED)
"""What the notes on its requests were made with."""
PACKAGE = "@anthropic-ai/claude-code"
MAX_LINE = 1 << 26
"""Bytes of a line that it prints: an image stands in one."""


@cache
def claude_path() -> Path:
    """The program. Skips the test, with the reason, where there is none and npm cannot install it."""
    named = os.environ.get("TEST_CLAUDE")
    if named:
        assert Path(named).is_file(), f"TEST_CLAUDE={named} is no file"
        return Path(named)
    return installed(f"{PACKAGE}@{VERSION}") / "node_modules" / ".bin" / "claude"


@dataclass
class ClaudeCode:
    """One session."""

    process: asyncio.subprocess.Process
    workdir: Path
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Everything that it has told, in its order."""

    async def ask(self, text: str) -> dict[str, Any]:
        """Says something, and gives the result of what it did then."""
        await self.send(self.user_message(text))
        return await self.until("result")

    @staticmethod
    def user_message(text: str) -> dict[str, Any]:
        """The message that says this."""
        return {"type": "user", "message": {"role": "user", "content": text}}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Writes one message to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def interrupt(self) -> None:
        """Does what Esc does."""
        await self.send(
            {"type": "control_request", "request_id": "stop", "request": {"subtype": "interrupt"}}
        )

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next message of this type with these fields."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            async for line in self.process.stdout:
                message: dict[str, Any] = json.loads(line)
                self.messages.append(message)
                if message["type"] == kind and fields.items() <= message.items():
                    return message
        errors = await self.process.stderr.read() if self.process.stderr is not None else b""
        raise AssertionError(f"it ended without a message of type {kind}: {errors.decode()}")

    async def until_text(self, text: str) -> None:
        """Reads until the model has said so."""
        said = ""
        while text not in said:
            event = (await self.until("stream_event"))["event"]
            said += event.get("delta", {}).get("text", "")

    def blocks(self, kind: str) -> list[dict[str, Any]]:
        """The content blocks of this type that it has told of, sub-agents' included."""
        contents = [
            each["message"]["content"] for each in self.messages if each["type"] in ("assistant", "user")
        ]
        return [
            block
            for content in contents
            if isinstance(content, list)
            for block in content
            if block["type"] == kind
        ]

    def results(self, name: str) -> list[dict[str, Any]]:
        """The results of the calls of the tool of this name, in the order of the calls."""
        results = {block["tool_use_id"]: block for block in self.blocks("tool_result")}
        used = [block["id"] for block in self.blocks("tool_use") if block["name"] == name]
        return [results[id] for id in used]


@asynccontextmanager
async def claude_code(
    folder: Path,
    url: str,
    *,
    model: str = "codex-5",
    environment: Mapping[str, str] | None = None,
    servers: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[ClaudeCode]:
    """A session in an empty folder, which asks for nobody's permission. `servers`: MCP servers by name, each with its
    command."""
    user, workdir = folder / "user", folder / "work"
    for each in (user / ".claude", workdir):
        each.mkdir(parents=True, exist_ok=True)
    target = ServerAccess(base_url=f"{url}/v1", model=model, key=NO_KEY)
    (user / ".claude" / "settings.json").write_text(
        set_values("", "json", entries_of(BY_NAME["claude-code"], target))
    )
    named = {name: {"command": command[0], "args": command[1:]} for name, command in (servers or {}).items()}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": named}))
    process = await asyncio.create_subprocess_exec(
        *(str(claude_path()), "--print", "--verbose", "--input-format", "stream-json"),
        *("--output-format", "stream-json", "--include-partial-messages"),
        *("--permission-mode", "bypassPermissions", "--strict-mcp-config", "--mcp-config", str(config)),
        cwd=workdir,
        # IS_SANDBOX: as root it would insist on asking for permission
        env={"PATH": os.environ["PATH"], "HOME": str(user), "IS_SANDBOX": "1", **(environment or {})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE,
    )
    try:
        yield ClaudeCode(process, workdir)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
