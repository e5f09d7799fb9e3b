"""The agent `codex-proto`: older Codex, one `codex proto` for each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from codex_proxy.agents.codex.spec import NO_PROTO, codex_program, provider_of, speaks_proto
from codex_proxy.agents.spec import AgentContext, AgentSpec

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.base import Capability
    from codex_proxy.commands.checkup import Check

CAPABILITIES: Final[frozenset[Capability]] = frozenset({"images"})


async def make_proto(context: AgentContext) -> Agent:
    """Looks at the program and the user's config.toml. Raises `NoAgentError` or `Fault`."""
    from codex_proxy.agents.child_per_turn import ChildPerTurnAgent, ChildSpec
    from codex_proxy.agents.codex.commands import find_version, misconfigured
    from codex_proxy.agents.codex.shadow_home import shell_exclude
    from codex_proxy.agents.codex_proto.dialect import CodexProto
    from codex_proxy.agents.codex_proto.launch import proto_argv
    from codex_proxy.config import split_list
    from codex_proxy.process.child import Command
    from codex_proxy.process.environment import child_environment, credential_names

    program, settings, environ = codex_program(context), context.settings, context.environ
    version = await find_version(program, child_environment(environ))
    if not await speaks_proto(program, child_environment(environ)):
        raise misconfigured(NO_PROTO.format(version=version))
    try:
        provider = provider_of(settings.codex_home / "config.toml")
    except ValueError as error:
        raise misconfigured(str(error)) from error
    extra = split_list(settings.child_env)
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
        )
    )


async def _check(context: AgentContext) -> list[Check]:
    from codex_proxy.agents.codex.checks import codex_checks

    return await codex_checks(context, "codex-proto")


SPEC = AgentSpec(
    name="codex-proto",
    summary="older Codex, by `codex proto` (JSON lines)",
    processes="one for each turn",
    make=make_proto,
    check=_check,
    capabilities=CAPABILITIES,
    confined=True,
    uses_codex=True,
)
