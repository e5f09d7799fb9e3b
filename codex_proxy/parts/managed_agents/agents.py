"""Agents of the Managed Agents API: their settings, from requests and as clients see them. They are the agents of the
part `sessions`: a custom tool is stored as a function, a toolset of an MCP server as a tool `mcp` with its server, so
that both APIs show and run the same agent. Raises `Fault`. Source: docs/managed-agents.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec.structs import replace

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.items import TOOL_NAMES, Permission, ToolName
from codex_proxy.core.turn import McpPermissions, Toolset
from codex_proxy.parts.managed_agents import wire
from codex_proxy.parts.managed_agents.environments import refused
from codex_proxy.parts.managed_agents.pages import optional_time, time_text
from codex_proxy.parts.sessions.agents import DEFAULT_SUBAGENTS, TOOLSET, AgentSettings, StoredAgent
from codex_proxy.parts.sessions.commands import patched
from codex_proxy.parts.sessions.wire import MAX_TOOL_BYTES
from codex_proxy.surfaces.answers.renderer import Count, Object

MAX_TOOLS: Final = 256
"""Maximum tools, with those of all toolsets."""
_SHOWN: Final = (TOOLSET, "function", "mcp")
"""The types of stored tools that this API shows. The others cannot be meant to be removed."""
_ALLOW: Final = {"type": "always_allow"}
_ASK: Final = {"type": "always_ask"}

# --- from requests ------------------------------------------------------------------------------


def settings_of(given: wire.AgentFields, base: AgentSettings | None, place: str = "") -> AgentSettings:
    """Returns `base` with the fields that a request has: an object or a list replaces a whole one, null clears it.
    `place`: the path of the fields in the body (`agent.`). Raises `Fault`.
    """
    settings = AgentSettings(model="") if base is None else base
    named = given.model_fields_set
    _check_unserved(given, place)
    if given.model is not None:
        settings = _with_model(settings, given.model)
    if given.name is not None:
        settings = replace(settings, name=given.name)
    if "description" in named:
        settings = replace(settings, description=given.description or None)
    if "system" in named:
        settings = replace(settings, instructions=given.system or None)
    if "multiagent" in named:
        settings = replace(settings, subagents=_subagents(given.multiagent, place))
    if base is None or named & {"tools", "mcp_servers"}:
        tools = _tools(given, settings, place)
        settings = replace(settings, tools=tools, toolset=_toolset(tools))
    return settings


def changed(agent: StoredAgent, given: wire.ManagedAgentUpdate) -> StoredAgent:
    """Returns the agent with the fields of an update. Raises `Fault`, CONFLICT for an older `version`."""
    agent.require_active()
    if given.version not in (None, agent.version):
        message = f"The agent has version {agent.version} by now, not {given.version}: read it again, then change it."
        raise Fault.of(FaultKind.CONFLICT, message, param="version")
    metadata = patched(agent.metadata, given.metadata or {})
    return replace(agent, settings=settings_of(given, agent.settings), metadata=metadata)


def _check_unserved(given: wire.AgentFields, place: str) -> None:
    if given.skills:
        raise refused("not served here; put skills into the agent's own folder.", f"{place}skills")
    identity = given.execution_identity
    if identity is not None and identity.type != "service_account":
        message = 'agents run as the user of this server. Leave it out, or use {"type": "service_account"}.'
        raise refused(message, f"{place}execution_identity")


def _with_model(settings: AgentSettings, given: str | wire.ModelConfig) -> AgentSettings:
    """Returns the settings with another model: an effort stays until there is another one."""
    if isinstance(given, str):
        return replace(settings, model=given, service_tier=None)
    effort = given.effort.type if isinstance(given.effort, wire.EffortObject) else given.effort
    tier = "fast" if given.speed == "fast" else None
    return replace(settings, model=given.id, effort=effort or settings.effort, service_tier=tier)


def _subagents(given: wire.Coordinator | wire.OtherMultiagent | None, place: str) -> int:
    """Returns how many subagents the agent may have at a time."""
    if given is None:
        return 0
    if isinstance(given, wire.OtherMultiagent):
        message = (
            f'{given.type} is not served here. Use {{"type": "coordinator", "agents": [{{"type": "self"}}]}}.'
        )
        raise refused(message, f"{place}multiagent")
    for index, entry in enumerate(given.agents):
        if not isinstance(entry, wire.SelfEntry):
            message = 'an agent here has subagents like itself only. Use {"type": "self"}.'
            raise refused(message, f"{place}multiagent.agents[{index}]")
    return DEFAULT_SUBAGENTS


def _tools(given: wire.AgentFields, settings: AgentSettings, place: str) -> tuple[dict[str, Any], ...]:
    """Returns the tools, as they are stored. What the request does not have of `tools` and `mcp_servers` stays."""
    servers = {server["name"]: server for server in servers_of(settings.tools)}
    if "mcp_servers" in given.model_fields_set:
        servers = {}
        for index, each in enumerate(given.mcp_servers or ()):
            if each.name in servers:
                raise bad_request("It is the second server of this name.", f"{place}mcp_servers[{index}]")
            servers[each.name] = {"type": "url", "name": each.name, "url": each.url}
    tools = tools_of(settings.tools)
    if "tools" in given.model_fields_set:
        tools = [_resolved(tool, f"{place}tools[{index}]") for index, tool in enumerate(given.tools or ())]
    _check_tools(tools, servers, place)
    shown = tuple(_stored(tool, servers, settings, f"{place}tools[{n}]") for n, tool in enumerate(tools))
    found = (*shown, *(tool for tool in settings.tools if tool["type"] not in _SHOWN))
    if len(msgspec.json.encode(found)) > MAX_TOOL_BYTES:
        raise bad_request(f"They have more than {MAX_TOOL_BYTES} bytes of JSON.", f"{place}tools")
    return found


def _check_tools(tools: Sequence[Mapping[str, Any]], servers: Mapping[str, object], place: str) -> None:
    """Raises `Fault` for two tools of one name, servers without a toolset, and too many tools."""
    names = set[tuple[str, str]]()
    count = 0
    for index, tool in enumerate(tools):
        name = tool["type"], tool.get("name") or tool.get("mcp_server_name", "")
        if name in names:
            raise bad_request("It is the second tool of this name or type.", f"{place}tools[{index}]")
        names.add(name)
        count += len(TOOL_NAMES) if tool["type"] == TOOLSET else len(tool.get("configs", ())) or 1
    if count > MAX_TOOLS:
        raise bad_request(f"An agent has at most {MAX_TOOLS} tools.", f"{place}tools")
    for index, server in enumerate(servers):
        if ("mcp_toolset", server) not in names:
            message = "No tool of the type 'mcp_toolset' names this server in 'mcp_server_name'."
            raise bad_request(message, f"{place}mcp_servers[{index}]")


def _toolset(tools: Sequence[Mapping[str, Any]]) -> Toolset:
    """Returns the agent's own tools: those of the toolset that are enabled. Without a toolset the agent has none. And
    which tools of MCP servers it asks before.
    """
    permissions: dict[ToolName, Permission] = {}
    mcp: list[McpPermissions] = []
    for tool in tools:
        if tool["type"] == "mcp" and "default_config" in tool:
            default, configs = tool["default_config"], [each for each in tool["configs"] if each["enabled"]]
            # What is disabled is not asked about.
            policy: Permission = (
                default["permission_policy"]["type"] if default["enabled"] else "always_allow"
            )
            others = [each["name"] for each in configs if each["permission_policy"]["type"] != policy]
            mcp.append(McpPermissions(tool["server_label"], policy, tuple(others)))
        if tool["type"] == TOOLSET:
            own = {each["name"]: each for each in tool["configs"]}
            each_config = {name: own.get(name, tool["default_config"]) for name in TOOL_NAMES}
            permissions = {
                name: config["permission_policy"]["type"]
                for name, config in each_config.items()
                if config["enabled"]
            }
    return Toolset.of(permissions, mcp)


def _resolved(tool: wire.AgentToolset | wire.McpToolset | wire.CustomTool, place: str) -> dict[str, Any]:
    """Returns a tool as clients see it, with the defaults filled in."""
    if isinstance(tool, wire.CustomTool):
        schema = tool.input_schema.model_dump(by_alias=True)
        return {"type": "custom", "name": tool.name, "description": tool.description, "input_schema": schema}
    is_mcp = isinstance(tool, wire.McpToolset)
    first = {"enabled": True, "permission_policy": _ASK if is_mcp else _ALLOW}
    default = _tool_settings(tool.default_config, first, f"{place}.default_config")
    configs: dict[str, dict[str, Any]] = {}
    given: Sequence[wire.OwnToolSettings | wire.McpToolSettings] = tool.configs or ()
    for index, each in enumerate(given):
        param = f"{place}.configs[{index}]"
        if each.name in configs:
            raise bad_request("It is the second one of this name.", param)
        if isinstance(each, wire.OwnToolSettings):
            _check_own(each, param)
        kind = {} if is_mcp else {"type": each.name}
        configs[each.name] = {"name": each.name, **kind, **_tool_settings(each, default, param)}
    named = {"mcp_server_name": tool.mcp_server_name} if isinstance(tool, wire.McpToolset) else {}
    return {"type": tool.type, **named, "default_config": default, "configs": [*configs.values()]}


def _tool_settings(given: wire.ToolSettings | None, default: Mapping[str, Any], place: str) -> dict[str, Any]:
    if given is None:
        return dict(default)
    policy = given.permission_policy
    if policy is not None and policy.type == "auto":
        message = "auto is judged by Anthropic's service; use always_ask or always_allow."
        raise refused(message, f"{place}.permission_policy")
    return {
        "enabled": default["enabled"] if given.enabled is None else given.enabled,
        "permission_policy": default["permission_policy"] if policy is None else {"type": policy.type},
    }


def _check_own(given: wire.OwnToolSettings, place: str) -> None:
    if given.type not in (None, given.name):
        raise bad_request(f"It must be '{given.name}', as 'name' is, or be left out.", f"{place}.type")
    limits = {
        "allowed_domains": given.allowed_domains,
        "blocked_domains": given.blocked_domains,
        "url_sources": given.url_sources,
    }
    for field, limit in limits.items():
        if limit is not None:
            message = (
                f"this server cannot limit the sites of {given.name}. Leave it out, or disable the tool."
            )
            raise refused(message, f"{place}.{field}")


def _stored(
    tool: Mapping[str, Any], servers: Mapping[str, Mapping[str, Any]], settings: AgentSettings, place: str
) -> dict[str, Any]:
    """Returns a resolved tool as it is stored."""
    if tool["type"] == "custom":
        names = {"type": "function", "name": tool["name"], "description": tool["description"]}
        return {**names, "parameters": tool["input_schema"]}
    if tool["type"] == TOOLSET:
        return dict(tool)
    label, default, configs = tool["mcp_server_name"], tool["default_config"], tool["configs"]
    server = servers.get(label)
    if server is None:
        raise bad_request(f"'mcp_servers' has no server '{label}'.", f"{place}.mcp_server_name")
    for index, each in enumerate(configs):
        if default["enabled"] and not each["enabled"]:
            message = "one tool cannot be left out here. Disable all in default_config, and enable the others by name."
            raise refused(message, f"{place}.configs[{index}].enabled")
    before = next((each for each in settings.tools if each.get("server_label") == label), {})
    transport = before.get("transport", {})
    if transport.get("server_url") != server["url"]:  # else it keeps headers that OpenAI's API has given it
        transport = {"type": "http", "server_url": server["url"]}
    stored = {"type": "mcp", "server_label": label, "transport": transport}
    if not default["enabled"]:
        stored["allowed_tools"] = [each["name"] for each in configs if each["enabled"]]
    return {**stored, "default_config": default, "configs": configs}


# --- as clients see them ------------------------------------------------------------------------


def tools_of(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns stored tools as this API shows them; not those that only OpenAI's has."""
    return [*_shown(tools)]


