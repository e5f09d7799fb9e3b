"""Checks every turn before it runs, and prepares it for the agent: it gets the tools of MCP servers, which this server
runs. Raises `Fault`: INVALID_REQUEST with `param`, NOT_ALLOWED for the key, UNAVAILABLE if a check is impossible now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from codex_proxy.admission.clients import Client, model_not_allowed, resolve_workdir
from codex_proxy.admission.images import ImageFetcher, inline_images
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.items import HistoryMessage, ImagePart, Tool, images_in
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.tool_names import ListedTool, ToolServerState
from codex_proxy.core.turn import Turn
from codex_proxy.parts import absent_part, absent_part_text
from codex_proxy.runs.server_calls import ToolRunner, approved_calls
from codex_proxy.surfaces.requests.fields import models_in
from codex_proxy.surfaces.requests.options import FieldNames
from codex_proxy.surfaces.responses.mcp import combine_choices
from codex_proxy.surfaces.responses.tools import HostedOffer, McpChoice, McpOffer, hosted_tool_fault
from codex_proxy.workers.schema_checks import SchemaChecks, check_schemas

NO_MCP = (
    "This server does not connect to MCP servers that a request names. Ask the operator to "
    "allow the `server_url` in PROXY_MCP_ALLOWED_URLS."
)
MCP_NOT_ALLOWED = "This API key may not use MCP servers. Remove them from 'tools', or use another key."
OWN_OBJECTS = (
    "This names objects of the account that this server uses at the model server, which are not an API key's. Leave it "
    "out, or ask the operator for another way to these data."
)
GONE_TOOL = (
    "The call '{}' was approved, but this request does not offer its tool. Name its MCP server "
    "in 'tools' again."
)


class Containers(NamedTuple):
    """The containers that a request may name: those of `agent`. `stored`: only in items that this server has stored as
    the model generated them, because those of other keys are there, too.
    """

    agent: str
    allowed: Literal["none", "stored", "any"]


class Admission:
    """Checks turns, and prepares them. `tools`: the MCP servers. `agent_able_to` returns the name of an agent with a
    capability, for errors; `plugins`: the names of the agents that are plug-ins; empty for the only agent.
    """

    def __init__(
        self,
        agent: Agent,
        checks: SchemaChecks,
        *,
        images: ImageFetcher | None,
        tools: ToolSource | None,
        tool_steps: int,
        agent_able_to: Callable[[str], str],
        plugins: frozenset[str],
    ) -> None:
        self._agent = agent
        self._checks = checks
        self._images = images
        self._tools = tools
        self._tool_steps = tool_steps
        self._agent_able_to = agent_able_to
        self._plugins = plugins

    @property
    def has_server_tools(self) -> bool:
        """Whether turns may get tools of MCP servers."""
        return self._tools is not None

    @property
    def offers_tools(self) -> bool:
        """Whether turns get tools of the operator's MCP servers."""
        return self._tools is not None and self._tools.has_operators

    @property
    def tool_servers(self) -> Sequence[ToolServerState]:
        """The states of the operator's MCP servers."""
        return () if self._tools is None else self._tools.states

    @property
    def fetches_images(self) -> bool:
        return self._images is not None

    async def admit(
        self,
        turn: Turn,
        client: Client,
        fields: FieldNames,
        *,
        model: str,
        any_effort: bool = False,
        workdir_field: str | None = None,
        image_fields: Mapping[str, str] = {},
        optional_images: Collection[str] = (),
        mcp: Sequence[McpOffer] = (),
        hosted: Sequence[HostedOffer] = (),
        runs: int = 1,
    ) -> Turn:
        """Returns the turn with the absolute path of its folder and fetched images. Called before anything is
        stored or started. `model`: the client's name of the model. `any_effort`: a client that may use the model
        with some effort may run the turn. `workdir_field` and `image_fields` are for errors. `optional_images`: see
        `inline_images`. `runs`: how often the turn runs (`n`).
        """
        if any_effort:
            allowed = client.allows_some_effort(turn.model)
        else:
            allowed = client.allows(turn.model, turn.effort)
        if not allowed:
            raise model_not_allowed(model)
        agent = agent_for(self._agent, turn.model)
        if client.models is not None:
            client.check_models(agent.name, models_in(_passed_on(turn)))
        if mcp:
            self._check_mcp(mcp, agent, client)
        if hosted:
            self.check_hosted(hosted, turn.model, client)
        turn = _with_mode_for_tools(turn, agent, client)
        self._check_capabilities(turn, agent, fields)
        if turn.tools or turn.output_schema is not None:
            await check_schemas(self._checks, turn, answer=fields.output_schema, tool=fields.tool_schema)
        turn = msgspec.structs.replace(turn, schema_field=_schema_field(turn, fields))
        turn = resolve_workdir(turn, workdir_field, client.workspace)
        if images_in(turn.history) and (self._images is not None or "forwarding" not in agent.capabilities):
            turn = await inline_images(
                turn, self._images, image_fields, fields.input, optional=optional_images
            )
        if runs > 1:
            _check_sampling(turn)
        return turn

    async def add_server_tools(
        self, turn: Turn, client: Client, fields: FieldNames, request: McpRequest | None = None
    ) -> tuple[Turn, ServerTools]:
        """Returns an admitted turn with the tools of MCP servers, the operator's and those of `request`. Called right
        before the run, because tools change. Raises `Fault` for a server that the request may not use, tools that the
        agent cannot call, or a `tool_choice` or approved call of an unknown tool.
        """
        if self._tools is None:
            return turn, ServerTools()
        request, agent = request or McpRequest(), agent_for(self._agent, turn.model)
        found = await self._tools.offer(
            request,
            client.name,
            operators=client.mcp and _is_free(turn) and "tool_replies" in agent.capabilities,
        )
        choice = combine_choices(turn.tool_choice, request.choices, found.tools)
        turn = with_server_tools(turn, found, steps=self._tool_steps, calls=request.max_calls)
        turn = _with_mode_for_tools(msgspec.structs.replace(turn, tool_choice=choice), agent, client)
        self._check_capabilities(turn, agent, fields)
        offered = {tool.name for tool in turn.tools}
        for call, _ in approved_calls(turn):
            if call.name not in offered:
                raise bad_request(GONE_TOOL.format(call.call_id), "tools", "invalid_mcp_server")
        return turn, found

    def _check_mcp(self, offers: Sequence[McpOffer], agent: Agent, client: Client) -> None:
        if self._tools is None:
            absent = absent_part("tools", "mcp")
            told = f"MCP servers are served by {absent_part_text(absent)}." if absent else NO_MCP
            raise bad_request(told, f"{offers[0].param}.server_url", "invalid_mcp_server")
        self._tools.check(offers)
        if "tool_replies" not in agent.capabilities:
            what = "does not support MCP servers in requests"
            raise self._unsupported_fault(agent, what, "tool_replies", offers[0].param)
        if not client.mcp:
            raise Fault.of(FaultKind.NOT_ALLOWED, MCP_NOT_ALLOWED, param=offers[0].param)

    def check_hosted(self, offers: Sequence[HostedOffer], model: str, client: Client) -> None:
        """Raises `Fault` for tools that the model's server does not run, or that name models or objects which the
        client may not use.
        """
        for offer in offers:
            agent = agent_for(self._agent, model)
            if offer.type not in agent.capabilities:
                raise hosted_tool_fault(offer.type, offer.param)
            client.check_models(agent.name, offer.models())
            if client.digest and (field := offer.own_object()):
                raise Fault.of(FaultKind.NOT_ALLOWED, OWN_OBJECTS, param=excerpt(field))

    def _check_capabilities(self, turn: Turn, agent: Agent, fields: FieldNames) -> None:
        able = agent.capabilities
        if turn.tools and "client_tools" not in able:
            raise self._unsupported_fault(
                agent, "does not support tools of the client", "client_tools", "tools"
            )
        if turn.mode == "model" and "plain_model" not in able and turn.tools:
            what = "supports tools only in agent turns, which are switched off"
            raise self._unsupported_fault(agent, what, "plain_model", "tools")
        if "images" not in able:
            for index, item in enumerate(turn.history):
                if isinstance(item, HistoryMessage) and any(
                    isinstance(part, ImagePart) for part in item.parts
                ):
                    field = fields.input_item.format(index)
                    raise self._unsupported_fault(agent, "does not support images", "images", field)

    def _unsupported_fault(self, agent: Agent, what: str, capability: str, field: str) -> Fault:
        """Returns the fault of a request that needs `capability`. `what` says what the agent cannot do."""
        here = [name for name, each in self._agent.members.items() if capability in each.capabilities]
        if here:
            advice = f"Use a model of {' or '.join(here)} instead."
        elif self._plugins & {agent.name, ""}:
            advice = f"To allow this, its plug-in must declare the capability {capability!r} and provide it."
        else:
            able = self._agent_able_to(capability)
            advice = f"To allow this, the operator must start the server with --agent {able}."
        return bad_request(f"The agent {agent.name} {what}. {advice}", field, "unsupported_by_agent")


