"""Makes the agent `codex-proto`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex.codex_setup import NO_PROTO, codex_program, speaks_proto
from codex_proxy.agents.codex.codex_specs import PROTO_CAPABILITIES
from codex_proxy.agents.codex.plain_home import codex_environment, removed_home, user_config
from codex_proxy.agents.codex.process_config import arguments_of, exclude_pairs, provider_pairs
from codex_proxy.agents.codex.program import find_version
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.faults import misconfigured
from codex_proxy.process.child import Command
from codex_proxy.process.launch import child_environment, credential_names

NO_VIEW_IMAGE: Final = ("tools.view_image", "false")
"""The pair for `-c` that switches off the tool that reads images from the disk."""


def proto_argv(
    codex: tuple[str, ...], pairs: Iterable[tuple[str, str]] = (), *, parallel_tool_calls: bool = False
) -> tuple[str, ...]:
    """Returns the command line. `pairs` are for `-c`; 0.42 reads the values as JSON."""
    argv = (*codex, "proto", *arguments_of([NO_VIEW_IMAGE, *pairs]))
    return (*argv, "--config", "parallel_tool_calls=true") if parallel_tool_calls else argv


async def make_proto(context: AgentContext) -> Agent:
    """Makes the agent `codex-proto`. Raises `NoAgentError` or `Fault`."""
    program, settings, environ = codex_program(context), context.settings, context.environ
    version = await find_version(program, child_environment(environ))
    if not await speaks_proto(program, child_environment(environ)):
        raise misconfigured(NO_PROTO.format(version=version))
    provider = user_config(settings.codex_home).provider
    extra = settings.child_env_names
    env = codex_environment(environ, extra, provider) | {"CODEX_HOME": str(settings.codex_home)}
    pairs = [*provider_pairs(provider), *exclude_pairs(provider, credential_names(env, extra=extra))]
    argv = proto_argv((program,), pairs, parallel_tool_calls=settings.enable_parallel_tool_calls)
    limits = context.child_limits
    return ChildPerTurnAgent(
        ChildSpec(
            name="codex-proto",
            version=str(version),
            command=lambda turn: Command(argv, env, turn.workdir or str(settings.workdir), limits=limits),
            dialect=CodexProto,
            capabilities=PROTO_CAPABILITIES,
            models=(),
            any_model=True,
            ahead=True,
            trouble=lambda: removed_home(env),
        )
    )
