"""Agents on `codex app-server` whose processes exist on paper."""

from __future__ import annotations

from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.process.child import Command

COMMAND = Command(("agent",), {}, "/")


def app_server() -> AppServerAgent:
    processes = AppServerProcesses(
        name="app-server",
        version="",
        plain=COMMAND,
        confinement=PlainConfinement("It", None),
        agent=COMMAND,
        empty_folder="",
        models=(),
        any_model=True,
    )
    return AppServerAgent(processes, PoolLimits(), warm_plain=False)
