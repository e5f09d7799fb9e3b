"""A proxy whose agent is a real program that speaks ACP, with a home of the test's, and a scripted model behind it.

The programs come from npm, and are in none of the locked packages: `scripts/agent-programs` installs them. Where one is
not on `PATH` its tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import Server
from codex_proxy.parts.acp.presets import PRESETS
from codex_proxy.settings.fields import Settings
from tests.real.proxy import serve
from tests.waiting import PATIENCE

AGENTS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.xdist_group(name),  # with `--dist loadgroup` one worker starts it
            pytest.mark.skipif(
                shutil.which(preset.argv[0]) is None,
                reason=f"{preset.title} is not installed: scripts/agent-programs installs {preset.tested_release}",
            ),
        ],
    )
    for name, preset in PRESETS.items()
]
"""Every preset, for `pytest.mark.parametrize`."""

SHELL: dict[str, tuple[str, dict[str, Any]]] = {
    "gemini": ("run_shell_command", {"command": "touch made.txt"}),
    "qwen": ("run_shell_command", {"command": "touch made.txt", "is_background": False, "description": "x"}),
    "opencode": ("bash", {"command": "touch made.txt", "description": "x"}),
    "copilot": ("bash", {"command": "touch made.txt", "description": "x"}),
    "claude-acp": ("Bash", {"command": "touch made.txt", "description": "x"}),
    "codex-acp": ("exec_command", {"cmd": "touch made.txt"}),
    "kilo": ("bash", {"command": "touch made.txt", "description": "x"}),
    "kimi": ("Bash", {"command": "touch made.txt"}),
}
"""What a model of each agent calls to run a command that makes a file."""


ANSWER_SECONDS = 4 * PATIENCE
"""How long an answer may take. The first one of `opencode` costs eight seconds of a processor, of any home, and a turn
that is confined starts it twice: with ten programs beside it on two processors that is more than `PATIENCE`.
"""


def environment_of(agent: str, folder: Path, url: str) -> dict[str, str]:
    """The server's variables: by them the agent finds the scripted model, and nothing of this machine's settings."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own: dict[str, str] = {}
    match agent:
        case "claude-acp":
            own = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-test", "IS_SANDBOX": "1"}
            own["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
        case "codex-acp":
            own = {"CODEX_HOME": str(_codex_home(home, url)), "MOCK_KEY": "x"}
        case "gemini":
            own = {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_MODEL": "gemini-2.5-flash"}
        case "qwen":
            settings = {"tools": {"toolSearch": {"enabled": False}}, "general": {"disableAutoUpdate": True}}
            (home / ".qwen").mkdir(exist_ok=True)
            (home / ".qwen" / "settings.json").write_text(json.dumps(settings))
            own = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "mock-model"}
        case "opencode":
            own = {"OPENCODE_CONFIG_CONTENT": _opencode_config(url), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        case "kilo":
            own = {"KILO_CONFIG_CONTENT": _opencode_config(url), "KILO_DISABLE_MODELS_FETCH": "1"}
        case "kimi":
            own = {"KIMI_MODEL_NAME": "mock-model", "KIMI_MODEL_API_KEY": "x"}
            own |= {"KIMI_MODEL_BASE_URL": f"{url}/v1", "KIMI_MODEL_PROVIDER_TYPE": "openai"}
        case "copilot":
            own = {"COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": "x"}
            own |= {"COPILOT_MODEL": "mock-model", "COPILOT_OFFLINE": "true"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), **own}


def signed_out_environment(folder: Path) -> dict[str, str]:
    """The variables of a server whose agent has no settings and no key, and reaches nothing but this machine."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "IS_SANDBOX": "1"}


def _codex_home(home: Path, url: str) -> Path:
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    provider = f'name = "mock"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "MOCK_KEY"\n'
    retries = "request_max_retries = 0\nstream_max_retries = 0\n"
    text = f'model = "mock"\nmodel_provider = "mock"\n[model_providers.mock]\n{provider}{retries}'
    (folder / "config.toml").write_text(text)
    return folder


def _opencode_config(url: str) -> str:
    limits = {"limit": {"context": 128000, "output": 8000}, "tool_call": True, "reasoning": True}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {"mock-model": {"name": "Mock", **limits}},
    }
    names = {"model": "mock/mock-model", "small_model": "mock/mock-model", "share": "disabled"}
    return json.dumps({**names, "autoupdate": False, "provider": {"mock": provider}})


@asynccontextmanager
async def acp_proxy(
    agent: str, folder: Path, url: str, *, signed_in: bool = True, **more: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """A running proxy in this process, and the official SDK as its client."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    given: dict[str, Any] = {
        "agent": agent,
        "workdir": work,
        "state_dir": folder / "state",
        "port": 0,
        "drain_ms": 0,
        "acp": {"env": "MOCK_KEY"},
    }
    environment = environment_of(agent, folder, url) if signed_in else signed_out_environment(folder)
    async with serve(Settings(**(given | more)), environment) as (client, server):
        yield client.with_options(timeout=ANSWER_SECONDS), server


def agent_processes() -> list[psutil.Process]:
    """Every process that this one has started, however deep, but for those of the tests themselves."""
    return [each for each in psutil.Process().children(recursive=True) if _counts(each)]


def _counts(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "multiprocessing" not in " ".join(
            process.cmdline()
        )
    except psutil.Error:
        return False
