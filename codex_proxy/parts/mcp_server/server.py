"""The MCP server itself, by the large `mcp` package, which is imported when somebody asks for it. A call that fails by
its client's or agent's fault is a result with `isError`, which the model reads; no message has a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError

from codex_proxy import __version__
from codex_proxy.core.faults import Fault
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.mcp_server.arguments import READ_ONLY, STARTING, TOOLS, WaitSession
from codex_proxy.parts.mcp_server.questions import Persons
from codex_proxy.parts.mcp_server.work import CALLS, Caller, Result
from codex_proxy.surfaces.requests.options import SANDBOX_HEADER

CALLER: Final = "codex_proxy.caller"
"""What the scope of a request has: its `Caller`."""
_ARGUMENTS: Final = {
    "environment.workspace_directory": "folder",
    SANDBOX_HEADER: "sandbox",
    "agent.model": "model",
    "GET /v1/models lists": "list_agents lists",
}
INSTRUCTIONS: Final = (
    "Starts coding agents that work on their own, each in a session. Start one with start_session, then call "
    "wait_session until its state is no longer `working`; continue_session steers it or goes on with it. What an agent "
    "asks permission for is decided by a person, and by no tool."
)


CallTool: TypeAlias = Callable[
    [ServerRequestContext[Any, Any], CallToolRequestParams], Awaitable[CallToolResult | InputRequiredResult]
]


def make_server(call_tool: CallTool) -> Server[Any]:
    """Returns a server with the tools, which `call_tool` runs."""
    server: Server[Any] = Server(
        "codex-proxy",
        title="codex-proxy",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.clear()  # traces of its own, with what clients say
    return server


async def list_tools(_: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
    """Returns the tools."""
    return ListToolsResult(tools=[_tool(name) for name in TOOLS])


def _tool(name: str) -> Tool:
    arguments = TOOLS[name]
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    description = " ".join((schema.pop("description", "")).split())
    annotations = ToolAnnotations(
        read_only_hint=name in READ_ONLY, destructive_hint=False, open_world_hint=name in STARTING
    )
    return Tool(name=name, description=description, input_schema=schema, annotations=annotations)


async def call_tool(
    persons: Persons, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    """Runs a tool for the `Caller` of the request."""
    assert context.request is not None, "a message comes in a request"
    caller: Caller = context.request.scope[CALLER]
    arguments = TOOLS.get(params.name)
    if arguments is None:
        raise MCPError(INVALID_PARAMS, f"There is no tool {excerpt(params.name)}. tools/list has the names.")
    progress = 0

    async def tell(line: str) -> None:
        nonlocal progress
        progress += 1
        await context.session.report_progress(progress, message=line)

    try:
        given = arguments.model_validate(params.arguments or {})
        if not isinstance(given, WaitSession):
            return result_of(await CALLS[params.name](caller, given, tell))
        waited = await persons.wait(context, caller, given.session_id, tell, params.input_responses)
        return waited if isinstance(waited, InputRequiredResult) else result_of(waited)
    except ValidationError as error:
        return failed(_wrong(error))
    except Fault as fault:
        return failed(_refusal(fault))


def _refusal(fault: Fault) -> str:
    """Returns what a fault says, with the names of tools and their arguments in place of those of the APIs."""
    said = (
        f"{fault.failure.message} (`{fault.failure.param}`)" if fault.failure.param else fault.failure.message
    )
    for name, argument in _ARGUMENTS.items():
        said = said.replace(name, argument)
    return said


def _wrong(error: ValidationError) -> str:
    """Returns what is wrong with the arguments, without their values."""
    wrong = [
        f"`{'.'.join(map(str, each['loc'])) or 'arguments'}`: {each['msg']}" for each in error.errors()[:5]
    ]
    return f"The arguments are wrong. {'; '.join(wrong)}."


def result_of(result: Result) -> CallToolResult:
    """Returns the result of a tool: an object as JSON."""
    text = result if isinstance(result, str) else encode_json(result).decode()
    return CallToolResult(content=[TextContent(text=text)])


def failed(message: str) -> CallToolResult:
    """Returns the result of a call that has failed."""
    return CallToolResult(content=[TextContent(text=message)], is_error=True)
