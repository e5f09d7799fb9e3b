"""The parts that the specs of the agents of model servers share: their settings, the upstream that these describe, and
the check of `doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.agents.upstream.config import (
    CHAT,
    SettingNames,
    Timeouts,
    Upstream,
    UpstreamApi,
)
from codex_proxy.core.checks import Check, Fact, failed_check

if TYPE_CHECKING:
    from codex_proxy.config import Settings

CLIENTS_KEY: Final = "client"
"""The value of PROXY_UPSTREAM_KEY with which each client's own key is sent to the upstream."""
ADAPTERS_URL: Final = "OPENAI_BASE_URL_INTERNAL"
"""The environment variable in which open-responses-server expects the upstream's address. If it is used, that
program's variable for the key is used, too."""
ADAPTERS_KEY: Final = "OPENAI_API_KEY"
UPSTREAM_SETTINGS: Final = frozenset(
    {
        *("upstream_url", "upstream_key", "upstream_key_file", "upstream_ca_file"),
        *("upstream_connect_timeout", "upstream_first_byte_timeout", "upstream_idle_timeout"),
        *("upstream_retries", "upstream_retry_wait", "upstream_breaker_failures"),
    }
)
_MAX_KEY_CHARS: Final = 10_000


async def check_upstream(context: AgentContext, wire: UpstreamApi) -> list[Check]:
    """Returns a list with one check for the command `doctor`: whether the upstream, which has the API `wire`,
    answers a request for its list of models, and how many it has. No model is run. The check is `failed` if the
    settings are invalid or the upstream refuses or does not answer, a warning if it lists no models, and `skipped`
    if requests use the keys of clients, since `doctor` has none.
    """
    from codex_proxy.agents.upstream.agent import request_models_once

    try:
        upstream = upstream_of(context, wire)
    except NoAgentError as error:
        return [failed_check("upstream", str(error))]
    facts: dict[str, Fact] = {
        "host": upstream.host,
        "key": bool(upstream.key),
        "clients_key": upstream.clients_key,
    }
    if upstream.clients_key:
        message = f"{upstream.host} is called with the clients' keys, so it was not checked."
        return [Check(name="upstream", status="skipped", message=message, facts=facts)]
    trouble, models = await request_models_once(upstream, context.clock)
    facts["models"] = len(models)
    if trouble is not None:
        names = upstream.setting_names
        advice = f"Start the model server on {upstream.host}, or set another address with {names.url}."
        if trouble.kind.value == "upstream_unauthorized":
            advice = f"Set a key that {upstream.host} accepts with {names.key} or {names.key_file}."
        return [Check(name="upstream", status="failed", message=trouble.message, advice=advice, facts=facts)]
    if not models:
        message = f"{upstream.host} answers but lists no models. Any model name is passed on to it."
        names = upstream.setting_names
        advice = (
            f"If it should list models, check {names.url}, which usually ends with /v1. "
            f"Otherwise set {names.model} to the default model."
        )
        return [Check(name="upstream", status="warning", message=message, advice=advice, facts=facts)]
    message = f"{upstream.host} answers, and has {len(models)} models; the default is {models[0].id}."
    return [Check(name="upstream", status="ok", message=message, facts=facts)]


def upstream_of(context: AgentContext, wire: UpstreamApi = CHAT) -> Upstream:
    """Returns the configuration of the upstream from the settings. `wire` is the API that it offers. Raises
    `NoAgentError`, whose text says what to change, if a setting is missing or invalid.
    """
    settings, environ = context.settings, context.environ
    names = SettingNames.of_table(context.upstream.table)
    if not settings.upstream_url:
        raise NoAgentError(
            f"--agent {wire.agent} needs the address of a server that speaks {wire.api}: give it with "
            "--upstream-url (PROXY_UPSTREAM_URL), like http://127.0.0.1:11434/v1."
        )
    url = _checked_url(settings.upstream_url, wire, names)
    key = _key_of(settings, environ, names)
    clients_key = key == CLIENTS_KEY
    if clients_key and settings.wants_key:
        raise NoAgentError(
            "PROXY_UPSTREAM_KEY=client passes each client's key on, but clients send a key of "
            "this server (PROXY_API_KEY, PROXY_KEYS_FILE). Use only one of the two."
        )
    if settings.upstream_ca_file is not None and not settings.upstream_ca_file.is_file():
        raise NoAgentError(f"{names.ca_file}: there is no file {settings.upstream_ca_file}.")
    return Upstream(
        url=url,
        key="" if clients_key else key,
        clients_key=clients_key,
        proxy=proxy_for(url, environ),
        ca_file=settings.upstream_ca_file,
        timeouts=Timeouts(
            connect=settings.upstream_connect_timeout,
            first_byte=settings.upstream_first_byte_timeout,
            silence=settings.upstream_idle_timeout,
        ),
        name=context.name,
        wire=wire,
        options=context.upstream,
    )


def _checked_url(given: str, wire: UpstreamApi, names: SettingNames) -> str:
    """Returns the base URL for requests, without a trailing slash, from the value `given` of the setting. A URL
    without a path gets `/v1`; if the URL ends with the path of `wire`'s endpoint, that path is removed. `names` has
    the names of the settings, for error messages. Raises `NoAgentError` if the URL is invalid.
    """
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
    path = parts.path.rstrip("/").removesuffix(wire.path) or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _key_of(settings: Settings, environ: Mapping[str, str], names: SettingNames) -> str:
    given = settings.upstream_key
    if given is not None and settings.upstream_key_file is not None:
        raise NoAgentError(
            "The upstream's key is set twice. Remove PROXY_UPSTREAM_KEY or PROXY_UPSTREAM_KEY_FILE."
        )
    if settings.upstream_key_file is not None:
        key = _read_key(settings.upstream_key_file, names.key_file)
    elif given is not None:
        key = given.get_secret_value().strip()
    else:
        # A key that lies about for OpenAI's SDK is not sent to another server: only its own name vouches for it.
        named = settings.upstream_url == environ.get(ADAPTERS_URL)
        key = environ.get(ADAPTERS_KEY, "").strip() if named else ""
    if not (key.isascii() and key.isprintable()) or len(key) > _MAX_KEY_CHARS:
        raise NoAgentError(
            "The upstream's key contains characters that are not allowed in a key. Check "
            f"{names.key}, or {names.key_file}."
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


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Returns the HTTP proxy that the environment names for an address, by `http_proxy`, `https_proxy`, `all_proxy`
    and `no_proxy`, in lower or upper case; None if it names none."""
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
    return proxies.get(parts.scheme) or proxies.get("all")
