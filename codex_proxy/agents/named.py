"""Creates the server's agents, by name: the agent given by `--agent`, or those in the tables `[agents.NAME]` and
`[upstreams.NAME]` of the settings file.

An upstream is an agent of type `openai-chat` or `openai-responses`, configured by its table. An error in the tables
prevents the server's start; a problem of one agent (a key, a program, a sign-in) affects only that agent.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic import SecretStr, ValidationError

from codex_proxy.agents import registry
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError
from codex_proxy.agents.upstream.config import UpstreamOptions
from codex_proxy.agents.upstream.presets import PRESETS, UpstreamPreset
from codex_proxy.config import Settings
from codex_proxy.config_tables import AgentTable, UpstreamTable
from codex_proxy.core.faults import Failure, Fault, FaultKind

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.member import UpstreamRules
    from codex_proxy.agents.several import SeveralAgents

WIRES: Final = {"chat": "openai-chat", "responses": "openai-responses"}
"""The name of the agent for each value of an upstream's setting `wire`."""
OF_ALL: Final = frozenset({"codex_model"})
"""Settings of several agents that the server itself uses for every agent."""
UPSTREAM_DEFAULTS: Final = frozenset(
    f"upstream_{key}" for key in ("ca_file", "connect_timeout", "first_byte_timeout", "idle_timeout")
)
"""The settings of the server that hold for an upstream whose table has no value for them."""
CODEX: Final = "codex"
"""The name of the agent `auto` if it is one of several."""


class NamedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """One of the server's agents, with its name and its settings."""

    name: str
    """The agent's name in the settings file; empty if it is the only agent and has no table."""
    settings: Settings
    """The settings for this agent: the server's, with the values in the agent's table in place of the server's."""
    spec: AgentSpec
    """The declaration of the agent."""
    upstream: UpstreamTable | None = None
    """The agent's table `[upstreams.NAME]`; None if it has none."""

    @property
    def default_model(self) -> str:
        """The model that the operator has set as the agent's default; empty if none is set."""
        return self.settings.codex_model or ""


def named_agents(settings: Settings) -> tuple[NamedAgent, ...]:
    """Returns every agent in the settings, the default one first. Raises `NoAgentError` if a table has an error or
    a plugin cannot be used.
    """
    if not (settings.agents or settings.upstreams):
        return (NamedAgent(name="", settings=settings, spec=registry.chosen_spec(settings)),)
    twice = settings.agents.keys() & settings.upstreams.keys()
    if twice:
        raise NoAgentError(
            f"[agents.{min(twice)}] and [upstreams.{min(twice)}] have the same name: rename one of them."
        )
    found = {name: _of_agent_table(settings, name, table) for name, table in settings.agents.items()}
    found |= {name: _of_upstream_table(settings, name, table) for name, table in settings.upstreams.items()}
    _check_fallbacks(settings)
    if "agent" in settings.model_fields_set:
        default = settings.agent
        if default not in found:
            own = _settings_for_one(settings, agent=settings.agent)
            default = CODEX if default == registry.DEFAULT else default
            if default in found:
                raise NoAgentError(
                    f"--agent {settings.agent} and the table of the same name, {default}, "
                    f"conflict. Name the table with --agent {default}."
                )
            found[default] = NamedAgent(name=default, settings=own, spec=registry.chosen_spec(own))
        found = {default: found.pop(default), **found}
    return tuple(found.values())


def runs_codex(settings: Settings) -> bool:
    """Whether any agent runs Codex. False if the agents cannot be determined (an invalid table, an unusable
    plugin), since the server does not start then.
    """
    return any(each.spec.uses_codex for each in _agents_or_none(settings))


def is_plain_only(settings: Settings) -> bool:
    """Whether every agent only serves plain models (the model answers without an agent's own prompt and tools): no
    agent has a folder, commands or a sandbox. False if the agents cannot be determined.
    """
    known = _agents_or_none(settings)
    return bool(known) and all(each.spec.plain_only for each in known)


def codex_settings(settings: Settings) -> tuple[Settings, ...]:
    """Returns the settings of each agent that runs Codex; none if the agents cannot be determined."""
    return tuple(each.settings for each in _agents_or_none(settings) if each.spec.uses_codex)


def plugin_references(settings: Settings) -> tuple[str, ...]:
    """Returns the reference (`module:attribute`) of every plugin whose agent is used."""
    found = (registry.plugin_reference(each.settings) for each in _agents_or_none(settings))
    return tuple(reference for reference in found if reference is not None)


