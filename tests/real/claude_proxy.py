"""A proxy whose agent is the real Claude Code, with a home of the test's, and the scripted model as its provider.

The program is that of `claude_code.claude_path`: where there is none, these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI

from codex_proxy.app.server import Server
from codex_proxy.settings.fields import Settings
from tests.real.anthropic_model import AnthropicModel
from tests.real.claude_code import claude_path
from tests.real.proxy import serve


def environment_of(folder: Path, model: AnthropicModel, *, key: str = "sk-ant-test") -> dict[str, str]:
    """The server's variables. Nothing of this machine's Claude Code is in them."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": model.url,
    }
    return environment | ({"ANTHROPIC_API_KEY": key} if key else {})


def settings_of(folder: Path, **more: Any) -> Settings:
    """Settings of a proxy whose every file is in this folder."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    given: dict[str, Any] = {
        "agent": "claude-code",
        "claude_bin": str(claude_path()),
        "child_env": "ANTHROPIC_API_KEY",
        "workdir": work,
        "state_dir": folder / "state",
        "port": 0,
        "drain_ms": 0,
    }
    return Settings(**(given | more))


@asynccontextmanager
async def claude_proxy(
    folder: Path, model: AnthropicModel, *, key: str = "sk-ant-test", start_digest: str = "", **more: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """A running proxy in this process, and the official SDK as its client."""
    async with serve(
        settings_of(folder, **more), environment_of(folder, model, key=key), start_digest
    ) as running:
        yield running


def claude_processes() -> list[psutil.Process]:
    """Every process of Claude Code that this process has started, however deep."""
    return [each for each in psutil.Process().children(recursive=True) if _is_claude(each)]


def _is_claude(process: psutil.Process) -> bool:
    try:
        return "--input-format" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
