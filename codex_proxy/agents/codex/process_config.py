"""The configuration of Codex's processes: the `-c` switches, each with its reason, those of the sandbox of agent
turns, and the Codex home of plain-model processes (the *shadow home*): only the user's sign-in and model
provider, without AGENTS.md, `developer_instructions` and MCP servers. No file is written here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import tomli_w

from codex_proxy.agents.codex.program import NEWEST_TESTED, Version
from codex_proxy.core.toml_text import TomlError, toml_of
from codex_proxy.core.turn import Sandbox

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


def plan_shadow_home(config_toml: bytes | str) -> ShadowHome:
    """Returns the home for the user's config.toml. Raises `ConfigError`."""
    try:
        config = toml_of(config_toml)
    except TomlError as fault:
        raise ConfigError(f"config.toml {fault}") from fault
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


def workspace_write_pairs(policy: WorkspaceWrite) -> list[tuple[str, str]]:
    """Returns the user's settings of the sandbox `workspace-write` as pairs for `-c`, so that a project's config.toml
    cannot widen it.
    """
    prefix = "sandbox_workspace_write"
    return [
        (f"{prefix}.writable_roots", toml_array(policy.writable_roots)),
        (f"{prefix}.network_access", _bool(policy.network_access)),
        (f"{prefix}.exclude_tmpdir_env_var", _bool(policy.exclude_tmpdir_env_var)),
        (f"{prefix}.exclude_slash_tmp", _bool(policy.exclude_slash_tmp)),
    ]


def _bool(value: bool) -> str:
    return "true" if value else "false"


class Profiles(msgspec.Struct, frozen=True):
    """The permission profiles of a process, one for each sandbox, with the `denied` paths and the user's `policy`.
    `name` begins their names and must not be guessable: a project's config.toml could change them.
    """

    name: str
    denied: tuple[str, ...]
    policy: WorkspaceWrite = WorkspaceWrite()

    def of(self, sandbox: Sandbox) -> str | None:
        """Returns a sandbox's profile; None for `danger-full-access`."""
        if sandbox == "danger-full-access":
            return None
        return f"{self.name}_{'read' if sandbox == 'read-only' else 'write'}"

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the definitions of the profiles as pairs for `-c`, and a default profile, which Codex requires."""
        read, write = self.of("read-only"), self.of("workspace-write")
        return [
            (f"permissions.{read}", self._table(":read-only", {})),
            (f"permissions.{write}", self._table(":workspace", self._writable_paths())),
            ("default_permissions", toml_string(str(read))),
        ]

    def _writable_paths(self) -> dict[str, Any]:
        paths = dict.fromkeys(self.policy.writable_roots, "write")
        paths |= {":slash_tmp": "read"} if self.policy.exclude_slash_tmp else {}
        return paths | ({":tmpdir": "read"} if self.policy.exclude_tmpdir_env_var else {})

    def _table(self, extends: str, paths: dict[str, Any]) -> str:
        entries = paths | dict.fromkeys(self.denied, "deny")
        listed = ",".join(f"{toml_string(path)}={toml_string(access)}" for path, access in entries.items())
        network = ",network={enabled=true}" if self.policy.network_access and extends == ":workspace" else ""
        return f"{{extends={toml_string(extends)},filesystem={{{listed}}}{network}}}"


def outermost_paths(paths: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip("/") + "/") for folder in kept):
            kept.append(path)
    return tuple(kept)


def toml_string(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def toml_array(texts: Iterable[str]) -> str:
    return f"[{','.join(map(toml_string, texts))}]"


SAFE_SNAPSHOTS_SINCE: Final = Version(0, 158, 0)
"""The first release whose shell snapshots are safe. In earlier ones they give commands the provider's key."""


class Switch(NamedTuple):
    """One setting for Codex's `-c KEY=VALUE`; `value` is TOML."""

    key: str
    value: str
    reason: str


UNLOAD_SWITCH: Final = "thread_unload_delay_secs"
SUBAGENTS_SWITCH: Final = "agents.enabled"

COMMON_SWITCHES: Final = (
    Switch("analytics.enabled", "false", "no connection but to the model provider"),
    Switch("features.plugins", "false", "plugins fetch from github.com at start"),
    Switch("features.apps", "false", "apps ask chatgpt.com at start"),
    Switch(
        "features.unbounded_connection_retries",
        "false",
        "an unresponsive model provider must not block a turn for ever",
    ),
    Switch(
        SUBAGENTS_SWITCH, "false", "subagents, which each thread has to ask for: plain-model turns have none"
    ),
    Switch(
        UNLOAD_SWITCH,
        "0",
        "a thread that is no longer used is unloaded at once, not after 30 minutes",
    ),
)

