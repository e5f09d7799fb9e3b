"""Installs clients, each into an environment of its own from its lock, and runs them against a server.

A client of a package manager has a program in `programs` that does what `programs/checks.*` names and prints what came
of it. A program that is a client itself is run by `codex-proxy run` and says one thing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from codex_proxy.parts.clients.clients import PROGRAMS as KNOWN
from tests.pictures import PIXEL

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent
CACHE: Final = ROOT / ".cache" / "clients"
CHECKS: Final = ("text", "tools", "schema", "images", "cancel")
SECONDS: Final = 300.0
ANSWER_TEXT: Final = "Hello there"
PROMPT: Final = f"[[fake:text say='{ANSWER_TEXT}.']]"


@dataclass(frozen=True)
class Client:
    """A client. `kind`: `npm` and `pip` have a lock in `locks`, `dev` is in requirements/dev.txt, and a `program` is on
    PATH. `wire` is the API that it speaks. `arguments` are those of a program."""

    name: str
    title: str
    wire: str
    kind: Literal["npm", "pip", "dev", "program"]
    arguments: tuple[str, ...] = ()
    script: str = ""
    mode: str = ""

    @property
    def folder(self) -> Path:
        return CACHE / (self.script or self.name)

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.kind == "dev" else self.folder / "bin" / "python"

    @property
    def missing(self) -> str:
        """Why it cannot be run; empty if it is there."""
        if self.kind == "program":
            return "" if shutil.which(self.name) else f"{self.name} is not on PATH"
        there = (self.folder / "node_modules").is_dir() and shutil.which("node")
        if self.kind == "npm" and not there:
            return "not installed: scripts/clients --install"
        return (
            "" if self.kind == "npm" or self.python.exists() else "not installed: scripts/clients --install"
        )


CHAT, RESPONSES, MESSAGES, OLLAMA = "Chat Completions", "Responses", "Messages", "Ollama"
CLIENTS: Final = (
    Client("openai-python", "openai-python", RESPONSES, "dev"),
    Client("openai-node", "openai-node", CHAT, "npm"),
    Client("anthropic-python", "anthropic-sdk-python", MESSAGES, "dev"),
    Client("anthropic-node", "anthropic-sdk-typescript", MESSAGES, "npm"),
    Client("ollama-python", "ollama (PyPI)", OLLAMA, "dev"),
    Client("ollama-js", "ollama (npm)", OLLAMA, "npm"),
    Client("ai-sdk", "Vercel AI SDK", CHAT, "npm"),
    Client("langchain-python", "LangChain", CHAT, "dev"),
    Client("langchain-js", "LangChain JS", RESPONSES, "npm"),
    Client("llama-index", "LlamaIndex", CHAT, "pip"),
    Client("pydantic-ai", "Pydantic AI", CHAT, "pip"),
    Client("openai-agents-chat", "OpenAI Agents SDK", CHAT, "pip", script="openai-agents", mode="chat"),
    Client("openai-agents-responses", "OpenAI Agents SDK", RESPONSES, "pip", script="openai-agents"),
    Client("litellm", "LiteLLM", CHAT, "pip", script="litellm-client"),
    Client("claude", "Claude Code", MESSAGES, "program", ("-p", PROMPT)),
    Client("codex", "Codex", RESPONSES, "program", ("exec", "--skip-git-repo-check", PROMPT)),
    Client("opencode", "opencode", CHAT, "program", ("run", PROMPT)),
    Client("qwen", "Qwen Code", CHAT, "program", ("-p", PROMPT)),
    Client("aider", "Aider", CHAT, "program", ("--no-git", "--no-stream", "--yes", "--message", PROMPT)),
)
assert all(client.name in KNOWN for client in CLIENTS if client.kind == "program")


def install(client: Client) -> str:
    """Installs a client from its lock. Returns why that is not possible; empty if it is there."""
    name = client.script or client.name
    if client.kind == "npm":
        shutil.copytree(HERE / "locks" / name, client.folder, dirs_exist_ok=True)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    elif client.kind == "pip" or (client.name == "aider" and client.missing):
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / name)], check=True, timeout=SECONDS)
        pip = str(CACHE / name / "bin" / "pip")
        command = [pip, "install", "--quiet", "--no-deps", "-r", str(HERE / "locks" / f"{name}.txt")]
    else:
        return client.missing
    folder = CACHE / name
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    return "" if run.returncode == 0 else run.stderr.strip()[-300:]


async def run_client(
    client: Client,
    url: str,
    folder: Path,
    *,
    model: str = "codex-5",
    asked: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs a client against the server at `url` (without `/v1`), with `folder` as its home. `asked` is what it says to
    another agent than the fake one, by the check. Returns its `version`, and its `results`: `yes`, or what came
    instead, by the check."""
    home = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": "", "MODE": client.mode}
    checks = {"BASE_URL": f"{url}/v1", "PIXEL": PIXEL, "MODEL": model, "ASKED": json.dumps(asked or {})}
    environment = {"PATH": os.environ["PATH"], **home, **checks}
    name = client.script or client.name
    if client.kind == "program":
        return await _run_program(client, url, folder, environment)
    if client.kind == "npm":
        for each in ("checks.mjs", f"{name}.mjs"):
            shutil.copy(HERE / "programs" / each, client.folder / each)
        command = ["node", f"{name}.mjs"]
    else:
        command = [str(client.python), str(HERE / "programs" / f"{name}.py")]
    said = await output_of(command, environment, client.folder if client.kind == "npm" else folder)
    answer: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return answer


async def _run_program(
    client: Client, url: str, folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    port = {"PROXY_PORT": url.rpartition(":")[2]}
    command = [sys.executable, "-m", "codex_proxy", "run", client.name, "--", *client.arguments]
    version = await output_of([client.name, "--version"], environment, folder)
    said = await output_of(command, {**environment, **port, "PYTHONPATH": str(ROOT)}, folder)
    found = [word for word in version.split() if word[:1].isdigit()]
    return {
        "version": (found or ["?"])[0],
        "results": {"text": "yes" if ANSWER_TEXT in said else said[-300:]},
    }


async def output_of(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {process.returncode}: {errors.decode()[-2000:]}")
    return said.decode()
