"""The `-c` switches of Codex processes, each with its reason, and those of the sandbox of agent turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from codex_proxy.agents.codex.program import NEWEST_TESTED, Version
from codex_proxy.agents.codex.shadow_home import ProviderConfig, WorkspaceWrite
from codex_proxy.core.turn import Sandbox


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
        "thread_unload_delay_secs",
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
    Switch("agents.enabled", "false", "tools for sub-agents"),
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
