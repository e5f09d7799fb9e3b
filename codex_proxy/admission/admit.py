"""Admits turns: one list of checks and steps for every API.

Input: the turn as an API's parser made it, the client that asks, and that API's names for its fields. Output: the
turn as the agent gets it. Raises `Fault`: INVALID_REQUEST that names the field, NOT_ALLOWED for what the client's
key may not do, UNAVAILABLE for what cannot be checked now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from codex_proxy.admission.clients import Client, mcp_not_allowed, model_not_allowed
from codex_proxy.admission.images import ImageFetcher, inline_images
from codex_proxy.admission.server_tools import (
    McpRequest,
    ServerTools,
    ToolSource,
    takes_operators_tools,
    with_server_tools,
)
from codex_proxy.admission.workspace import in_workspace
from codex_proxy.agents.agent import Agent, serving
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import HistoryMessage, ImagePart
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import approved_calls
from codex_proxy.surfaces.responses.mcp_offers import choice_with
from codex_proxy.surfaces.responses.tools import McpOffer
from codex_proxy.workers.schema_checks import SchemaChecks, check_schemas

NO_MCP = (
    "This server connects to no MCP server that a request names: have the operator allow its `server_url` in "
    "PROXY_MCP_ALLOWED_URLS."
)
GONE_TOOL = (
    "The call '{}' was approved, but its tool is not offered by this request: name its MCP server in 'tools' "
    "again."
)


class FieldNames(msgspec.Struct, frozen=True, kw_only=True):
    """An API's names of the fields for which a turn may be refused. `{}` is replaced by an index."""

    input: str
    """The field that holds the conversation, such as `messages`."""
    input_item: str
    """The field with the content of one entry of the conversation, such as `messages[{}].content`."""
    tool_schema: str
    output_schema: str


class Admission:
    """Admits turns to one agent.

    `checks` validates JSON schemas; `images` fetches images by address (None: clients send them as data URLs); `tools`
    are the MCP servers whose tools this server runs (None: there are none); `agent_able_to` gives the name of an
    agent that has a capability, for advice.
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
        """Whether turns may get tools that this server runs."""
        return self._tools is not None

    @property
    def offers_tools(self) -> bool:
        """Whether turns also get tools of this server if their request names no MCP server."""
        return self._tools is not None and self._tools.has_operators

    @property
    def fetches_images(self) -> bool:
        """Whether this server fetches images by address."""
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
        """Returns the turn with its folder resolved and its images inlined. Called before anything is stored or
        started. `model` is the name in the request. `any_effort`: the request does not choose the reasoning effort.
        `workdir_field` is the field that names the folder, None where the request names none. `image_fields` gives
        the field of each image address. `mcp` are the MCP servers that the request names. `runs` is how many runs
        the turn becomes. Raises `Fault` if the client may not use the model, if the agent cannot do what the turn
        asks for, and for an MCP server, a schema, a folder or an image that is invalid or not allowed.
        """
        if not (client.allows_some_effort(turn.model) if any_effort else client.allows(turn)):
            raise model_not_allowed(model)
        self._check_mcp(mcp, turn, client)
        turn = self._as_served(turn, client)
        self._check_capabilities(turn, fields)
        if turn.tools or turn.output_schema is not None:
            await check_schemas(self._checks, turn, answer=fields.output_schema, tool=fields.tool_schema)
        turn = in_workspace(turn, workdir_field, client.workspace)
        if self._images is not None or "forwarding" not in serving(self._agent, turn.model).capabilities:
            turn = await inline_images(turn, self._images, image_fields or {}, fields.input)
        if runs > 1:
            _check_sampling(turn)
        return turn

    async def add_server_tools(
        self, turn: Turn, client: Client, fields: FieldNames, request: McpRequest | None = None
    ) -> tuple[Turn, ServerTools]:
        """Returns the admitted turn with the tools of MCP servers: the operator's, and those that the request names.

        Called right before the run starts, because it asks the servers, and their tools may have changed while the
        turn waited. Raises `Fault` for a `tool_choice` or an approved call of a tool that no server has.
        """
        if self._tools is None:
            return turn, ServerTools()
        request = request or McpRequest()
        found = await self._tools.offer(
            request,
            client.name,
            operators=takes_operators_tools(turn, client, serving(self._agent, turn.model)),
        )
        choice = choice_with(turn.tool_choice, request.choices, found.tools)
        turn = with_server_tools(turn, found, steps=self._tools.steps, calls=request.max_calls)
        turn = self._as_served(msgspec.structs.replace(turn, tool_choice=choice), client)
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
        agent = serving(self._agent, turn.model)
        if "tool_replies" not in agent.capabilities:
            raise self._cannot(agent, "tool_replies", "work with MCP servers of a request", offers[0].param)
        if not client.mcp:
            raise mcp_not_allowed(offers[0].param)

    def _as_served(self, turn: Turn, client: Client) -> Turn:
        """Returns the turn in a form that the agent can serve. If the agent has no plain model, a turn with the
        client's tools becomes a read-only agent turn, unless the client may not have agent turns.
        """
        able = serving(self._agent, turn.model).capabilities
        if turn.mode == "agent" or not turn.tools or "plain_model" in able or "client_tools" not in able:
            return turn
        if client.chat.builtin_tools == "never":
            return turn
        return msgspec.structs.replace(turn, mode="agent", sandbox="read-only")

    def _check_capabilities(self, turn: Turn, fields: FieldNames) -> None:
        agent = serving(self._agent, turn.model)
        able = agent.capabilities
        if turn.tools and "client_tools" not in able:
            raise self._cannot(agent, "client_tools", "do tools of the client", "tools")
        if turn.mode == "model" and "plain_model" not in able and turn.tools:
            raise self._cannot(agent, "plain_model", "do plain-model turns", "tools")
        if "images" not in able:
            for index, item in enumerate(turn.history):
                if isinstance(item, HistoryMessage) and any(
                    isinstance(part, ImagePart) for part in item.parts
                ):
                    raise self._cannot(agent, "images", "do images", fields.input_item.format(index))

    def _cannot(self, agent: Agent, capability: str, what: str, field: str) -> Fault:
        here = [name for name, each in self._agent.members.items() if capability in each.capabilities]
        able = self._agent_able_to(capability)
        if here:
            advice = f"Ask for a model of {' or '.join(here)} for that."
        elif able is not None:
            advice = f"Start the server with --agent {able} for that."
        else:
            advice = "No agent can do that."
        message = f"The agent {agent.name} cannot {what}. {advice}"
        return bad_request(message, field, "unsupported_by_agent")


def _check_sampling(turn: Turn) -> None:
    """Raises `Fault` for a turn with several choices whose agent may write: the runs would share one folder."""
    if turn.mode == "agent" and turn.sandbox != "read-only":
        raise bad_request(
            "Several choices cannot be sampled while the agent may write: ask for one choice, or for the plain "
            "model (`X-Codex-Mode: model`).",
            "n",
            "unsupported_value",
        )
