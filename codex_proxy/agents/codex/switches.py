"""The `-c` switches with which Codex processes are started, each with its reason. Pure.

There are two sets: `COMMON_SWITCHES` turn off what is of no use in a server (additional connections, endless
retries), and `PLAIN_SWITCHES` additionally turn off the agent's tools and instructions for plain-model turns.
Further switches depend on the user's model provider: its retries, and the variables that the agent's shells must
not have.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from codex_proxy.agents.codex.program import Version
from codex_proxy.agents.codex.sandbox_config import toml_string
from codex_proxy.agents.codex.shadow_home import ProviderConfig, shell_exclude

SAFE_SNAPSHOTS_SINCE: Final = Version(0, 158, 0)
"""The first release whose shell snapshots are safe. In earlier ones a command runs in a snapshot of a login shell,
which has variables that commands must not have, such as the provider's key (tested with 0.133 to 0.157.1).
Snapshots are switched off for those."""


class Switch(NamedTuple):
    """A switch `-c key=value`; `value` is TOML. `reason` is for readers only."""

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


def provider_pairs(provider: ProviderConfig) -> list[tuple[str, str]]:
    """Returns the switches that turn off the retries of a provider that the user has defined, as pairs of a key and
    a TOML value; none for another provider. After a retry the client would get the beginning of the text twice.
    """
    # Codex splits the key at every dot, also inside quotes, and then ends at start for want of a provider of
    # the first half's name. So an id with a dot keeps its own counts.
    if not provider.custom or {".", "="} & set(provider.id):
        return []
    return [
        (f"model_providers.{provider.id}.request_max_retries", "0"),
        (f"model_providers.{provider.id}.stream_max_retries", "0"),
    ]


def shell_pairs(provider: ProviderConfig, hidden: Iterable[str], version: Version) -> list[tuple[str, str]]:
    """Returns the switches, as pairs of a key and a TOML value, that keep the variables in `hidden` and those with
    the provider's keys from the agent's shells. They replace the user's own list of such variables, and contain it.
    For a `version` whose shell snapshots would contain these variables, the snapshots are turned off.
    """
    pairs = []
    names = shell_exclude(provider, hidden)
    if names:
        listed = ",".join(toml_string(name) for name in names)
        pairs.append(("shell_environment_policy.exclude", f"[{listed}]"))
    if version < SAFE_SNAPSHOTS_SINCE:
        pairs.append(("features.shell_snapshot", "false"))
    return pairs


def arguments_of(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the command-line arguments (`-c`, `key=value`) for these pairs of a key and a TOML value. If a key
    occurs twice, Codex uses the last value.
    """
    return tuple(part for key, value in pairs for part in ("-c", f"{key}={value}"))
