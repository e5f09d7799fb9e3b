"""The two servers of a run, and their agents and upstreams."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.torture_lib.proxy import Proxy

SECRET = "whsec_c2VjcmV0IGZvciB0ZXN0cw=="
KEPT_SECONDS = 2
"""Seconds that an idle session of an agent is kept, so that a server without requests soon has none."""
MCP_PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "mcp" / "program.py"
DIALECTS = {"server": "app-server", "proto": "proto", "acp": "acp"}
"""The dialects of the steady server's fake agents, by their names."""


def steady_server(folder: Path, hook: str, evil_port: str, plant: str) -> Proxy:
    """Returns a server with a fake agent of each dialect, and an evil upstream of each API."""
    folder.mkdir()
    claude = folder / "claude"
    claude.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m fake_proto claude "$@"\n')
    claude.chmod(0o755)
    agents: dict[str, dict[str, object]] = {
        name: {"agent": "fake", "fake_dialect": dialect} for name, dialect in DIALECTS.items()
    }
    agents["claude"] = {"agent": "claude-code", "claude_bin": str(claude)}
    url = f"http://127.0.0.1:{evil_port}/v1"
    limits = {"health_interval": 1, "idle_timeout": 3, "first_byte_timeout": 3, "breaker_failures": 0}
    upstreams = {
        f"evil-{wire}": {"url": url, "wire": wire, "retries": 1, "default_model": "evil", **limits}
        for wire in ("chat", "responses")
    }
    return Proxy(
        folder,
        {
            **_settings(folder, hook),
            "PROXY_AGENT": "server",
            "PROXY_AGENTS": json.dumps(agents),
            "PROXY_UPSTREAMS": json.dumps(upstreams),
        },
        models=["codex-5", "codex-5", *(f"{name}/codex-5" for name in agents)],
        evil_models=[f"{name}/evil" for name in upstreams],
        plant=plant,
    )


def killed_server(
    folder: Path,
    hook: str,
    more: Mapping[str, str] = {},
    *,
    keys: Sequence[str] = (),
    plant: str = "none",
) -> Proxy:
    """Returns a server with one fake agent, which starts a process for each turn."""
    folder.mkdir()
    settings = {"PROXY_AGENT": "fake", "PROXY_FAKE_DIALECT": "proto", **more}
    return Proxy(folder, {**_settings(folder, hook), **settings}, models=["codex-5"], keys=keys, plant=plant)


def _settings(folder: Path, hook: str) -> dict[str, str]:
    """Returns the settings of both servers: short limits, webhooks, and an MCP server that dies or hangs."""
    tools = {"command": sys.executable, "args": [str(MCP_PROGRAM), "stdio", "--tools", "300"]}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"tools": tools}}))
    return {
        "PROXY_FIRST_EVENT_TIMEOUT": "3",
        "PROXY_IDLE_TIMEOUT": "3",
        "PROXY_TOTAL_TIMEOUT": "8",
        "PROXY_KEPT_THREADS": "16",
        "PROXY_KEPT_THREAD_SECONDS": str(KEPT_SECONDS),
        "PROXY_DRAIN_MS": "500",
        "PROXY_WEBHOOKS_URLS": hook,
        "PROXY_WEBHOOKS_SECRET": SECRET,
        "PROXY_MCP_CONFIG": str(config),
        "PROXY_MCP_CALL_TIMEOUT": "3",
    }
