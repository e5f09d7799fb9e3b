"""The agent `auto`: looks for Codex and chooses the agent that speaks a protocol of that release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.codex.spec import check_with, codex_program, protocol_of
from codex_proxy.agents.spec import AgentContext, AgentSpec

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck


async def _make(context: AgentContext) -> Agent:
    """Makes the agent for the release of Codex that is installed."""
    from codex_proxy.agents.codex.commands import find_version
    from codex_proxy.agents.codex_app_server.binary_check import check_binary
    from codex_proxy.files.private import make_folder

    program, environment = codex_program(context), context.child_environment()
    version = await find_version(program, environment)

    async def check() -> BinaryCheck:
        state = context.settings.state_dir
        make_folder(state)
        return await check_binary(program, str(state), environment)

    protocol = await protocol_of(program, version, "auto", check, environment)
    if protocol.agent == "codex-proto":
        from codex_proxy.agents.codex_proto.spec import make_proto

        return await make_proto(context)
    from codex_proxy.agents.codex_app_server.spec import make_app_server

    return await make_app_server(context)


AUTO = AgentSpec(
    name="auto",
    summary="the Codex that is found, by a protocol that it speaks",
    processes="as that agent has them",
    make=_make,
    check=check_with("auto"),
    confined=True,
    uses_codex=True,
)
