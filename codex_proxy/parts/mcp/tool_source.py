"""Lists and runs the tools of MCP servers: implements `admission.admit.ToolSource`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from codex_proxy.admission.admit import McpRequest, ServerTools
from codex_proxy.app.system import RandomIds
from codex_proxy.core.events import Event, ItemEnded, ItemStarted
from codex_proxy.core.faults import UserError
from codex_proxy.core.interfaces import Clock, IdSource
from codex_proxy.core.items import McpOrigin, McpTools, Tool
from codex_proxy.core.tool_names import ListedTool, ToolServerState, offered_name
from codex_proxy.parts import own_settings
from codex_proxy.parts.mcp import McpSettings
from codex_proxy.parts.mcp.config import Definition, StdioServer
from codex_proxy.parts.mcp.request_servers import NamedServer, RequestServers
from codex_proxy.parts.mcp.servers import OperatorServers
from codex_proxy.parts.mcp.values import McpFault, McpLimits, McpListing, McpResult
from codex_proxy.process.launch import Command
from codex_proxy.settings.fields import Settings, split_list
from codex_proxy.surfaces.responses.mcp import allowed_names, allows, needs_approval
from codex_proxy.surfaces.responses.tools import McpOffer
from codex_proxy.tools.policy import ToolOutput
from codex_proxy.tools.schemas import Verdict
from codex_proxy.workers.schema_checks import SchemaChecks

log = structlog.get_logger(__name__)


class McpToolSource:
    """The MCP servers: `servers` are the operator's servers, `remote` are the servers that requests name. `close`
    it after the last turn.
    """

    def __init__(
        self,
        servers: OperatorServers,
        remote: RequestServers,
        ids: IdSource,
        checks: SchemaChecks,
        call_seconds: float,
    ) -> None:
        self.has_operators = bool(servers.labels)
        self._servers = servers
        self._remote = remote
        self._ids = ids
        self._within = call_seconds
        self._checks = checks
        self._starts: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the operator's servers, so that no request waits for one, and logs how each start ends."""
        self._servers.start()
        self._starts = [asyncio.create_task(self._log_start(label)) for label in self._servers.labels]

    async def _log_start(self, label: str) -> None:
        state = await self._servers.state_after_start(label)
        if state.status == "ready":
            log.info("mcp_server_ready", server=label, tools=state.tools)
        else:
            log.warning("mcp_server_failed", server=label, reason=state.trouble)

    async def wait_started(self, within: float) -> None:
        """Returns when each server has started or failed, at the latest after `within` seconds."""
        if self._starts:
            await asyncio.wait(self._starts, timeout=within)

    @property
    def states(self) -> tuple[ToolServerState, ...]:
        return self._servers.states if self._starts else ()

    def check(self, offers: Sequence[McpOffer]) -> None:
        """Raises `Fault` if the request may not name one of these servers."""
        for offer in offers:
            self._remote.check(_named_server(offer), f"{offer.param}.server_url")

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        """Returns the tools of the request's servers and, with `operators`, of the operator's. If a server has none,
        the reason is in its `mcp_list_tools` item or, for an operator's server, in the log. Raises `Fault`.
        """
        offers = request.offers
        has_operators = operators and bool(self._servers.labels)
        if not offers and not has_operators:
            return ServerTools(runner=_Runner(self, owner, {}))
        listings = await asyncio.gather(*(self._list_tools(offer, owner, request.known) for offer in offers))
        theirs = await self._servers.tools() if has_operators else McpListing(())
        for fault in theirs.faults:
            log.warning("mcp_server_has_no_tools", server=fault.server_label, reason=fault.message)
        labels = {offer.server.server_label for offer in offers}
        own = [_as_tool(tool.server_label, tool) for tool in theirs.tools if tool.server_label not in labels]
        named_tools = [tool for _, listed in listings for tool in listed]
        tools = await self._drop_invalid(named_tools, "of the request")
        named = {offer.server.server_label: _named_server(offer) for offer in offers}
        lists = tuple(event for events, _ in listings for event in events)
        return ServerTools(tools, await self._drop_invalid(own), lists, _Runner(self, owner, named))

    async def _drop_invalid(self, tools: Sequence[Tool], whose: str | None = None) -> tuple[Tool, ...]:
        """Returns the tools with valid schemas, and logs the others, with `whose` in place of the server's name."""
        # For an invalid one the agent would refuse the whole turn.
        wrong = await schema_errors(self._checks, [bytes(tool.parameters or b"") for tool in tools])
        for tool, what in zip(tools, wrong, strict=True):
            if what is not None and tool.mcp is not None:
                shown = {} if whose else {"tool": tool.mcp.name}
                reason, server = what.partition(":")[0], whose or tool.mcp.server_label
                said = f"{tool.mcp.name}: {what}"
                log.warning("mcp_tool_left_out", server=server, reason=reason, said=said, **shown)
        return tuple(tool for tool, what in zip(tools, wrong, strict=True) if what is None)

    async def _list_tools(
        self, offer: McpOffer, owner: str, known: Mapping[str, tuple[ListedTool, ...]]
    ) -> tuple[Sequence[Event], Sequence[Tool]]:
        """Returns the events of the `mcp_list_tools` item, and the tools. `known`: lists that the client has sent back,
        by label; one that suffices is used without asking the server.
        """
        there = known.get(offer.server.server_label)
        if there is not None and _covers(there, offer):
            return [], _as_tools(offer, [tool for tool in there if allows(offer, tool)])
        listing = await self._remote.tools(_named_server(offer), owner)
        tools = [tool for tool in listing.tools if allows(offer, tool)]
        fault = next(iter(listing.faults), None)
        return self._listing_events(offer, tools, fault), _as_tools(offer, tools)

    def _listing_events(
        self, offer: McpOffer, tools: Sequence[ListedTool], fault: McpFault | None
    ) -> Sequence[Event]:
        id = self._ids.new("mcpl_")
        if fault is not None and not tools:
            item = McpTools(id, offer.server.server_label, error=fault.message)
            return [ItemStarted(item), ItemEnded(id, "failed")]
        wire = msgspec.json.encode([_wire_form(tool) for tool in tools])
        return [ItemStarted(McpTools(id, offer.server.server_label, wire)), ItemEnded(id)]

    async def call(self, server: NamedServer | str, owner: str, tool: str, arguments: str) -> McpResult:
        """Runs a tool with JSON `arguments`. `server`: one that the request names, or the name of an operator's
        server. Returns a failed result if the call fails or takes too long. Raises `Fault` INVALID_REQUEST.
        """
        began = time.monotonic()
        if isinstance(server, str):
            result = await self._servers.call(server, tool, arguments, self._within)
        else:
            result = await self._remote.call(server, owner, tool, arguments, self._within)
        log.info(
            "mcp_call",
            server=server if isinstance(server, str) else "of the request",
            failed=result.is_error,
            fault=None if result.fault is None else result.fault.kind.value,
            truncated=result.truncated,
            ms=round((time.monotonic() - began) * 1000),
        )
        if result.fault is not None and result.fault.detail:
            log.debug("mcp_call_failed", server=result.fault.server_label, said=result.fault.detail)
        return result

    async def close(self) -> None:
        for start in self._starts:
            start.cancel()
        await asyncio.gather(self._servers.close(), self._remote.close())


