"""The home of plain-model processes: the user's sign-in and provider, and nothing else of the user's home.

In: the text of the user's config.toml. Out: a ``ShadowHome`` plan (the text of the new config.toml, the links
to make, what was learnt about the provider). It makes no file; the caller does, in a folder of its own that
must hold no ``sessions/``, since the mere presence of that folder makes every ``thread/start`` slower.

Why a second home: with the user's own, its AGENTS.md, ``developer_instructions`` and every configured MCP
server reach the model in spite of all start switches.

Errors: ``ConfigError`` (a ``ValueError``) that names the line, or the key with a value of the wrong type.
"""

import tomllib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import tomli_w

DEFAULT_PROVIDER: Final = "openai"

BUILT_IN_PROVIDERS: Final = frozenset({"openai", "ollama", "lmstudio", "amazon-bedrock"})
"""Ids that Codex reserves: their settings, retry counts included, cannot be overridden."""

PROVIDER_KEYS: Final = (
    "model",
    "model_provider",
    "model_providers",
    "openai_base_url",  # where the built-in provider sends its requests
    "chatgpt_base_url",  # where a ChatGPT sign-in is served
    "cli_auth_credentials_store",  # file, keyring or auto
    "forced_login_method",
    "forced_chatgpt_workspace_id",
    "service_tier",  # what the user pays for, not what the model reads
)
"""Top-level keys that decide where a request goes and who pays; every other key stays behind."""

LINKED_FILES: Final = ("auth.json",)
"""Linked, not copied: a copy would be signed out by the first renewal of the tokens. Codex writes through the
link. It may dangle (nobody is signed in yet); a sign-out in the shadow home removes only the link."""


class ConfigError(ValueError):
    """The user's config.toml cannot be used; the text says where and why."""


class ProviderConfig(msgspec.Struct, frozen=True):
    """The model provider a Codex home points at.

    ``custom`` is true for one the user defined: only those take retry counts. ``env_names`` are the
    environment variables that hold its keys and headers: the child needs them, its shells do not.
    ``shell_exclude`` is what the user already hides from shells: a start switch would replace it.
    """

    id: str = DEFAULT_PROVIDER
    custom: bool = False
    env_names: tuple[str, ...] = ()
    shell_exclude: tuple[str, ...] = ()
    service_tier: str = "default"
    """What the user's settings ask for, by OpenAI's names."""


class ShadowHome(msgspec.Struct, frozen=True):
    """What to make: ``config_toml`` as config.toml, and a link of each of ``links`` to the user's home.

    ``notices`` are sentences for the operator about what the shadow home cannot carry over.
    """

    config_toml: str
    provider: ProviderConfig
    links: tuple[str, ...] = LINKED_FILES
    notices: tuple[str, ...] = ()


def plan_shadow_home(config_toml: str) -> ShadowHome:
    """The shadow home for a user's config.toml; the empty text stands for a home without one."""
    config = parse_config(config_toml)
    kept: dict[str, Any] = {key: config[key] for key in PROVIDER_KEYS if key in config}
    notices = []
    if config.get("cli_auth_credentials_store") == "keyring":
        notices.append(
            "config.toml keeps the sign-in in the keyring, filed under the path of its Codex home: "
            'plain-model turns cannot see it. Set cli_auth_credentials_store = "file" and sign in again.'
        )
    return ShadowHome(tomli_w.dumps(kept), _provider(config), notices=tuple(notices))


def provider_config(config_toml: str) -> ProviderConfig:
    """The provider alone, for processes that run in the user's own home."""
    return _provider(parse_config(config_toml))


def parse_config(text: str) -> dict[str, Any]:
    """A config.toml as a value. Raises ``ConfigError``."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise ConfigError(f"config.toml is not valid TOML: {fault}") from fault


def _provider(config: dict[str, Any]) -> ProviderConfig:
    identity = config.get("model_provider", DEFAULT_PROVIDER)
    if not isinstance(identity, str):
        raise ConfigError("config.toml: model_provider is not a string")
    table = table_of(table_of(config, "model_providers"), identity, "model_providers.")
    policy = table_of(config, "shell_environment_policy")
    return ProviderConfig(
        id=identity,
        custom=identity not in BUILT_IN_PROVIDERS and bool(table),
        env_names=_env_names(table, identity),
        service_tier=_service_tier(config),
        shell_exclude=strings_of(policy.get("exclude", []), "shell_environment_policy.exclude"),
    )


def _service_tier(config: dict[str, Any]) -> str:
    tier = config.get("service_tier", "default")
    if not isinstance(tier, str):
        raise ConfigError("config.toml: service_tier is not a string")
    return "priority" if tier == "fast" else tier


def _env_names(provider: dict[str, Any], identity: str) -> tuple[str, ...]:
    where = f"model_providers.{identity}"
    key = provider.get("env_key")
    headers = table_of(provider, "env_http_headers", f"{where}.")
    names = strings_of([] if key is None else [key], f"{where}.env_key")
    names += strings_of(list(headers.values()), f"{where}.env_http_headers")
    return tuple(dict.fromkeys(names))


def table_of(parent: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """A table of a config.toml, empty where there is none. Raises ``ConfigError`` where it is something else."""
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"config.toml: {prefix}{key} is not a table")
    return value


def strings_of(values: Any, where: str) -> tuple[str, ...]:
    """A list of strings of a config.toml. Raises ``ConfigError`` where it is something else."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"config.toml: {where} is not made of strings")
    return tuple(values)


def shell_exclude(provider: ProviderConfig, hidden: Iterable[str]) -> tuple[str, ...]:
    """What the agent's shells do not see: the user's own list, the provider's keys, and ``hidden``. Empty where
    there is nothing to add to the user's own list."""
    ours = (*provider.env_names, *hidden)
    return tuple(dict.fromkeys((*provider.shell_exclude, *ours))) if ours else ()
