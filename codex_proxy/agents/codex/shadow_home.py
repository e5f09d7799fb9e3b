"""The Codex home of plain-model processes (the *shadow home*): only the user's sign-in and model provider, without
AGENTS.md, `developer_instructions` and MCP servers. No file is written here.
"""

import tomllib
from typing import Any, Final

import msgspec
import tomli_w

DEFAULT_PROVIDER: Final = "openai"

BUILT_IN_PROVIDERS: Final = frozenset({"openai", "ollama", "lmstudio", "amazon-bedrock"})
"""Providers whose settings cannot be changed."""

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
"""The copied settings of a provider: where requests go and who pays."""

LINKED_FILES: Final = ("auth.json",)
"""Files that are linked: a renewal of tokens in a copy would invalidate the other. The target need not exist."""


class ConfigError(ValueError):
    """config.toml cannot be used; the message names line or key."""


class ProviderConfig(msgspec.Struct, frozen=True):
    """A Codex home's model provider, which the user has defined if `custom`. Codex, but not its shells, gets the
    variables `env_names`. `shell_exclude`: variables that the user keeps from shells.
    """

    id: str = DEFAULT_PROVIDER
    custom: bool = False
    env_names: tuple[str, ...] = ()
    shell_exclude: tuple[str, ...] = ()
    service_tier: str = "default"
    """The tier in OpenAI's spelling."""
    token_command: bool = False
    keyring: bool = False
    """Whether the sign-in may be in the keyring."""


class WorkspaceWrite(msgspec.Struct, frozen=True):
    """`[sandbox_workspace_write]` of a config.toml."""

    writable_roots: tuple[str, ...] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


class ShadowHome(msgspec.Struct, frozen=True):
    """A shadow home's config.toml. `notices` are sentences about settings that could not be copied."""

    config_toml: str
    provider: ProviderConfig
    model: str | None = None
    """The user's model; None: Codex's default."""
    write_policy: WorkspaceWrite = WorkspaceWrite()
    notices: tuple[str, ...] = ()


def plan_shadow_home(config_toml: str) -> ShadowHome:
    """Returns the home for the user's config.toml. Raises `ConfigError`."""
    try:
        config = tomllib.loads(config_toml)
    except tomllib.TOMLDecodeError as fault:
        raise ConfigError(f"config.toml is not valid TOML: {fault}") from fault
    kept: dict[str, Any] = {key: config[key] for key in PROVIDER_KEYS if key in config}
    notices = []
    if config.get("cli_auth_credentials_store") == "keyring":
        notices.append(
            "config.toml keeps the sign-in in the keyring under the path of its Codex home, where "
            'plain-model turns cannot read it. Set cli_auth_credentials_store = "file" and sign in again.'
        )
    model = config.get("model") or None
    own_model = model if isinstance(model, str) else None
    return ShadowHome(
        config_toml=tomli_w.dumps(kept),
        provider=_provider(config),
        model=own_model,
        write_policy=_workspace_write(config),
        notices=tuple(notices),
    )


def _provider(config: dict[str, Any]) -> ProviderConfig:
    identity = config.get("model_provider", DEFAULT_PROVIDER)
    if not isinstance(identity, str):
        raise ConfigError("config.toml: model_provider is not a string")
    table = _table_of(_table_of(config, "model_providers"), identity, "model_providers.")
    policy = _table_of(config, "shell_environment_policy")
    return ProviderConfig(
        id=identity,
        custom=identity not in BUILT_IN_PROVIDERS and bool(table),
        env_names=_env_names(table, identity),
        token_command="auth" in table,
        service_tier=_service_tier(config),
        keyring=config.get("cli_auth_credentials_store", "file") != "file",
        shell_exclude=_strings_of(policy.get("exclude", []), "shell_environment_policy.exclude"),
    )


def _service_tier(config: dict[str, Any]) -> str:
    tier = config.get("service_tier", "default")
    if not isinstance(tier, str):
        raise ConfigError("config.toml: service_tier is not a string")
    return "priority" if tier == "fast" else tier


def _env_names(provider: dict[str, Any], identity: str) -> tuple[str, ...]:
    where = f"model_providers.{identity}"
    key = provider.get("env_key")
    headers = _table_of(provider, "env_http_headers", f"{where}.")
    names = _strings_of([] if key is None else [key], f"{where}.env_key")
    names += _strings_of(list(headers.values()), f"{where}.env_http_headers")
    return tuple(dict.fromkeys(names))


def _workspace_write(config: dict[str, Any]) -> WorkspaceWrite:
    """Reads the table; a flag that is no boolean is False. Raises `ConfigError`."""
    table = _table_of(config, "sandbox_workspace_write")

    def flag(name: str) -> bool:
        return table.get(name) is True  # anything else is refused by Codex itself

    return WorkspaceWrite(
        writable_roots=_strings_of(table.get("writable_roots", []), "sandbox_workspace_write.writable_roots"),
        network_access=flag("network_access"),
        exclude_tmpdir_env_var=flag("exclude_tmpdir_env_var"),
        exclude_slash_tmp=flag("exclude_slash_tmp"),
    )


def _table_of(parent: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """Returns a table, empty if missing. Raises `ConfigError`."""
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"config.toml: {prefix}{key} is not a table")
    return value


def _strings_of(values: Any, where: str) -> tuple[str, ...]:
    """Returns a list of strings as a tuple. Raises `ConfigError` for other values."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"config.toml: {where} must contain only strings")
    return tuple(values)