class _Runner:
    """Runs the calls of one turn. `named`: the request's servers by label, which are looked up before the
    operator's.
    """

    def __init__(self, source: McpToolSource, owner: str, named: Mapping[str, NamedServer]) -> None:
        self._source = source
        self._owner = owner
        self._named_server = named

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        assert tool.mcp is not None
        server = self._named_server.get(tool.mcp.server_label, tool.mcp.server_label)
        result = await self._source.call(server, self._owner, tool.mcp.name, arguments)
        return ToolOutput(result.parts, result.text, failed=result.is_error)


def _covers(known: Sequence[ListedTool], offer: McpOffer) -> bool:
    names = allowed_names(offer)
    return names is None or {tool.name for tool in known}.issuperset(names)


def _named_server(offer: McpOffer) -> NamedServer:
    server = offer.server
    assert server.server_url is not None
    return NamedServer(
        server_label=server.server_label,
        server_url=server.server_url,
        headers=server.headers or {},
        authorization=server.authorization,
    )


def _as_tool(server_label: str, tool: ListedTool, *, asks: bool = False) -> Tool:
    origin = McpOrigin(server_label, tool.name, asks)
    schema = msgspec.Raw(tool.input_schema)
    return Tool(offered_name(server_label, tool.name), tool.description, schema, mcp=origin)


def _as_tools(offer: McpOffer, tools: Sequence[ListedTool]) -> list[Tool]:
    return [_as_tool(offer.server.server_label, tool, asks=needs_approval(offer, tool)) for tool in tools]


async def schema_errors(checks: SchemaChecks, schemas: Sequence[bytes]) -> list[str | None]:
    """Returns why each schema of a tool's arguments cannot be used, or None."""
    verdicts = await checks.check_schemas(schemas)
    return [_schema_error(schema, verdict) for schema, verdict in zip(schemas, verdicts, strict=True)]


def _schema_error(schema: bytes, verdict: Verdict) -> str | None:
    if verdict.unchecked is not None:
        return f"its schema was not checked: {verdict.unchecked}"
    if verdict.wrong is not None:
        return f"its schema is invalid: {verdict.wrong}"
    kind = msgspec.json.decode(schema, type=_Kind) if schema.lstrip()[:1] == b"{" else None
    return None if kind is not None and kind.type == "object" else "its schema is not that of an object"


class _Kind(msgspec.Struct, frozen=True):
    type: object = "object"


def _wire_form(tool: ListedTool) -> dict[str, object]:
    annotations = {} if tool.annotations is None else {"annotations": msgspec.Raw(tool.annotations)}
    schema = msgspec.Raw(tool.input_schema)
    return {"name": tool.name, "description": tool.description, "input_schema": schema, **annotations}


# --- from settings ------------------------------------------------------------------------------


def tool_source(
    definitions: Mapping[str, Definition],
    command_of: Callable[[StdioServer], Command],
    settings: Settings,
    clock: Clock,
    checks: SchemaChecks,
) -> McpToolSource:
    """Returns the source of all MCP tools: of the operator's servers (`definitions`), and of those that requests may
    name. Raises `UserError`.
    """
    own = own_settings(settings, McpSettings)
    interval, limits = own.mcp_tool_refresh_interval, McpLimits(list_seconds=settings.queue_wait)
    try:
        allowed = split_list(own.mcp_allowed_urls)
        remote = RequestServers(allowed, clock=clock, limits=limits, refresh_interval=interval)
    except ValueError as error:
        raise UserError(f"PROXY_MCP_ALLOWED_URLS: {error}.") from error
    servers = OperatorServers(definitions, command_of, clock=clock, limits=limits, refresh_interval=interval)
    return McpToolSource(servers, remote, RandomIds(), checks, own.mcp_call_timeout)