def containers_for(agent: Agent, client: Client) -> Containers:
    """Returns the containers that the client's requests to the agent may name."""
    if "code_interpreter" not in agent.capabilities:
        return Containers(agent.name, "none")
    return Containers(agent.name, "stored" if client.digest else "any")


def _is_free(turn: Turn) -> bool:
    """Whether the model may call any tool, or none."""
    return turn.tool_choice == "auto" and not (turn.hosted is not None and turn.hosted.required)


def _passed_on(turn: Turn) -> Mapping[str, msgspec.Raw]:
    """Returns the fields of the client's body that an upstream gets as they are."""
    return turn.passed_fields if turn.forwarded is None else turn.forwarded.fields


def _with_mode_for_tools(turn: Turn, agent: Agent, client: Client) -> Turn:
    """Returns a plain-model turn with tools as a read-only agent turn, if the agent takes tools only there."""
    able = agent.capabilities
    if turn.mode == "agent" or not turn.tools or "plain_model" in able or "client_tools" not in able:
        return turn
    if client.settings.builtin_tools == "never":
        return turn
    return msgspec.structs.replace(turn, mode="agent", sandbox="read-only")


def _schema_field(turn: Turn, fields: FieldNames) -> str:
    """Returns the field with the answer's schema, else that of the first strict tool, if any."""
    forwarded = turn.forwarded.fields.get("response_format") if turn.forwarded is not None else None
    if turn.output_schema is not None or (forwarded is not None and b'"json_schema"' in bytes(forwarded)):
        return fields.output_schema
    for place, tool in enumerate(turn.tools):
        if tool.strict and tool.parameters is not None:
            return fields.tool_schema.format(place)
    return ""


