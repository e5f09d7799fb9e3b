"""The agent `auto`: finds the installed Codex, and chooses the agent for a protocol that this release supports."""

from __future__ import annotations

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex.codex_setup import codex_program, protocol_of
from codex_proxy.agents.codex.program import find_version
from codex_proxy.agents.codex_app_server.app_server_setup import make_app_server
from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck, check_binary
from codex_proxy.agents.spec import AgentContext
from codex_proxy.files.private import make_folder


async def make(context: AgentContext) -> Agent:
    """Makes the agent for the installed Codex. Raises `NoAgentError` or `Fault` if there is none that can be used."""
    program, environment = codex_program(context), context.child_environment()
    version = await find_version(program, environment)

    async def check() -> BinaryCheck:
        state = context.state_dir
        make_folder(state)
        return await check_binary(program, str(state), environment)

    protocol = await protocol_of(program, version, "auto", check, environment)
    if protocol.agent == "codex-proto":
        from codex_proxy.agents.codex_proto.proto_setup import make_proto

        return await make_proto(context)
    return await make_app_server(context)
