"""The agent `auto`: the Codex that is found, by the protocol that its release speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.codex.spec import codex_program, dialect_for
from codex_proxy.agents.spec import AgentContext, AgentSpec

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.commands.checkup import Check


async def _make(context: AgentContext) -> Agent:
    """The agent that the release of the Codex that is found speaks the protocol of."""
    from codex_proxy.agents.codex.commands import find_version
    from codex_proxy.process.environment import child_environment

    program = codex_program(context)
    version = await find_version(program, child_environment(context.environ))
    if dialect_for("auto", version) == "codex-proto":
        from codex_proxy.agents.codex_proto.spec import make_proto

        return await make_proto(context)
    from codex_proxy.agents.codex_app_server.spec import make_app_server

    return await make_app_server(context)


async def _check(context: AgentContext) -> list[Check]:
    from codex_proxy.agents.codex.checks import codex_checks

    return await codex_checks(context, "auto")


AUTO = AgentSpec(
    name="auto",
    summary="the Codex that is found, by the protocol that its release speaks",
    processes="as that agent has them",
    make=_make,
    check=_check,
    confined=True,
    uses_codex=True,
)
