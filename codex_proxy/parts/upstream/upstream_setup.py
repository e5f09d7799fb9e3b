"""Makes the agents of model servers by their settings and the tables `[upstreams.NAME]`, of which a single one is
`[upstreams.default]` with short settings; and checks them for `doctor`.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from pydantic import SecretStr
from yarl import URL

from codex_proxy.agents import registry
from codex_proxy.agents.configured.agents import ConfiguredAgent, settings_for_one
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Check, CheckBuilder, Installation, failed_check
from codex_proxy.core.faults import misconfigured
from codex_proxy.parts import own_settings
from codex_proxy.parts.upstream.agent import UpstreamAgent
from codex_proxy.parts.upstream.config import (
    APIS,
    RESPONSES,
    SettingNames,
    Upstream,
    UpstreamApi,
    UpstreamConfig,
)
from codex_proxy.parts.upstream.server import ModelServer, request_models_once
from codex_proxy.parts.upstream.upstream_specs import CLIENTS_KEY, UpstreamSettings
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.tables import ONLY_TABLE

ADAPTERS_URL: Final = "OPENAI_BASE_URL_INTERNAL"
"""The variable in which open-responses-server expects the address; with it, its variable for the key is used."""
ADAPTERS_KEY: Final = "OPENAI_API_KEY"
_MAX_KEY_CHARS: Final = 10_000


async def make(api: UpstreamApi, context: AgentContext) -> UpstreamAgent:
    """Returns the agent, not yet started. Raises `NoAgentError` for an invalid setting of a single upstream; one of
    several raises when started.
    """
    if not context.name:
        upstream_of(api, context)

    async def make_server() -> ModelServer:
        try:
            upstream = upstream_of(api, context)
        except NoAgentError as error:
            raise misconfigured(str(error)) from error
        server = ModelServer(upstream, context.clock)
        await server.start()
        return server

    return UpstreamAgent(
        context.name,
        config_of(context, api),
        make_server,
        context.clock,
        peers=context.peers if context.name else None,
        queue_wait=context.settings.of_server.queue_wait,
    )


async def check(api: UpstreamApi, context: AgentContext) -> list[Check]:
    """Checks for `doctor` whether the upstream answers, and how many models it lists."""
    try:
        upstream = upstream_of(api, context)
    except NoAgentError as error:
        return [failed_check("upstream", str(error))]
    names, host = upstream.names, upstream.host
    checking = CheckBuilder("upstream", host=host, key=bool(upstream.key), clients_key=upstream.clients_key)
    if upstream.clients_key:
        return [checking.skipped(f"{host} is called with the clients' keys, so it was not checked.")]
    trouble, models = await request_models_once(upstream, context.clock)
    checking.facts["models"] = len(models)
    if trouble is not None:
        advice = f"Start the model server on {host}, or set another address with {names.url}."
        if trouble.kind.value == "upstream_unauthorized":
            advice = f"Set a key that {host} accepts with {names.key} or {names.key_file}."
        return [checking.failed(trouble.message, advice)]
    if not models:
        advice = (
            f"If it should list models, check {names.url}, which usually ends with /v1. "
            f"Otherwise set {names.model} to the default model."
        )
        message = f"{host} answers but lists no models. Any model name is passed on to it."
        return [checking.warning(message, advice)]
    return [checking.ok(f"{host} answers, and has {len(models)} models; the default is {models[0].id}.")]


async def installation(api: UpstreamApi, context: AgentContext) -> Installation:
    """Returns the host of the upstream of the settings, and whether it has a key. Asks it nothing."""
    config = config_of(context, api)
    install = f"codex-proxy serve --agent {api.agent} --upstream-url http://HOST:PORT/v1"
    if not (config.url or config.kind.url):
        return Installation(installed=False, install=install)
    try:
        upstream = upstream_of(api, context)
    except NoAgentError as error:
        return Installation(installed=False, trouble=str(error))
    has_key = bool(upstream.key) or upstream.clients_key
    return Installation(installed=True, program=upstream.host, signed_in=True if has_key else None)


def upstream_of(api: UpstreamApi, context: AgentContext) -> Upstream:
    """Returns the upstream of the settings. Raises `NoAgentError` if address, key or a file is missing or invalid."""
    config, settings = config_of(context, api), own_settings(context.settings, UpstreamSettings)
    names = SettingNames.of_table(context.table)
    url = config.url or config.kind.url
    if not url:
        raise NoAgentError(
            f"--agent {api.agent} needs the address of a server that speaks {api.api}: give it with "
            "--upstream-url (PROXY_UPSTREAM_URL), like http://127.0.0.1:11434/v1."
        )
    if config.hosted_tools and api is not RESPONSES:
        raise NoAgentError(
            f"{names.hosted_tools} needs an upstream with the Responses API: set {names.wire}."
        )
    checked = _normalise_url(url, api, names)
    key = _key_of(config, settings.upstream_key, context.environ, names)
    clients_key = key == CLIENTS_KEY
    if clients_key and context.settings.wants_key:
        raise NoAgentError(
            "PROXY_UPSTREAM_KEY=client passes each client's key on, but clients send a key of "
            "this server (PROXY_API_KEY, PROXY_KEYS_FILE). Use only one of the two."
        )
    if config.ca_file is not None:
        _check_certificates(config.ca_file, names.ca_file)
    return Upstream(
        config=config,
        name=context.name,
        names=names,
        url=checked,
        key="" if clients_key else key,
        clients_key=clients_key,
        proxy=proxy_for(checked, context.environ),
    )


def _normalise_url(given: str, api: UpstreamApi, names: SettingNames) -> str:
    wrong = f"{names.url} must be an address like http://127.0.0.1:11434/v1"
    try:
        parts = urlsplit(given.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise NoAgentError(f"{wrong}: {error}.") from error
    if parts.scheme not in ("http", "https") or not host:
        raise NoAgentError(f"{wrong}.")
    if parts.username is not None or parts.password is not None:
        raise NoAgentError(f"{wrong}, without a user name or a password. Set a key with {names.key}.")
    if parts.query or parts.fragment:
        raise NoAgentError(f"{wrong}, without a query or a fragment.")
    path = parts.path.rstrip("/").removesuffix(api.path) or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _key_of(
    config: UpstreamConfig, given: SecretStr | None, environ: Mapping[str, str], names: SettingNames
) -> str:
    if sum(each is not None for each in (given, config.key_file, config.key_env)) > 1:
        raise NoAgentError(f"The upstream's key is set twice. Remove {names.key} or {names.key_file}.")
    if config.key_file is not None:
        key = _read_key(config.key_file, names.key_file)
    elif given is not None:
        key = given.get_secret_value().strip()
    else:
        key = _key_in_environment(config, environ, names)
    if not (key.isascii() and key.isprintable()) or len(key) > _MAX_KEY_CHARS:
        raise NoAgentError(
            "The upstream's key contains characters that are not allowed in a key. Check "
            f"{names.key}, or {names.key_file}."
        )
    return key


def _key_in_environment(config: UpstreamConfig, environ: Mapping[str, str], names: SettingNames) -> str:
    # A key that lies about for a provider is sent to that provider's own address only.
    variable, is_needed = config.key_env or "", config.key_env is not None
    if not variable and config.url is None:
        variable, is_needed = config.kind.key_env, config.kind.needs_key
    elif not variable and config.url == environ.get(ADAPTERS_URL):
        variable = ADAPTERS_KEY
    key = environ.get(variable, "").strip()
    if is_needed and not key:
        raise NoAgentError(
            f"{names.key}: the environment variable {variable} is not set. Set {variable} to the API key, or name a "
            f"file with {names.key_file}."
        )
    return key


def _read_key(file: Path, name: str) -> str:
    try:
        key = file.expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NoAgentError(f"{name}: {file} cannot be read ({reason}).") from error
    if not key:
        raise NoAgentError(f"{name}: {file} is empty.")
    return key


def _check_certificates(file: Path, name: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:
        reason = "it has no certificates (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
        raise NoAgentError(f"{name}: {file} cannot be read ({reason}).") from error


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Returns the URL of the HTTP proxy that `http_proxy` and so on name for `url`, if any. Raises `NoAgentError` if it
    is none.
    """
    given = {name.lower(): value for name, value in environ.items() if name.isupper()}
    given |= {name: value for name, value in environ.items() if name.islower()}
    proxies = {
        name.removesuffix("_proxy"): value
        for name, value in given.items()
        if name.endswith("_proxy") and value
    }
    parts = urlsplit(url)
    if proxy_bypass_environment(parts.netloc, proxies):
        return None
    kind = parts.scheme if parts.scheme in proxies else "all"
    found = proxies.get(kind, "").strip()
    if not found:
        return None
    proxy = found if "://" in found else f"http://{found}"  # as other programs read it
    with contextlib.suppress(ValueError):
        if URL(proxy).scheme in ("http", "https") and URL(proxy).host:
            return proxy
    raise NoAgentError(  # without the value, which may have a password
        f"The environment variable {kind}_proxy is not the address of an HTTP proxy, like http://127.0.0.1:3128. "
        f"Correct it, or exclude {parts.hostname} with no_proxy."
    )


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