def settings_without_effect(settings: Settings) -> tuple[str, ...]:
    """Returns the names of the settings that the operator has set although they have no effect with the server's
    agents, which declare what they use (`AgentSpec.effective_settings`). Returns none if the agents cannot be
    determined, or one is a plugin's, which may use any setting.
    """
    serving = _agents_or_none(settings)
    if not serving or plugin_references(settings):
        return ()
    used = frozenset().union(*map(_used_by, serving))
    of_some = frozenset().union(*(spec.effective_settings for spec in registry.specs())) - OF_ALL
    unused = settings.of_server.model_fields_set & of_some - used
    return tuple(name for name in Settings.model_fields if name in unused)


def _used_by(named: NamedAgent) -> frozenset[str]:
    return UPSTREAM_DEFAULTS if named.upstream is not None else named.spec.effective_settings


def _agents_or_none(settings: Settings) -> tuple[NamedAgent, ...]:
    """Returns every agent of the server; also if `settings` are those of one agent, since these refer to the
    server's. Returns none if the agents cannot be determined, because of an invalid table or an unusable plugin.
    """
    try:
        return named_agents(settings.of_server)
    except NoAgentError:
        return ()


def _settings_for_one(settings: Settings, **more: Any) -> Settings:
    """Returns a copy of the settings without the tables of agents and upstreams, for one agent of several, with the
    fields `more` replaced. The server's settings stay available as `of_server`.
    """
    own = settings.model_copy(update={"agents": {}, "upstreams": {}, **more})
    own._server = settings
    return own


def _of_agent_table(settings: Settings, name: str, table: AgentTable) -> NamedAgent:
    kind = table.agent or name
    try:
        registry.check_name(kind, settings.agent_plugin)
    except ValueError as error:
        raise NoAgentError(f"[agents.{name}]: {error}") from error
    own = _settings_for_one(settings, agent=kind)
    spec = registry.chosen_spec(own)
    for key, value in table.own_settings.items():
        if key not in spec.settings:
            known = ", ".join(sorted(spec.settings)) or "none"
            raise NoAgentError(
                f"[agents.{name}]: {key} is not a setting of the agent {spec.name}; its own "
                f"settings are {known}."
            )
        try:
            own.__pydantic_validator__.validate_assignment(own, key, value)
        except ValidationError as error:
            raise NoAgentError(f"[agents.{name}]: {key} is invalid: {error.errors()[0]['msg']}.") from error
    return NamedAgent(name=name, settings=own, spec=spec)


def _of_upstream_table(settings: Settings, name: str, table: UpstreamTable) -> NamedAgent:
    kind = WIRES[table.wire]
    preset = _preset_of(table)
    if table.url is None and preset is None:
        raise NoAgentError(f"[upstreams.{name}] needs the address of a server (url), or a preset.")
    given = {
        "upstream_url": table.url or (preset.url if preset else None),
        "upstream_key": None,
        "upstream_key_file": table.key_file,
        **{
            name: getattr(table, name.removeprefix("upstream_")) or getattr(settings, name)
            for name in UPSTREAM_DEFAULTS
        },
        "total_timeout": table.total_timeout or settings.total_timeout,
        "codex_model": table.default_model,
    }
    own = _settings_for_one(settings, agent=kind, **given)
    return NamedAgent(name=name, settings=own, spec=registry.chosen_spec(own), upstream=table)


def _preset_of(table: UpstreamTable) -> UpstreamPreset | None:
    return None if table.preset is None else PRESETS[table.preset]


def _check_fallbacks(settings: Settings) -> None:
    for name, table in settings.upstreams.items():
        for each in table.fallback:
            other = each.partition("/")[0]
            if other == name or other not in settings.upstreams:
                others = [table for table in settings.upstreams if table != name]
                allowed = f"write one of {', '.join(others)}, or NAME/MODEL" if others else "there is none"
                kind = "an agent, and no" if other in settings.agents else "no other"
                raise NoAgentError(f"[upstreams.{name}]: the fallback {each} is {kind} upstream; {allowed}.")


def context_of(named: NamedAgent, environ: Mapping[str, str], context: AgentContext) -> AgentContext:
    """Returns the context from which the agent `named` is created: `context` with the agent's own name, settings,
    key and upstream options. Raises `NoAgentError` if its key is missing.
    """
    if named.upstream is None:
        return msgspec.structs.replace(context, settings=named.settings, name=named.name)
    table, preset = named.upstream, _preset_of(named.upstream)
    settings = named.settings.model_copy(update={"upstream_key": _key_of(named.name, table, preset, environ)})
    options = UpstreamOptions(
        headers={name: value.get_secret_value() for name, value in table.headers.items()},
        models=table.models,
        cannot=frozenset(table.cannot) | (preset.cannot if preset else frozenset()),
        refuses=preset.refuses if preset else frozenset(),
        context_window=table.context_window,
        reasoning_back=_reasoning_back_of(table, preset),
        forward_headers=table.forward_headers,
        health_interval=table.health_interval,
        table=f"[upstreams.{named.name}]",
    )
    return msgspec.structs.replace(context, settings=settings, name=named.name, upstream=options)