PLAIN_SWITCHES: Final = (
    Switch("web_search", '"disabled"', "a hosted tool the client did not offer"),
    Switch("include_permissions_instructions", "false", "a developer message about sandbox and approvals"),
    Switch("include_environment_context", "false", "a user message about folder and shell"),
    Switch("include_apps_instructions", "false", "a developer message about apps"),
    Switch("include_collaboration_mode_instructions", "false", "a developer message about the mode"),
    Switch("project_doc_max_bytes", "0", "AGENTS.md of the folder would reach the model"),
    Switch("skills.include_instructions", "false", "a list of the user's skills would reach the model"),
    Switch("skills.bundled.enabled", "false", "a text with `$imagegen` would add that skill of Codex's own"),
    Switch("orchestrator.skills.enabled", "false", "two tools that read skills, in releases around 0.144"),
    Switch("tools.experimental_request_user_input.enabled", "false", "a tool of the agent"),
    Switch("tools.update_plan.enabled", "false", "a tool of the agent"),
    Switch("features.shell_tool", "false", "the shell: a plain model runs nothing"),
    Switch("features.unified_exec", "false", "the other shell"),
    Switch("features.goals", "false", "three tools of the agent"),
    Switch("features.multi_agent", "false", "tools for sub-agents"),
    Switch("features.multi_agent_v2", "false", "tools for sub-agents, next version"),
    Switch("features.view_image", "false", "a tool that reads files"),
    Switch("features.image_generation", "false", "a hosted tool the client did not offer"),
    Switch("features.remote_plugin", "false", "remote plugins"),
    Switch("features.tool_suggest", "false", "a tool that suggests plugins"),
    Switch("features.skill_search", "false", "a tool that searches skills"),
    Switch("features.hooks", "false", "commands of the user around each turn"),
)


def switch_pairs(
    provider: ProviderConfig,
    *,
    catalog: str | None,
    hidden: Iterable[str] = (),
    unknown: Collection[str] = (),
    version: Version = NEWEST_TESTED,
) -> list[tuple[str, str]]:
    """Returns the switches of a process for plain-model turns, with a patched model `catalog` (its file), or for agent
    turns (None), whose shells do not get the provider's keys and `hidden`. Leaves out the keys `unknown`.
    """
    switches = COMMON_SWITCHES if catalog is None else (*COMMON_SWITCHES, *PLAIN_SWITCHES)
    pairs = [(switch.key, switch.value) for switch in switches if switch.key not in unknown]
    pairs += provider_pairs(provider)
    if catalog is None:
        return pairs + shell_pairs(provider, hidden, version)
    return [*pairs, ("model_catalog_json", toml_string(catalog))]


def provider_pairs(provider: ProviderConfig) -> list[tuple[str, str]]:
    """Returns the switches against retries by the user's own provider, which repeat the beginning of a text."""
    # Codex splits the key at every dot, also inside quotes, and then ends at start for want of a provider of
    # the first half's name. So an id with a dot keeps its own counts.
    if not provider.custom or {".", "="} & set(provider.id):
        return []
    return [
        (f"model_providers.{provider.id}.request_max_retries", "0"),
        (f"model_providers.{provider.id}.stream_max_retries", "0"),
    ]


def shell_pairs(provider: ProviderConfig, hidden: Iterable[str], version: Version) -> list[tuple[str, str]]:
    """Returns `exclude_pairs`, and the switch against unsafe shell snapshots."""
    pairs = exclude_pairs(provider, hidden)
    if version < SAFE_SNAPSHOTS_SINCE:
        pairs.append(("features.shell_snapshot", "false"))
    return pairs


def exclude_pairs(provider: ProviderConfig, hidden: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the switch that keeps the user's list, the provider's keys and `hidden` from the agent's shells. Empty
    without the last two: a switch replaces the user's list.
    """
    ours = (*provider.env_names, *hidden)
    names = dict.fromkeys((*provider.shell_exclude, *ours)) if ours else ()
    return [("shell_environment_policy.exclude", toml_array(names))] if names else []


def arguments_of(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the arguments `-c KEY=VALUE`. Of a repeated key Codex uses the last."""
    return tuple(part for key, value in pairs for part in ("-c", f"{key}={value}"))
