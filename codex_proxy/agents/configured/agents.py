"""Creates the server's agents, by name: the agent of `--agent`, or the agents of the tables `[agents.NAME]` and
`[upstreams.NAME]`. A single upstream is `[upstreams.default]`, with short settings. An error in the tables prevents
the start; other problems affect only their agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic import ValidationError

from codex_proxy.agents import registry
from codex_proxy.agents.names import DEFAULT_AGENT, check_name
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError
from codex_proxy.agents.upstream.config import APIS, DEFAULT, UpstreamConfig
from codex_proxy.core.faults import misconfigured
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.parts import Part, parts
from codex_proxy.process.launch import FOLDER_REMOVED, is_folder_removed
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.old_names import with_new_names
from codex_proxy.settings.tables import AgentTable

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent

WIRES: Final = {api.agent: wire for wire, api in APIS.items()}
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
    upstream: UpstreamConfig | None = None
    has_table: bool = False
    """Whether the agent is an upstream whose address is in its table."""

    @property
    def default_model(self) -> str:
        return self.settings.codex_model or ""


def configured_agents(settings: Settings) -> tuple[ConfiguredAgent, ...]:
    """Returns every agent, the default one first. Raises `NoAgentError`."""
    if (spec := registry.spec_in_place_of_all(settings)) is not None:
        return (ConfiguredAgent(name="", settings=settings, spec=spec),)
    if is_single(settings):
        if DEFAULT not in settings.upstreams:
            return (_from_settings("", settings),)
        table = settings.upstreams[DEFAULT]
        wire = WIRES.get(settings.agent, table.wire)
        return (_from_upstream_table(settings, "", table.model_copy(update={"wire": wire})),)
    twice = settings.agents.keys() & settings.upstreams.keys()
    if twice:
        raise NoAgentError(
            f"[agents.{min(twice)}] and [upstreams.{min(twice)}] have the same name: rename one of them."
        )
    found = {name: _from_agent_table(settings, name, table) for name, table in settings.agents.items()}
    found |= {name: _from_upstream_table(settings, name, table) for name, table in settings.upstreams.items()}
    _check_fallbacks(settings)
    if "agent" in settings.model_fields_set:
        default = settings.agent
        if default not in found:
            own = _settings_for_one(settings, agent=settings.agent)
            default = CODEX if default == DEFAULT_AGENT else default
            if default in found:
                raise NoAgentError(
                    f"--agent {settings.agent} and the table of the same name, {default}, "
                    f"conflict. Name the table with --agent {default}."
                )
            found[default] = _from_settings(default, own)
        found = {default: found.pop(default), **found}
    return tuple(found.values())


def is_single(settings: Settings) -> bool:
    """Whether models have no prefix: there are no tables, or only `[upstreams.default]` and no other agent."""
    alone = not settings.agents and not settings.upstreams.keys() - {DEFAULT}
    return alone and (not settings.upstreams or settings.agent in (DEFAULT, *WIRES))


def _from_settings(name: str, settings: Settings) -> ConfiguredAgent:
    spec = registry.chosen_spec(settings)
    upstream = None
    if spec.name in WIRES:
        upstream = _with_short_settings(settings, UpstreamConfig(wire=WIRES[spec.name]))
    return ConfiguredAgent(name=name, settings=settings, spec=spec, upstream=upstream)


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
    """Returns the parts that the plugins of the settings are."""
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
    # An upstream with a table has its address and key there.
    used = frozenset().union(*(each.spec.effective_settings for each in serving if not each.has_table))
    of_some = frozenset().union(*(spec.effective_settings for spec in registry.specs())) - SHARED_SETTINGS
    if capabilities is None or len(serving) > 1:
        able = (each.spec.possible_capabilities(each.settings) for each in serving)
        capabilities = frozenset().union(*able)
    of_some |= {name for name, needed in needed_capabilities().items() if needed not in capabilities}
    unused = settings.of_server.model_fields_set & of_some - used
    return tuple(name for name in Settings.model_fields if name in unused)


def needed_capabilities() -> dict[str, str]:
    """Returns the capability without which a setting has no effect."""
    found = dict(_NEEDED_CAPABILITIES)
    for part in parts():
        found |= part.capabilities
    return found


def targets_without_agent(settings: Settings) -> tuple[str, ...]:
    """Returns the targets of routes (`AGENT/MODEL`) for which there is no agent, each with its table. A single upstream
    may have models with any name.
    """
    serving = _agents_or_none(settings)
    names = {each.name.lower() for each in serving}
    known = [alias for alias, _ in settings.aliases]
    for each in serving:
        known += each.upstream.aliases if each.upstream is not None else ()
    if not serving or plugin_references(settings) or (names == {""} and serving[0].upstream is not None):
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


def _settings_for_one(settings: Settings, **more: Any) -> Settings:
    own = settings.model_copy(update={"agents": {}, "upstreams": {}, **more})
    own._server = settings
    return own


def _from_agent_table(settings: Settings, name: str, table: AgentTable) -> ConfiguredAgent:
    kind = table.agent or name
    try:
        check_name(kind, settings.agent_plugin)
    except ValueError as error:
        raise NoAgentError(f"[agents.{name}]: {error}") from error
    own = _settings_for_one(settings, agent=kind)
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
    values = with_new_names(table.own_settings, {})
    # An agent that is an upstream has only this one.
    own: dict[str, Any] = values.pop("upstreams", {}).get(DEFAULT, {})
    return values | own


def _from_upstream_table(settings: Settings, name: str, table: UpstreamConfig) -> ConfiguredAgent:
    """Returns the agent of a table; `name` is empty for the only agent. The short settings are part of
    `[upstreams.default]`.
    """
    is_default = name in ("", DEFAULT)
    has_table = not (is_default and settings.upstream_url)
    config = _with_short_settings(settings, table) if is_default else _with_timeout(settings, table)
    config = config.with_defaults(total_timeout=settings.total_timeout)
    if not config.url and not config.kind.url:
        raise NoAgentError(f"[upstreams.{name or DEFAULT}] needs the address of a server (url), or a preset.")
    own = _settings_for_one(
        settings,
        agent=APIS[config.wire].agent,
        upstream_key=settings.upstream_key if is_default else None,
        total_timeout=config.total_timeout or settings.total_timeout,
        codex_model=config.default_model or (settings.codex_model if not name else None),
    )
    spec = registry.chosen_spec(own)
    return ConfiguredAgent(name=name, settings=own, spec=spec, upstream=config, has_table=has_table)


def _with_short_settings(settings: Settings, config: UpstreamConfig) -> UpstreamConfig:
    update = {"url": settings.upstream_url} if settings.upstream_url else {}
    return _with_timeout(settings, config.model_copy(update=update))


def _with_timeout(settings: Settings, config: UpstreamConfig) -> UpstreamConfig:
    is_set = "idle_timeout" in settings.model_fields_set
    return config.with_defaults(idle_timeout=settings.idle_timeout) if is_set else config


def _check_fallbacks(settings: Settings) -> None:
    for name, table in settings.upstreams.items():
        for each in table.fallback:
            other = each.partition("/")[0]
            if other == name or other not in settings.upstreams:
                others = [table for table in settings.upstreams if table != name]
                allowed = f"write one of {', '.join(others)}, or NAME/MODEL" if others else "there is none"
                kind = "an agent, and no" if other in settings.agents else "no other"
                raise NoAgentError(f"[upstreams.{name}]: the fallback {each} is {kind} upstream; {allowed}.")


def context_of(named: ConfiguredAgent, context: AgentContext) -> AgentContext:
    table = f"[upstreams.{named.name or DEFAULT}]" if named.has_table else ""
    return msgspec.structs.replace(
        context, settings=named.settings, name=named.name, upstream=named.upstream, upstream_table=table
    )


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
    from codex_proxy.agents.upstream.agent import UpstreamAgent

    members: dict[str, Agent] = {}
    upstreams: dict[str, UpstreamAgent] = {}
    context = msgspec.structs.replace(context, upstreams=upstreams)
    for each in named:
        if each.upstream is None:
            make = _maker(each, context)
            members[each.name] = AgentSlot(
                each.name, make, context.clock, capabilities=each.spec.capabilities
            )
        else:
            agent = members[each.name] = await _make_one(each, context)
            assert isinstance(agent, UpstreamAgent)
            upstreams[each.name] = agent
    defaults = {each.name: each.default_model for each in named if each.default_model}
    return AgentRouter(members, defaults=defaults)


def _maker(named: ConfiguredAgent, context: AgentContext) -> Callable[[], Awaitable[Agent]]:
    async def make() -> Agent:
        try:
            return await _make_one(named, context)
        except NoAgentError as error:
            raise misconfigured(str(error)) from error

    return make
