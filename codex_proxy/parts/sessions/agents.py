"""Agents of the Agents API: their settings, as they are stored and shown, and the Responses request of which a turn
is made. Raises `Fault` INVALID_REQUEST for what this server does not have. Source: docs/agents-api.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.sessions import wire
from codex_proxy.surfaces.answers.renderer import Count, Object, Yes

DEFAULT_SUBAGENTS: Final = 6
TOOLSET: Final = "agent_toolset_20260401"
"""The type of the tool that stands for the agent's own tools in Anthropic's API. OpenAI's does not show it."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of an agent. A field that is None: the model's or this server's default."""

    model: str
    name: str | None = None
    description: str | None = None
    instructions: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    """As the client gave them, with secrets of MCP servers; and the `TOOLSET` of an agent of Anthropic's API."""
    effort: str | None = None
    summary: str | None = None
    format: dict[str, Any] | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    subagents: int = 0
    """How many subagents the agent may have at a time."""
    toolset: Toolset | None = None
    """The agent's own tools; None: those that it has by itself."""


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A saved agent. Times: seconds since 1970."""

    id: str
    settings: AgentSettings
    created_at: int
    updated_at: int
    metadata: dict[str, str] = {}
    version: int = 1
    """How often it was changed, and 1; only Anthropic's API shows it."""
    archived_at: int | None = None
    """When it was archived, through Anthropic's API: since then it cannot be changed or used."""

    def require_active(self) -> None:
        """Raises `Fault` CONFLICT for an archived agent."""
        if self.archived_at is not None:
            message = f"The agent '{self.id}' is archived: it cannot be changed or used. Create another one."
            raise Fault.of(FaultKind.CONFLICT, message)


# --- from requests ------------------------------------------------------------------------------


def settings_of(
    given: wire.AgentFields | wire.SessionAgentUpdate, base: AgentSettings | None, place: str = ""
) -> AgentSettings:
    """Returns `base` with the fields that a request has: an object replaces a whole one, null clears it. `place`: the
    path of the settings in the body (`agent.`). Raises `Fault`.
    """
    if base is None and given.model is None:
        raise bad_request(f"{place}model is required when agent_id is omitted.", f"{place}model")
    changes = {
        field: value
        for name in given.model_fields_set
        for field, value in _stored(given, name, place).items()
    }
    if "tools" in changes and base is not None:  # which this API does not show, and so cannot mean to remove
        kept = tuple(tool for tool in base.tools if tool["type"] == TOOLSET)
        changes["tools"] = kept + changes["tools"]
    if changes.get("model", "") is None:
        raise bad_request(f"{place}model must not be null.", f"{place}model")
    return msgspec.structs.replace(AgentSettings(model="") if base is None else base, **changes)


def _stored(given: Any, name: str, place: str) -> Mapping[str, Any]:
    """Returns the fields of `AgentSettings` that a field of a request sets."""
    value = getattr(given, name)
    if name == "tools":
        return {"tools": _tools(value or (), f"{place}tools")}
    if name == "reasoning":
        if isinstance(given, wire.SessionAgentUpdate):  # only its effort can be changed
            return {} if value is None else {"effort": value.effort}
        return {"effort": value and value.effort, "summary": value and value.summary}
    if name == "text":
        schema = value.format if value is not None and isinstance(value.format, wire.JsonSchema) else None
        return {
            "format": None if schema is None else {"type": "json_schema", "schema": schema.schema_},
            "verbosity": value and value.verbosity,
        }
    if name == "multi_agent":
        enabled = value is not None and value.enabled
        return {"subagents": (value.max_concurrent_subagents or DEFAULT_SUBAGENTS) if enabled else 0}
    return {name: value} if name in AgentSettings.__struct_fields__ else {}


def _tools(tools: Sequence[Any], place: str) -> tuple[dict[str, Any], ...]:
    names = set[tuple[str, str]]()
    for index, tool in enumerate(tools):
        param = f"{place}[{index}]"
        if isinstance(tool, wire.HostedTool):
            raise wire.refuse(
                f"Only OpenAI's service has the tool '{tool.type}': leave it out.", f"{param}.type"
            )
        if isinstance(tool, wire.McpTool) and isinstance(tool.transport, wire.StdioTransport):
            message = (
                "A client cannot start programs on this machine: give an MCP server of the type 'http', or have the "
                "operator add the program to the server's settings (PROXY_MCP_CONFIG)."
            )
            raise wire.refuse(message, f"{param}.transport.type")
        name = _tool_name(tool)
        if name in names:
            raise bad_request(f"'{param}' is the second tool of this name or type.", param)
        names.add(name)
    found = tuple(tool.as_given() for tool in tools)
    if len(msgspec.json.encode(found)) > wire.MAX_TOOL_BYTES:
        raise bad_request(f"'{place}' has more than {wire.MAX_TOOL_BYTES} bytes of JSON.", place)
    return found


def _tool_name(tool: Any) -> tuple[str, str]:
    if isinstance(tool, wire.FunctionTool):
        return "function", tool.name
    return tool.type, tool.server_label if isinstance(tool, wire.McpTool) else ""


def ignored_in(given: wire.AgentFields | wire.SessionAgentUpdate | None, place: str = "") -> Iterator[str]:
    """Yields the settings of a request that have no effect here, for `x-codex-ignored-params`."""
    for name in ("compaction", "experimental"):
        if getattr(given, name, None) is not None:
            yield f"{place}{name}"
    for tool in (given and given.tools) or ():
        named = tool.as_given()
        for name in _WITHOUT_EFFECT.get(tool.type, ()):
            if named.get(name):
                yield f"{place}tools[].{name}"