def _reasoning_back_of(table: UpstreamTable, preset: UpstreamPreset | None) -> str:
    given = table.reasoning_back or (preset.reasoning_back if preset is not None else "")
    return "" if given == "none" else given


def _key_of(
    name: str, table: UpstreamTable, preset: UpstreamPreset | None, environ: Mapping[str, str]
) -> SecretStr | None:
    """Returns the API key in the environment variable that the table or the preset names; None if there is none, or
    if the table names a file with the key. Raises `NoAgentError` if the table names both a variable and a file, or
    if a variable that is needed is not set.
    """
    if table.key_file is not None:
        if table.key_env is not None:
            raise NoAgentError(f"[upstreams.{name}]: key_env and key_file are both set. Remove one of them.")
        return None
    # The key that lies about for a provider is sent to that provider's own address only.
    variable = table.key_env or (preset.key_env if preset is not None and table.url is None else "")
    key = environ.get(variable, "").strip() if variable else ""
    if not key and (
        table.key_env is not None or (preset is not None and preset.needs_key and table.url is None)
    ):
        raise NoAgentError(
            f"[upstreams.{name}]: the environment variable {variable} is not set. Set it to the "
            "API key, or name a file with key_file."
        )
    return SecretStr(key) if key else None


async def make_agent(context: AgentContext) -> Agent:
    """Returns the agent of the settings, not yet started. If the settings have tables of agents, that is one agent
    which combines them. Raises `NoAgentError` if there is no such agent or the tables have an error, and `Fault` if
    it cannot be used.
    """
    settings = context.settings
    if settings.agents or settings.upstreams:
        return await make_several(context)
    spec, reference = registry.chosen_spec(settings), registry.plugin_reference(settings)
    if reference is None:
        agent = await spec.make(context)
        return agent if context.name or spec.name not in WIRES.values() else _one_upstream(agent, context)
    return await registry.make_plugin_agent(spec, reference, context)


def _one_upstream(agent: Agent, context: AgentContext) -> Agent:
    from codex_proxy.agents.several import OneUpstream

    return OneUpstream(agent, context.clock, _rules_of(context.settings), random.random)


def _rules_of(settings: Settings, table: UpstreamTable | None = None) -> UpstreamRules:
    """Returns the limits for an upstream: those in its table, or those of the server's settings if it has no table
    (None).
    """
    from codex_proxy.agents.member import UpstreamRules

    if table is None:
        return UpstreamRules(
            retries=settings.upstream_retries,
            retry_wait=settings.upstream_retry_wait,
            queue_wait=settings.of_server.queue_wait,
            breaker_failures=settings.upstream_breaker_failures,
        )
    fallback = tuple((name, model) for name, _, model in (one.partition("/") for one in table.fallback))
    return UpstreamRules(
        retries=table.retries,
        retry_wait=table.retry_wait,
        fallback=fallback,
        concurrency=table.concurrency,
        queue_wait=settings.of_server.queue_wait,
        breaker_failures=table.breaker_failures,
        breaker_seconds=table.breaker_seconds,
    )


async def make_several(context: AgentContext) -> SeveralAgents:
    """Returns the agents in the tables of the settings file, combined into one agent that is not yet started.
    Raises `NoAgentError` for tables with an error.
    """
    from codex_proxy.agents.member import Member
    from codex_proxy.agents.several import SeveralAgents

    members = {}
    named = named_agents(context.settings)
    for each in named:
        is_upstream = each.upstream is not None or each.spec.name in WIRES.values()
        rules = _rules_of(each.settings, each.upstream) if is_upstream else None
        members[each.name] = Member(
            each.name, _maker(each, context), context.clock, capabilities=each.spec.capabilities, rules=rules
        )
    defaults = {each.name: each.default_model for each in named if each.default_model}
    return SeveralAgents(members, random.random, defaults=defaults)


def _maker(named: NamedAgent, context: AgentContext) -> Callable[[], Awaitable[Agent]]:
    """Returns a function that creates the agent `named`, and raises `Fault` if it cannot."""

    async def make() -> Agent:
        try:
            return await make_agent(context_of(named, context.environ, context))
        except NoAgentError as error:
            raise Fault(Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=str(error))) from error

    return make
