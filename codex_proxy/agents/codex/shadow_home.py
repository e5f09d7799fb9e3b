"""The Codex home of plain-model processes (the *shadow home*): the user's sign-in and model provider, and nothing
else of the user's own Codex home.

Input: the text of the user's config.toml. Output: a `ShadowHome`: the text of the new config.toml, the files to
link, and the properties of the model provider. No file is written here. The new home must contain no folder
`sessions`, because Codex would then need longer for every `thread/start`.

The user's own home cannot be used, because the model would get its AGENTS.md, `developer_instructions` and MCP
servers, whatever switches a process is started with.

Raises `ConfigError` (a `ValueError`), whose text names the line, or the key with a value of the wrong type.
"""

import tomllib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import tomli_w

DEFAULT_PROVIDER: Final = "openai"

BUILT_IN_PROVIDERS: Final = frozenset({"openai", "ollama", "lmstudio", "amazon-bedrock"})
"""Provider ids that Codex reserves. Their settings, the number of retries included, cannot be changed."""

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
"""The top-level keys of config.toml that determine where requests go and who pays. Only these are copied."""

LINKED_FILES: Final = ("auth.json",)
"""Files that are linked and not copied, because a renewal of the tokens in one copy would invalidate the other.
Codex writes through the link. If nobody is signed in yet, the link's target does not exist. Signing out in the
shadow home removes only the link."""


class ConfigError(ValueError):
    """The user's config.toml cannot be used. The text names the line or the key, and the reason."""


class ProviderConfig(msgspec.Struct, frozen=True):
    """The model provider in a Codex home.

    `custom` is True for a provider that the user has defined; only for such a provider can the number of retries be
    set. `env_names` are the environment variables with its keys and headers: the Codex process needs them, and the
    shells that it starts must not have them. `shell_exclude` is the user's own list of variables that these shells
    do not get, which must be repeated in a start switch, because the switch replaces the list.
    """

    id: str = DEFAULT_PROVIDER
    custom: bool = False
    env_names: tuple[str, ...] = ()
    shell_exclude: tuple[str, ...] = ()
    service_tier: str = "default"
    """The service tier in the user's settings, in OpenAI's spelling."""
    token_command: bool = False
    """Whether a command of the user's prints the provider's token, so that Codex has to run it."""
    keyring: bool = False
    """Whether the sign-in may be in the system's keyring. If so, no file shows whether the user is signed in."""


class ShadowHome(msgspec.Struct, frozen=True):
    """The content of the Codex home of plain-model processes: the text of its config.toml, and the names of the
    files that are links to those in the user's Codex home (`links`).

    `provider` is the model provider. `notices` are sentences for the operator about settings that could not be
    copied.
    """

    config_toml: str
    provider: ProviderConfig
    links: tuple[str, ...] = LINKED_FILES
    notices: tuple[str, ...] = ()


def plan_shadow_home(config_toml: str) -> ShadowHome:
    """Returns the shadow home for the text of a user's config.toml, which is empty if there is no file. Raises
    `ConfigError` if the text is not TOML, or a field of the provider has the wrong type.
    """
    config = parse_config(config_toml)
    kept: dict[str, Any] = {key: config[key] for key in PROVIDER_KEYS if key in config}
    notices = []
    if config.get("cli_auth_credentials_store") == "keyring":
        notices.append(
            "config.toml keeps the sign-in in the keyring under the path of its Codex home, where "
            'plain-model turns cannot read it. Set cli_auth_credentials_store = "file" and sign in again.'
        )
    return ShadowHome(tomli_w.dumps(kept), _provider(config), notices=tuple(notices))


def provider_config(config_toml: str) -> ProviderConfig:
    """Returns the model provider in the text of the user's config.toml, for processes that run in the user's own
    Codex home. Raises `ConfigError` if the text is not TOML, or a field of the provider has the wrong type.
    """
    return _provider(parse_config(config_toml))


def parse_config(text: str) -> dict[str, Any]:
    """Parses the text of a config.toml. Raises `ConfigError` if it is not TOML."""
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
        token_command="auth" in table,
        service_tier=_service_tier(config),
        keyring=config.get("cli_auth_credentials_store", "file") != "file",
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
    """Returns the table `key` in the table `parent` of a config.toml; an empty one if it is missing. Raises
    `ConfigError` if it is not a table; the message has `prefix` before the key.
    """
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"config.toml: {prefix}{key} is not a table")
    return value


def strings_of(values: Any, where: str) -> tuple[str, ...]:
    """Returns `values` as a tuple. Raises `ConfigError`, whose text contains the key `where`, if it is not a list
    of strings.
    """
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"config.toml: {where} must contain only strings")
    return tuple(values)


def shell_exclude(provider: ProviderConfig, hidden: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the variables that the agent's shells must not get: those in the user's list, those with
    the provider's keys, and `hidden`. Returns `()` if the last two are empty, because Codex then needs no other
    list than the user's.
    """
    ours = (*provider.env_names, *hidden)
    return tuple(dict.fromkeys((*provider.shell_exclude, *ours))) if ours else ()