_WITHOUT_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("async", "defer_loading"),
    "mcp": ("request_metadata", "required"),
    "web_search": ("context_size", "allowed_domains", "location"),
}

# --- as clients see them ------------------------------------------------------------------------


class ReasoningObject(TypedDict):
    effort: str | None
    summary: str | None


class TextObject(TypedDict):
    format: Object
    verbosity: Literal["low", "medium", "high"]


class MultiAgentObject(TypedDict):
    enabled: bool
    max_concurrent_subagents: Count | None


class SessionAgent(TypedDict):
    """The agent of a session. `name` is that of the saved agent, if it has one."""

    id: str
    name: str | None
    model: str
    instructions: str | None
    tools: list[Object]
    reasoning: ReasoningObject
    text: TextObject
    service_tier: str
    multi_agent: MultiAgentObject


class Agent(SessionAgent):
    """A saved agent: settings that a session copies when it is created."""

    object: Literal["agent"]
    created_at: Count
    updated_at: Count
    metadata: dict[str, str]


class AgentDeleted(TypedDict):
    id: str
    object: Literal["agent.deleted"]
    deleted: Yes


def agent_object(agent: StoredAgent) -> Agent:
    return {
        **_shown(agent.id, agent.settings, saved=True),
        "object": "agent",
        "created_at": agent.created_at,
        "updated_at": agent.updated_at,
        "metadata": agent.metadata,
    }


def session_agent_object(id: str, settings: AgentSettings) -> SessionAgent:
    """Returns the agent of a session. Its tools have no secrets."""
    return _shown(id, settings, saved=False)


def _shown(id: str, settings: AgentSettings, *, saved: bool) -> SessionAgent:
    tools = [_tool_object(tool, saved=saved) for tool in settings.tools]
    return {
        "id": id,
        "name": settings.name,
        "model": settings.model,
        "instructions": settings.instructions,
        "tools": [tool for tool in tools if tool["type"] not in (TOOLSET, "" if saved else "tool_search")],
        "reasoning": {"effort": settings.effort, "summary": settings.summary},
        "text": {
            "format": settings.format or {"type": "text"},
            "verbosity": settings.verbosity or "medium",  # type: ignore[typeddict-item]  # checked on its way in
        },
        "service_tier": settings.service_tier or "auto",
        "multi_agent": {
            "enabled": settings.subagents > 0,
            "max_concurrent_subagents": settings.subagents or None,
        },
    }


def _tool_object(tool: Mapping[str, Any], *, saved: bool) -> dict[str, Any]:
    kind = tool["type"]
    if kind == "function":
        return {"defer_loading": False, **tool}
    if kind == "web_search":
        location = tool.get("location")
        whole = location and {name: location.get(name) for name in wire.SearchLocation.model_fields}
        given = {name: value for name, value in tool.items() if value is not None}
        defaults = {"mode": "live", "context_size": "medium", "allowed_domains": None}
        return {**defaults, **given, "location": whole}
    if kind != "mcp":
        return dict(tool)
    transport = {"type": "http", "server_url": tool["transport"]["server_url"]}
    if saved:
        transport["headers"] = tool["transport"].get("headers") or {}
    return {
        "type": kind,
        "server_label": tool["server_label"],
        "transport": transport,
        "allowed_tools": tool.get("allowed_tools"),
        "connection_origin": tool.get("connection_origin") or "service",
        "credential_id": None,
        "request_metadata": tool.get("request_metadata") or {},
        "required": tool.get("required", False),
    }


# --- the request of a turn ------------------------------------------------------------------------


class TurnRequest(TypedDict):
    """A body of `POST /v1/responses`."""

    model: str
    input: Sequence[Mapping[str, Any]]
    store: bool
    instructions: NotRequired[str]
    tools: NotRequired[list[dict[str, Any]]]
    reasoning: NotRequired[dict[str, str]]
    text: NotRequired[dict[str, Any]]
    service_tier: NotRequired[str]


def turn_request(settings: AgentSettings, items: Sequence[Mapping[str, Any]]) -> TurnRequest:
    """Returns the request of a turn with these settings. `items`: the conversation, as input items of Responses."""
    request: TurnRequest = {"model": settings.model, "input": items, "store": True}
    if settings.instructions:
        request["instructions"] = settings.instructions
    if tools := [tool for each in settings.tools if (tool := requested_tool(each))]:
        request["tools"] = tools
    reasoning = {"effort": settings.effort, "summary": settings.summary}
    request["reasoning"] = {name: value for name, value in reasoning.items() if value}
    request["text"] = {} if settings.verbosity is None else {"verbosity": settings.verbosity}
    if settings.format is not None:
        request["text"]["format"] = {**settings.format, "name": "answer"}
    if settings.service_tier not in (None, "auto"):
        request["service_tier"] = settings.service_tier
    return request


def requested_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a session's tool as one of its turns' requests; None for one that has none there."""
    kind = tool["type"]
    if kind == "function":
        return {name: tool[name] for name in ("type", "name", "description", "parameters")}
    if kind == "web_search":
        return None if tool.get("mode") == "disabled" else {"type": kind}
    if kind != "mcp":
        return None
    transport = {name: value for name, value in tool["transport"].items() if name != "type" and value}
    allowed = {} if tool.get("allowed_tools") is None else {"allowed_tools": tool["allowed_tools"]}
    return {
        "type": kind,
        "server_label": tool["server_label"],
        "require_approval": "never",
        **transport,
        **allowed,
    }
