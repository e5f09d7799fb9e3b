"""The agent `codex-proto`: older Codex, with a process for each turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from codex_proxy.agents.codex.agent_spec import codex_agent_spec
from codex_proxy.agents.codex.spec import (
    CODEX_SETTINGS,
    NO_PROTO,
    codex_program,
    provider_of,
    speaks_proto,
)
from codex_proxy.agents.spec import AgentContext

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.dialect import Capability

CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"images", "sandbox", "exact_usage", "stop_reasons", "model_choice"}
)

NO_VIEW_IMAGE: Mapping[str, object] = {"tools.view_image": False}
"""Switches off the tool that reads images from the disk."""

RETRY_COUNTS = ("request_max_retries", "stream_max_retries")
"""How often Codex repeats a request."""


def proto_argv(
    codex: tuple[str, ...],
    *,
    config: Mapping[str, object] | None = None,
    custom_provider: str | None = None,
    parallel_tool_calls: bool = False,
) -> tuple[str, ...]:
    """Returns the arguments of `codex proto`; 0.42 reads `-c` values as JSON. `config` overrides the proxy's settings.
    `custom_provider` is a provider in config.toml, whose retries are off, because they repeat text.
    """
    overrides = {
        **NO_VIEW_IMAGE,
        **no_retries(custom_provider),
        **(config or {}),
    }
    argv = [*codex, "proto"]
    for key, value in overrides.items():
        argv += ("-c", f"{key}={msgspec.json.encode(value).decode()}")
    if parallel_tool_calls:
        argv += ("--config", "parallel_tool_calls=true")
    return tuple(argv)


def no_retries(provider: str | None) -> dict[str, object]:
    return {f"model_providers.{provider}.{name}": 0 for name in RETRY_COUNTS} if provider else {}


async def make_proto(context: AgentContext) -> Agent:
    """Returns the agent, not started. Raises `NoAgentError` or `Fault`."""
    from codex_proxy.agents.codex.program import find_version, misconfigured
    from codex_proxy.agents.codex.shadow_home import shell_exclude
    from codex_proxy.agents.codex_proto.dialect import CodexProto
    from codex_proxy.agents.processes.child_per_turn import ChildPerTurnAgent, ChildSpec
    from codex_proxy.process.child import Command
    from codex_proxy.process.launch import child_environment, credential_names

    program, settings, environ = codex_program(context), context.settings, context.environ
    version = await find_version(program, child_environment(environ))
    if not await speaks_proto(program, child_environment(environ)):
        raise misconfigured(NO_PROTO.format(version=version))
    try:
        provider = provider_of(settings.codex_home / "config.toml")
    except ValueError as error:
        raise misconfigured(str(error)) from error
    extra = settings.child_env_names
    env = child_environment(environ, extra=extra, env_keys=provider.env_names, credentials=True) | {
        "CODEX_HOME": str(settings.codex_home)
    }
    hidden = shell_exclude(provider, credential_names(env, extra=extra))
    argv = proto_argv(
        (program,),
        config={"shell_environment_policy.exclude": list(hidden)} if hidden else None,
        custom_provider=provider.id if provider.custom else None,
        parallel_tool_calls=settings.enable_parallel_tool_calls,
    )
    limits = context.child_limits
    return ChildPerTurnAgent(
        ChildSpec(
            name="codex-proto",
            version=str(version),
            command=lambda turn: Command(argv, env, turn.workdir or str(settings.workdir), limits=limits),
            dialect=CodexProto,
            capabilities=CAPABILITIES,
            models=(),
            any_model=True,
            ahead=True,
        )
    )


SPEC = codex_agent_spec(
    "codex-proto",
    summary="older Codex, by `codex proto` (JSON lines)",
    make=make_proto,
    capabilities=CAPABILITIES,
    settings=CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
