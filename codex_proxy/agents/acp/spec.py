"""The agents that speak ACP: those with a preset, and `acp` for any other program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from codex_proxy.agents.acp.presets import (
    CAPABILITIES,
    CLAUDE_ACP,
    CODEX_ACP,
    COPILOT,
    GEMINI,
    OPENCODE,
    QWEN,
    Preset,
)
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError

if TYPE_CHECKING:
    from codex_proxy.agents.acp.agent import Launch
    from codex_proxy.agents.agent import Agent
    from codex_proxy.commands.checkup import Check


def launch_of(preset: Preset, context: AgentContext) -> Launch:
    """Returns how the agent is started with these settings. Raises `NoAgentError` with a sentence that says what to
    do."""
    from codex_proxy.agents.acp.agent import Launch
    from codex_proxy.process.child import Command

    settings = context.settings
    argv = preset.argv
    if settings.agent_command:
        try:
            argv = tuple(shlex.split(settings.agent_command))
        except ValueError as error:
            raise NoAgentError(f"--agent-command (PROXY_AGENT_COMMAND) cannot be read: {error}.") from error
    if not argv:
        raise NoAgentError(
            "--agent acp needs the program that speaks ACP: give it with --agent-command (PROXY_AGENT_COMMAND), like "
            '"gemini --acp".'
        )
    if settings.agent_usage is not None:
        preset = msgspec.structs.replace(preset, usage=settings.agent_usage)
    workdir = str(settings.workdir)
    command = Command(argv, _environment(preset, context), workdir, limits=context.child_limits)
    return Launch(preset=preset, command=command, workdir=workdir, unconfined=settings.agent_unconfined)


def _environment(preset: Preset, context: AgentContext) -> dict[str, str]:
    """Returns the program's environment: the usual variables, its own, those of the preset, and those of
    `--agent-env`."""
    from codex_proxy.config import split_list

    names, given = [], {}
    for entry in split_list(context.settings.agent_env):
        name, equals, value = entry.partition("=")
        if equals:
            given[name] = value
        else:
            names.append(name)
    env = context.child_environment(*preset.keys, *names)
    return {**env, **merged(preset, context.environ), **given}


def merged(preset: Preset, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the preset's variables. A JSON value is merged over the JSON that the user has in the same variable."""
    out = dict(preset.env)
    for name, value in preset.env.items():
        users = environ.get(name)
        if users and value.startswith("{"):
            try:
                theirs, ours = msgspec.json.decode(users), msgspec.json.decode(value)
            except msgspec.MsgspecError:
                continue
            if isinstance(theirs, dict):
                out[name] = msgspec.json.encode({**theirs, **ours}).decode()
    return out


def _spec(preset: Preset, summary: str) -> AgentSpec:
    async def make(context: AgentContext) -> Agent:
        from codex_proxy.agents.acp.agent import AcpAgent

        return AcpAgent(launch_of(preset, context), context.clock)

    async def check(context: AgentContext) -> list[Check]:
        from codex_proxy.agents.acp.checks import check_program

        return await check_program(preset, lambda: launch_of(preset, context))

    return AgentSpec(
        name=preset.name,
        summary=summary,
        processes="one long-lived process with many sessions, warm before the first request",
        make=make,
        check=check,
        capabilities=CAPABILITIES,
        family="ACP",
        confined=preset.sandboxed,
        settings=frozenset({"agent_command", "agent_env", "agent_usage", "agent_unconfined", "child_env"}),
    )


GEMINI_SPEC: Final = _spec(GEMINI, "Gemini CLI, by `gemini --acp`")
QWEN_SPEC: Final = _spec(QWEN, "Qwen Code, by `qwen --acp`")
OPENCODE_SPEC: Final = _spec(OPENCODE, "opencode, by `opencode acp`")
COPILOT_SPEC: Final = _spec(COPILOT, "GitHub Copilot CLI, by `copilot --acp`")
CLAUDE_ACP_SPEC: Final = _spec(CLAUDE_ACP, "Claude Code, by its ACP adapter `claude-agent-acp`")
CODEX_ACP_SPEC: Final = _spec(CODEX_ACP, "Codex, by its ACP adapter `codex-acp`")
ACP_SPEC: Final = _spec(
    Preset(name="acp", title="The agent", argv=()),
    "any program that speaks the Agent Client Protocol, as `--agent-command` names it",
)