def _shown(tools: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        kind = tool["type"]
        if kind == TOOLSET:
            configs = [
                {**each, "url_sources": None} if each["name"] == "web_fetch" else each
                for each in tool["configs"]
            ]
            yield {**tool, "configs": configs}
        elif kind == "function":
            names = {"name": tool["name"], "description": tool["description"]}
            yield {"type": "custom", **names, "input_schema": {**tool["parameters"], "type": "object"}}
        elif kind == "mcp":
            allowed = tool.get("allowed_tools")
            default = {"enabled": allowed is None, "permission_policy": _ALLOW}
            configs = [{"name": name, **default, "enabled": True} for name in allowed or ()]
            yield {
                "type": "mcp_toolset",
                "mcp_server_name": tool["server_label"],
                "default_config": tool.get("default_config", default),
                "configs": tool.get("configs", configs),
            }


def servers_of(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the MCP servers of stored tools."""
    return [
        {"type": "url", "name": tool["server_label"], "url": tool["transport"]["server_url"]}
        for tool in tools
        if tool["type"] == "mcp"
    ]


class AgentConfiguration(TypedDict):
    """What an agent and the copy of it in a session have in common."""

    id: str
    type: Literal["agent"]
    version: Count
    name: str
    description: str | None
    system: str | None
    model: Object
    tools: list[Object]
    mcp_servers: list[Object]
    skills: list[Object]
    multiagent: Object | None
    execution_identity: Object


class AgentObject(AgentConfiguration):
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


def agent_object(agent: StoredAgent) -> AgentObject:
    return {
        **configuration(agent.id, agent.version, agent.settings),
        "metadata": agent.metadata,
        "created_at": time_text(agent.created_at),
        "updated_at": time_text(agent.updated_at),
        "archived_at": optional_time(agent.archived_at),
    }


def configuration(id: str, version: int, settings: AgentSettings) -> AgentConfiguration:
    """Returns an agent as a session shows it. An agent without a name, of OpenAI's API, has its id as the name."""
    me = {"type": "agent", "id": id, "version": version}
    return {
        "id": id,
        "type": "agent",
        "version": version,
        "name": settings.name or id,
        "description": settings.description,
        "system": settings.instructions,
        "model": _model(settings),
        "tools": tools_of(settings.tools),
        "mcp_servers": servers_of(settings.tools),
        "skills": [],
        "multiagent": {"type": "coordinator", "agents": [me]} if settings.subagents else None,
        "execution_identity": {"type": "service_account"},
    }


def _model(settings: AgentSettings) -> dict[str, Any]:
    """Returns the model. Its effort is there if it was chosen: OpenAI's API has more, which become the nearest one."""
    effort = {"none": "low", "minimal": "low"}.get(settings.effort or "", settings.effort)
    chosen = {"effort": {"type": effort}} if effort else {}
    return {
        "id": settings.model,
        **chosen,
        "speed": "fast" if settings.service_tier in ("fast", "ultrafast") else "standard",
    }
