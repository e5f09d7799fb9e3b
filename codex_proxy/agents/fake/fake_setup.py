"""Makes the agent `fake`, and checks it for `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import codex_proxy
from codex_proxy import __version__
from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
from codex_proxy.agents.codex_app_server.app_server_setup import pool_limits
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.codex_proto.proto_setup import proto_argv
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.fake.fake_spec import OF_PARTS, PROTO_CAPABILITIES
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.account import AgentModel
from codex_proxy.core.checks import Check, CheckBuilder, Installation
from codex_proxy.process.child import Command

ROOT = str(Path(codex_proxy.__file__).parent.parent)
# -I: a json.py in the workspace must not stand in for the standard library. -S: `site`, and `runpy` of -m, would take a
# tenth of the CPU of a short turn.
START = f"import sys; sys.path.append({ROOT!r}); from fake_proto.__main__ import run; run()"
PROGRAM = (sys.executable, "-I", "-S", "-c", START)


async def make(context: AgentContext) -> Agent:
    env, dialect = context.child_environment(), context.settings.fake_dialect
    if dialect in OF_PARTS:
        return await OF_PARTS[dialect].make(context)
    return (_proto if dialect == "proto" else _app_server)(context, env)


def _proto(context: AgentContext, env: dict[str, str]) -> Agent:
    settings, limits = context.settings, context.child_limits
    argv = proto_argv(PROGRAM, parallel_tool_calls=settings.enable_parallel_tool_calls)
    return ChildPerTurnAgent(
        ChildSpec(
            name="fake",
            version=__version__,
            command=lambda turn: Command(argv, env, turn.workdir or str(settings.workdir), limits=limits),
            dialect=lambda: CodexProto(extended=True),
            capabilities=PROTO_CAPABILITIES,
            models=_models(),
            any_model=_takes_any_model(context),
            ahead=True,
        )
    )


def _app_server(context: AgentContext, env: dict[str, str]) -> Agent:
    settings = context.settings
    processes = AppServerProcesses(
        name="fake",
        version=__version__,
        plain=Command((*PROGRAM, "app-server"), env, str(settings.workdir), limits=context.child_limits),
        confinement=PlainConfinement("The fake agent", None),  # it reads nothing
        agent=None,
        empty_folder="",
        models=_models(),
        any_model=_takes_any_model(context),
    )
    return AppServerAgent(processes, pool_limits(settings), warm_plain=True)


def _models() -> tuple[AgentModel, ...]:
    return (
        AgentModel(
            id="fake-model",
            display_name="Fake",
            is_default=True,
            efforts=("low", "medium", "high"),
            service_tiers=("flex", "priority"),
        ),
    )


def _takes_any_model(context: AgentContext) -> bool:
    return context.environ.get("FAKE_CODEX_MODELS") == "any"


async def check(context: AgentContext) -> list[Check]:
    message = "The embedded fake agent is chosen: its answers are made up."
    advice = "For real answers, install Codex, sign in, and omit --agent."
    return [CheckBuilder("agent", kind="fake").warning(message, advice)]


async def installation(_: AgentContext) -> Installation:
    return Installation(installed=True, version=__version__)