def _check_sampling(turn: Turn) -> None:
    """Raises `Fault` if an agent turn that may write runs several times (`n`): the runs would share a folder."""
    if turn.mode == "agent" and turn.sandbox != "read-only":
        raise bad_request(
            "Several choices cannot be sampled in an agent turn that may write. Set 'n' to 1, "
            "or request the plain model (`X-Codex-Mode: model`).",
            "n",
            "unsupported_value",
        )


class ServerTools(msgspec.Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    operator_tools: tuple[Tool, ...] = ()
    """The tools of the operator's servers, as the model calls them."""
    lists: tuple[Event, ...] = ()
    """Events that add an `mcp_list_tools` item for each server that was asked."""
    runner: ToolRunner | None = None
    """Runs the calls of these tools; None if there are none."""


class McpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request contains about MCP servers."""

    offers: tuple[McpOffer, ...] = ()
    known: Mapping[str, tuple[ListedTool, ...]] = msgspec.field(default_factory=dict)
    """Lists of tools that the client has sent back, by server label, for which no server is asked again."""
    choices: tuple[McpChoice, ...] = ()
    """The tools of these servers that `tool_choice` names."""
    max_calls: int | None = None
    """Maximum calls in the turn; None: no limit."""


class ToolSource(Protocol):
    """The MCP servers whose tools this server runs."""

    has_operators: bool

    @property
    def states(self) -> Sequence[ToolServerState]:
        """The states of the operator's servers; none before their start, and of servers that are not asked."""

    def check(self, offers: Sequence[McpOffer]) -> None:
        """Raises `Fault` if the request may not name one of these servers."""

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        """Returns the tools of the request's servers and, with `operators`, of the operator's; none of a server that
        fails. `owner`: the client's name. Raises `Fault`.
        """


def with_server_tools(turn: Turn, server_tools: ServerTools, *, steps: int, calls: int | None = None) -> Turn:
    """Returns the turn with `server_tools`, which the model may call in `steps` answers, at most `calls` times
    (None: any). A tool is left out if a client's tool has its full name; a tool of the operator's servers also if a
    client's tool has the name that it has at its server.
    """
    own_names = {tool.name for tool in turn.tools}
    operators = [tool for tool in server_tools.operator_tools if (tool.mcp or tool).name not in own_names]
    joined: dict[str, Tool] = {}
    for tool in (*turn.tools, *server_tools.tools, *operators):
        joined.setdefault(tool.name, tool)  # an agent refuses a turn with two of one name
    return msgspec.structs.replace(
        turn, tools=tuple(joined.values()), max_server_steps=steps, max_server_calls=calls
    )
