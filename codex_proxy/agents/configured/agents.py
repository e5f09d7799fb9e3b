"""Creates the server's agents, by name: the agent of `--agent`, or the agents of the tables `[agents.NAME]` and of
parts' tables. An error in the tables prevents the start; other problems affect only their agent.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from pydantic import ValidationError

from codex_proxy.agents import registry
from codex_proxy.agents.names import DEFAULT_AGENT, check_name
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError
from codex_proxy.core.faults import misconfigured
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.parts import Part, agent_tables, parts
from codex_proxy.process.launch import FOLDER_REMOVED, is_folder_removed
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.tables import ONLY_TABLE, AgentTable

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent

SHARED_SETTINGS: Final = frozenset({"codex_model", "idle_timeout"})
"""Settings of agents that the server itself uses for all of them."""
_NEEDED_CAPABILITIES: Final[Mapping[str, str]] = {
    "image_fetch": "images",
    "web_search": "web_search",
}
"""The capability without which a setting of the core has no effect."""
CODEX: Final = "codex"
"""The name of the agent `auto` if there are several agents."""


class ConfiguredAgent(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The table's name; empty for a single agent without one."""
    settings: Settings
    """The server's settings, with the values of the agent's table."""
    spec: AgentSpec
    table: str = ""
    """A part's table in which its address is, like `[upstreams.groq]`; empty if it has none."""
    aliases: Mapping[str, str] = {}
    """Further names of its models."""

    @property
    def default_model(self) -> str:
        return self.settings.codex_model or ""


class AgentTables(Protocol):
    """Tables of a part (`Part.agent_tables`), each of which is an agent."""

    def is_single(self, settings: Settings) -> bool:
        """Whether these tables declare the server's only agent, whose models have no prefix."""

    def agents(self, settings: Settings) -> dict[str, ConfiguredAgent]:
        """Returns the agents by the names of their tables; a single one's is empty. Raises `NoAgentError`."""


def _tables_of_parts(settings: Settings) -> dict[str, AgentTables]:
    """Returns those that the settings have, by their setting."""
    found = {name: code for name, code in agent_tables().items() if getattr(settings, name)}
    return {name: pkgutil.resolve_name(code) for name, code in found.items()}


def configured_agents(settings: Settings) -> tuple[ConfiguredAgent, ...]:
    """Returns every agent, the default one first. Raises `NoAgentError`."""
    if (spec := registry.spec_in_place_of_all(settings)) is not None:
        return (ConfiguredAgent(name="", settings=settings, spec=spec),)
    of_parts = _tables_of_parts(settings)
    if not settings.agents and not of_parts:
        return (_from_settings("", settings),)
    found = {name: _from_agent_table(settings, name, table) for name, table in settings.agents.items()}
    for setting, tables in of_parts.items():
        own = tables.agents(settings)
        if twice := found.keys() & own.keys():
            raise NoAgentError(
                f"[agents.{min(twice)}] and [{setting}.{min(twice)}] have the same name: rename one of them."
            )
        found |= own
    if "agent" in settings.model_fields_set and not is_single(settings):
        default = settings.agent
        if default not in found:
            only = settings_for_one(settings, agent=settings.agent)
            default = CODEX if default == DEFAULT_AGENT else default
            if default in found:
                raise NoAgentError(
                    f"--agent {settings.agent} and the table of the same name, {default}, "
                    f"conflict. Name the table with --agent {default}."
                )
            found[default] = _from_settings(default, only)
        found = {default: found.pop(default), **found}
    return tuple(found.values())


def is_single(settings: Settings) -> bool:
    """Whether models have no prefix: there are no tables of agents, or a part's for the only agent."""
    return not settings.agents and all(
        tables.is_single(settings) for tables in _tables_of_parts(settings).values()
    )


def _from_settings(name: str, settings: Settings) -> ConfiguredAgent:
    return ConfiguredAgent(name=name, settings=settings, spec=registry.chosen_spec(settings))


def runs_codex(settings: Settings) -> bool:
    """Whether an agent runs Codex; False if the agents cannot be determined."""
    return any(each.spec.uses_codex for each in _agents_or_none(settings))


def is_plain_only(settings: Settings) -> bool:
    known = _agents_or_none(settings)
    return bool(known) and all(each.spec.plain_only for each in known)


def codex_settings(settings: Settings) -> tuple[Settings, ...]:
    return tuple(each.settings for each in _agents_or_none(settings) if each.spec.uses_codex)


def settings_with(settings: Settings, key: str) -> tuple[Settings, ...]:
    """Returns the settings of each agent whose table may contain this key."""
    return tuple(each.settings for each in _agents_or_none(settings) if key in each.spec.settings)


def plugin_references(settings: Settings) -> tuple[str, ...]:
    found = (registry.plugin_reference(each.settings) for each in _agents_or_none(settings))
    return tuple(reference for reference in found if reference is not None)


def plugin_parts(settings: Settings) -> tuple[Part, ...]:
    """Returns the parts that the settings name as plugins."""
    found = map(registry.plugin_part, dict.fromkeys(plugin_references(settings)))
    return tuple(part for part in found if part is not None)


