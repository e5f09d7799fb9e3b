"""Makes agents of the tables `[upstreams.NAME]`. A single one is `[upstreams.default]`, with short settings."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents import registry
from codex_proxy.agents.configured.agents import ConfiguredAgent, settings_for_one
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.parts import own_settings
from codex_proxy.parts.upstream.config import APIS, UpstreamApi, UpstreamConfig
from codex_proxy.parts.upstream.settings import UpstreamSettings
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.tables import ONLY_TABLE

WIRES: Final = {api.agent: wire for wire, api in APIS.items()}


class UpstreamTables:
    def is_single(self, settings: Settings) -> bool:
        others = own_settings(settings, UpstreamSettings).upstreams.keys() - {ONLY_TABLE}
        return not others and settings.agent in (ONLY_TABLE, *WIRES)

    def agents(self, settings: Settings) -> dict[str, ConfiguredAgent]:
        tables = own_settings(settings, UpstreamSettings).upstreams
        _check_fallbacks(settings, tables)
        if self.is_single(settings) and not settings.agents:
            table = tables[ONLY_TABLE]
            wire = WIRES.get(settings.agent, table.wire)
            return {"": _from_table(settings, "", table.model_copy(update={"wire": wire}))}
        return {name: _from_table(settings, name, table) for name, table in tables.items()}


TABLES: Final = UpstreamTables()


def config_of(context: AgentContext, api: UpstreamApi) -> UpstreamConfig:
    """Returns the configuration of an agent for an API: its table, or what the short settings say."""
    settings = own_settings(context.settings, UpstreamSettings)
    without_table = UpstreamConfig.model_validate({"wire": WIRES[api.agent]})
    return settings.upstreams.get(ONLY_TABLE) or _with_short_settings(context.settings, without_table)


def _from_table(settings: Settings, name: str, table: UpstreamConfig) -> ConfiguredAgent:
    """Returns the agent of a table, whose settings have only this one; `name` is empty for the only agent. The short
    settings are part of `[upstreams.default]`.
    """
    short = own_settings(settings, UpstreamSettings)
    is_default = name in ("", ONLY_TABLE)
    config = _with_short_settings(settings, table) if is_default else _with_timeout(settings, table)
    config = config.with_defaults(total_timeout=settings.total_timeout)
    if not config.url and not config.kind.url:
        raise NoAgentError(
            f"[upstreams.{name or ONLY_TABLE}] needs the address of a server (url), or a preset."
        )
    own = settings_for_one(
        settings,
        agent=APIS[config.wire].agent,
        upstreams={ONLY_TABLE: config},
        upstream_url=short.upstream_url if is_default else None,
        upstream_key=short.upstream_key if is_default else None,
        total_timeout=config.total_timeout or settings.total_timeout,
        codex_model=config.default_model or (settings.codex_model if not name else None),
    )
    return ConfiguredAgent(
        name=name,
        settings=own,
        spec=registry.chosen_spec(own),
        table="" if is_default and short.upstream_url else f"[upstreams.{name or ONLY_TABLE}]",
        aliases=config.aliases,
    )


def _with_short_settings(settings: Settings, config: UpstreamConfig) -> UpstreamConfig:
    url = own_settings(settings, UpstreamSettings).upstream_url
    return _with_timeout(settings, config.model_copy(update={"url": url} if url else {}))


def _with_timeout(settings: Settings, config: UpstreamConfig) -> UpstreamConfig:
    is_set = "idle_timeout" in settings.model_fields_set
    return config.with_defaults(idle_timeout=settings.idle_timeout) if is_set else config


def _check_fallbacks(settings: Settings, tables: dict[str, UpstreamConfig]) -> None:
    for name, table in tables.items():
        for each in table.fallback:
            other = each.partition("/")[0]
            if other == name or other not in tables:
                others = [table for table in tables if table != name]
                allowed = f"write one of {', '.join(others)}, or NAME/MODEL" if others else "there is none"
                kind = "an agent, and no" if other in settings.agents else "no other"
                raise NoAgentError(f"[upstreams.{name}]: the fallback {each} is {kind} upstream; {allowed}.")
