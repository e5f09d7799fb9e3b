"""Checks every turn before it runs, and prepares it for the agent: the same steps for every API.

Input: the turn that an API's parser made from a request, the client that sent the request, and the names that the
API has for the request's fields. Output: the turn that the agent runs. Raises `Fault`: INVALID_REQUEST for a value
that cannot be used (its `param` names the field), NOT_ALLOWED for what the client's key does not permit,
UNAVAILABLE if a check cannot be made now.

A turn has one of two modes. In a plain-model turn (`model`) the model answers without the agent's own tools and
instructions; in an agent turn (`agent`) the agent works with its own tools in a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from codex_proxy.admission.clients import Client, in_workspace, mcp_not_allowed, model_not_allowed
from codex_proxy.admission.images import ImageFetcher, inline_images
from codex_proxy.admission.server_tools import (
    McpRequest,
    ServerTools,
    ToolSource,
    takes_operators_tools,
    with_server_tools,
)
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import HistoryMessage, ImagePart
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import approved_calls
from codex_proxy.surfaces.request_options import FieldNames
from codex_proxy.surfaces.responses.mcp_offers import choice_with
from codex_proxy.surfaces.responses.tools import McpOffer
from codex_proxy.workers.schema_checks import SchemaChecks, check_schemas

NO_MCP = (
    "This server does not connect to MCP servers that a request names. Ask the operator to "
    "allow the `server_url` in PROXY_MCP_ALLOWED_URLS."
)
GONE_TOOL = (
    "The call '{}' was approved, but this request does not offer its tool. Name its MCP server "
    "in 'tools' again."
)


class Admission:
    """Checks and prepares the turns for `agent`, which may be one agent or several that are combined.

    `checks` validates JSON schemas. `images` fetches the images that requests give by URL; None if this server
    fetches none. `tools` are the MCP servers whose tools this server runs; None if there are none. `agent_able_to`
    returns the name of an agent that has a capability (None if no agent has it), which error messages recommend.
    """

    def __init__(
        self,
        agent: Agent,
        checks: SchemaChecks,
        *,
        images: ImageFetcher | None,
        tools: ToolSource | None,
        agent_able_to: Callable[[str], str | None],
    ) -> None:
        self._agent = agent
        self._checks = checks
        self._images = images
        self._tools = tools
        self._agent_able_to = agent_able_to

    @property
    def has_server_tools(self) -> bool:
        """Whether turns may get tools of MCP servers, whose calls this server runs."""
        return self._tools is not None

    @property
    def offers_tools(self) -> bool:
        """Whether a turn may get tools of MCP servers although its request names none: those of the operator's
        servers.
        """
        return self._tools is not None and self._tools.has_operators

    @property
    def fetches_images(self) -> bool:
        """Whether this server fetches the images that requests give by URL."""
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
        image_fields: Mapping[str, str] | None = None,
        mcp: Sequence[McpOffer] = (),
        runs: int = 1,
    ) -> Turn:
        """Returns the turn that the agent runs: with the absolute path of its working folder, and with data URLs in
        place of web addresses of images (unless the agent accepts web addresses, and this server fetches no
        images). Called before anything is stored or started.

        `model` is the model's name in the request, for error messages. `any_effort`: the client needs the right to
        use the model with at least one reasoning effort, because the request chooses none; if False, with the
        turn's effort. `workdir_field` is the request's field that names the working folder; None if the request
        names none. `image_fields` has the name of the request's field for each image URL. `mcp` are the MCP servers
        that the request names. `runs` is how many times the turn runs: once for each choice (`n`).

        Raises `Fault` if the client may not use the model, if the agent lacks a capability that the turn needs, or
        if an MCP server, a JSON schema, the folder or an image is invalid or not allowed.
        """
        if not (client.allows_some_effort(turn.model) if any_effort else client.allows(turn)):
            raise model_not_allowed(model)
        self._check_mcp(mcp, turn, client)
        turn = self._in_served_mode(turn, client)
        self._check_capabilities(turn, fields)
        if turn.tools or turn.output_schema is not None:
            await check_schemas(self._checks, turn, answer=fields.output_schema, tool=fields.tool_schema)
        turn = in_workspace(turn, workdir_field, client.workspace)
        if self._images is not None or "forwarding" not in agent_for(self._agent, turn.model).capabilities:
            turn = await inline_images(turn, self._images, image_fields or {}, fields.input)
        if runs > 1:
            _check_sampling(turn)
        return turn

    async def add_server_tools(
        self, turn: Turn, client: Client, fields: FieldNames, request: McpRequest | None = None
    ) -> tuple[Turn, ServerTools]:
        """Returns the turn (which `admit` returned) with the tools of MCP servers added, and these tools: those of
        the operator's servers, and those of the servers that the request names. `fields` are the names of the
        request's fields, for errors. `request` is what the request contains about MCP servers; None for nothing.

        Called right before the run starts, because it asks the MCP servers for their tools, which may have changed
        while the turn waited in the queue. A server that fails has no tools (see `ToolSource.offer`). Raises
        `Fault` INVALID_REQUEST if the request may not use a server that it names, if the agent cannot call the
        added tools, or if `tool_choice`, or a call that the client has approved, names a tool that no server
        offers.
        """
        if self._tools is None:
            return turn, ServerTools()
        request = request or McpRequest()
        found = await self._tools.offer(
            request,
            client.name,
            operators=takes_operators_tools(turn, client, agent_for(self._agent, turn.model)),
        )
        choice = choice_with(turn.tool_choice, request.choices, found.tools)
        turn = with_server_tools(turn, found, steps=self._tools.steps, calls=request.max_calls)
        turn = self._in_served_mode(msgspec.structs.replace(turn, tool_choice=choice), client)
        self._check_capabilities(turn, fields)
        offered = {tool.name for tool in turn.tools}
        for call, _ in approved_calls(turn):
            if call.name not in offered:
                raise bad_request(GONE_TOOL.format(call.call_id), "tools", "invalid_mcp_server")
        return turn, found

    def _check_mcp(self, offers: Sequence[McpOffer], turn: Turn, client: Client) -> None:
        if not offers:
            return
        if self._tools is None:
            raise bad_request(NO_MCP, f"{offers[0].param}.server_url", "invalid_mcp_server")
        self._tools.check(offers)
        agent = agent_for(self._agent, turn.model)
        if "tool_replies" not in agent.capabilities:
            message = f"The agent {agent.name} does not support MCP servers in requests."
            raise self._unsupported(message, "tool_replies", offers[0].param)
        if not client.mcp:
            raise mcp_not_allowed(offers[0].param)

    def _in_served_mode(self, turn: Turn, client: Client) -> Turn:
        """Returns the turn in a mode that the agent has: a plain-model turn with tools becomes a read-only agent
        turn if the agent can call a client's tools only in agent turns. If the client may have no agent turns,
        returns the turn unchanged, and `_check_capabilities` refuses it.
        """
        able = agent_for(self._agent, turn.model).capabilities
        if turn.mode == "agent" or not turn.tools or "plain_model" in able or "client_tools" not in able:
            return turn
        if client.chat.builtin_tools == "never":
            return turn
        return msgspec.structs.replace(turn, mode="agent", sandbox="read-only")

    def _check_capabilities(self, turn: Turn, fields: FieldNames) -> None:
        agent = agent_for(self._agent, turn.model)
        able = agent.capabilities
        if turn.tools and "client_tools" not in able:
            message = f"The agent {agent.name} does not support tools of the client."
            raise self._unsupported(message, "client_tools", "tools")
        if turn.mode == "model" and "plain_model" not in able and turn.tools:
            message = f"The agent {agent.name} supports tools only in agent turns, which are switched off."
            raise self._unsupported(message, "plain_model", "tools")
        if "images" not in able:
            for index, item in enumerate(turn.history):
                if isinstance(item, HistoryMessage) and any(
                    isinstance(part, ImagePart) for part in item.parts
                ):
                    message = f"The agent {agent.name} does not support images."
                    raise self._unsupported(message, "images", fields.input_item.format(index))

    def _unsupported(self, message: str, capability: str, field: str) -> Fault:
        """Returns a 400 whose text is `message` and the agents that have the capability. `field` is the parameter
        to blame.
        """
        here = [name for name, each in self._agent.members.items() if capability in each.capabilities]
        able = self._agent_able_to(capability)
        if here:
            advice = f"Use a model of {' or '.join(here)} instead."
        elif able is not None:
            advice = f"To allow this, the operator must start the server with --agent {able}."
        else:
            advice = "No agent supports it."
        return bad_request(f"{message} {advice}", field, "unsupported_by_agent")


def _check_sampling(turn: Turn) -> None:
    """Raises `Fault` INVALID_REQUEST for an agent turn that may write files. Called for turns that run several
    times (`n` choices), because these runs would change the same folder.
    """
    if turn.mode == "agent" and turn.sandbox != "read-only":
        raise bad_request(
            "Several choices cannot be sampled in an agent turn that may write. Set 'n' to 1, "
            "or request the plain model (`X-Codex-Mode: model`).",
            "n",
            "unsupported_value",
        )