def settings_without_effect(
    settings: Settings, capabilities: frozenset[Capability] | None = None
) -> tuple[str, ...]:
    """Returns the settings that no agent uses; none if an agent is a plugin's. `capabilities`: those of the only agent,
    once it has started. Without them, and of several agents, each may have any that its kind can have.
    """
    serving = _agents_or_none(settings)
    if not serving or plugin_references(settings):
        return ()
    used = frozenset().union(*map(_used_settings, serving))
    of_some = frozenset().union(*(spec.effective_settings for spec in registry.specs())) - SHARED_SETTINGS
    if capabilities is None or len(serving) > 1:
        able = (each.spec.possible_capabilities(each.settings) for each in serving)
        capabilities = frozenset().union(*able)
    of_some |= {name for name, needed in needed_capabilities().items() if needed not in capabilities}
    unused = settings.of_server.model_fields_set & of_some - used
    return tuple(name for name in Settings.model_fields if name in unused)


def _used_settings(agent: ConfiguredAgent) -> frozenset[str]:
    """Returns the settings that have an effect with an agent. A part's table replaces those that it leaves unset."""
    names = agent.spec.effective_settings
    return frozenset(name for name in names if not agent.table or getattr(agent.settings, name) is not None)


def needed_capabilities() -> dict[str, str]:
    """Returns the capability without which a setting has no effect."""
    found = dict(_NEEDED_CAPABILITIES)
    for part in parts():
        found |= part.capabilities
    return found


def targets_without_agent(settings: Settings) -> tuple[str, ...]:
    """Returns the targets of routes (`AGENT/MODEL`) for which there is no agent, each with its table. A single model
    server may have models with any name.
    """
    serving = _agents_or_none(settings)
    names = {each.name.lower() for each in serving}
    known = [alias for alias, _ in settings.aliases]
    for each in serving:
        known += each.aliases
    if not serving or plugin_references(settings) or (names == {""} and serving[0].spec.plain_only):
        return ()
    return tuple(
        f"{target} of [routes.{route}]"
        for route, table in settings.routes.items()
        for target in (table.to, *table.fallback)
        if MODEL_SEPARATOR in target
        and target.partition(MODEL_SEPARATOR)[0].lower() not in names
        and not any(fnmatchcase(target.lower(), alias.lower()) for alias in known)
    )


def _agents_or_none(settings: Settings) -> tuple[ConfiguredAgent, ...]:
    try:
        return configured_agents(settings.of_server)
    except NoAgentError:
        return ()


def settings_for_one(settings: Settings, **more: Any) -> Settings:
    """Returns the settings of one of several agents, which has no tables: `settings` with `more`."""
    own = settings.model_copy(update={"agents": {}, **{name: {} for name in agent_tables()}, **more})
    own._server = settings
    return own


def _from_agent_table(settings: Settings, name: str, table: AgentTable) -> ConfiguredAgent:
    kind = table.agent or name
    try:
        check_name(kind, settings.agent_plugin)
    except ValueError as error:
        raise NoAgentError(f"[agents.{name}]: {error}") from error
    own = settings_for_one(settings, agent=kind)
    spec = registry.chosen_spec(own)
    for key, value in _own_settings(table).items():
        if key not in spec.settings:
            known = ", ".join(sorted(spec.settings)) or "none"
            raise NoAgentError(
                f"[agents.{name}]: {key} is not a setting of the agent {spec.name}; its own "
                f"settings are {known}."
            )
        try:
            own.__pydantic_validator__.validate_assignment(own, key, value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise NoAgentError(f"[agents.{name}]: {place} is invalid: {first['msg']}.") from error
    return _from_settings(name, own)


def _own_settings(table: AgentTable) -> dict[str, Any]:
    values = table.own_settings
    for setting in agent_tables():  # the agent itself is the only one of them
        if isinstance(found := values.pop(setting, {}), dict):
            values |= found.get(ONLY_TABLE, {})
        else:
            values[setting] = found
    return values


def context_of(named: ConfiguredAgent, context: AgentContext) -> AgentContext:
    return msgspec.structs.replace(context, settings=named.settings, name=named.name, table=named.table)


async def make_agent(context: AgentContext) -> Agent:
    """Makes the server's agent; with tables, one that combines theirs. Raises `NoAgentError` or `Fault`."""
    named = configured_agents(context.settings)
    if named[0].name:
        return await _make_router(named, context)
    return await _make_one(named[0], context)


async def _make_one(named: ConfiguredAgent, context: AgentContext) -> Agent:
    own, reference = context_of(named, context), registry.plugin_reference(named.settings)
    if reference is not None:
        return await registry.make_plugin_agent(named.spec, reference, own)
    try:
        return await named.spec.make(own)
    except OSError as error:
        raise NoAgentError(why_unusable(error)) from error


def why_unusable(error: OSError) -> str:
    """Says why an agent's files or folders cannot be used, and what to do."""
    if is_folder_removed():
        return FOLDER_REMOVED
    return (
        f"The agent's files or folders cannot be used ({error}). Set others with PROXY_STATE_DIR or "
        "PROXY_AGENT_STATE_FOLDERS."
    )


async def _make_router(named: tuple[ConfiguredAgent, ...], context: AgentContext) -> Agent:
    from codex_proxy.agents.configured.router import AgentRouter, AgentSlot

    members: dict[str, Agent] = {}
    context = msgspec.structs.replace(context, peers=members)
    for each in named:
        if each.spec.made_at_start:
            members[each.name] = await _make_one(each, context)
        else:
            make = _maker(each, context)
            members[each.name] = AgentSlot(
                each.name, make, context.clock, capabilities=each.spec.capabilities
            )
    defaults = {each.name: each.default_model for each in named if each.default_model}
    return AgentRouter(members, defaults=defaults)


def _maker(named: ConfiguredAgent, context: AgentContext) -> Callable[[], Awaitable[Agent]]:
    async def make() -> Agent:
        try:
            return await _make_one(named, context)
        except NoAgentError as error:
            raise misconfigured(str(error)) from error

    return make
