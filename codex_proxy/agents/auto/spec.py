"""The agent `auto`: finds the installed Codex, and chooses the agent for a protocol that this release supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.codex.agent_spec import codex_agent_spec
from codex_proxy.agents.codex.spec import (
    EXEC_INSTEAD,
    PLAIN_CODEX_SETTINGS,
    codex_program,
    lacks_for_exec,
    protocol_of,
)
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.faults import Fault

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck


async def _make(context: AgentContext) -> Agent:
    """Makes the agent for the installed Codex. Raises `NoAgentError` or `Fault` if there is none that can be used."""
    from codex_proxy.agents.codex.catalog import CatalogError
    from codex_proxy.agents.codex.program import find_version
    from codex_proxy.agents.codex_app_server.binary_check import check_binary
    from codex_proxy.agents.codex_exec.spec import make_exec
    from codex_proxy.files.private import make_folder

    program, environment = codex_program(context), context.child_environment()
    version = await find_version(program, environment)

    async def check() -> BinaryCheck:
        state = context.state_dir
        make_folder(state)
        return await check_binary(program, str(state), environment)

    protocol = await protocol_of(program, version, "auto", check, environment)
    if protocol.agent == "codex-proto":
        from codex_proxy.agents.codex_proto.spec import make_proto

        return await make_proto(context)
    if protocol.agent == "codex-exec":
        return await make_exec(context, protocol.warning)
    from codex_proxy.agents.codex_app_server.spec import make_app_server

    try:
        return await make_app_server(context)
    except Fault as fault:
        if not isinstance(fault.__cause__, CatalogError) or await lacks_for_exec(program, environment):
            raise
        return await make_exec(context, EXEC_INSTEAD.format(reason=f"{fault.failure.message}."))


AUTO = codex_agent_spec(
    "auto",
    summary="the Codex that is found, by a protocol that it speaks",
    make=_make,
    settings=PLAIN_CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
