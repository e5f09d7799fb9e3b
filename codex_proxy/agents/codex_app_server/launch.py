"""The arguments with which `codex app-server` and its threads are started.

Comes in: what the operator and the provider want. Goes out: the argument vector, and the parameters of `initialize`
and `thread/start`. No IO.

There are two kinds of process. A *plain-model* process runs in a shadow home and only passes requests to the model:
the client is the agent. An *agent* process runs in the user's own home as the user has configured it; its switches
only turn off what no server wants (side connections, endless retries, idle threads that are kept in memory).

The reason stands beside each switch. All switches are arguments of the process: the `config` of a thread comes too
late for the network, and 0.163 ignores it for the model catalog. A process ends at once where an argument is invalid.
Source: experiments with releases 0.133 to 0.169, and the tests with the real binary.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from codex_proxy.agents.codex.program import NEWEST_TESTED, Version
from codex_proxy.agents.codex.sandbox_config import Sandbox, toml_string
from codex_proxy.agents.codex.shadow_home import ProviderConfig, shell_exclude

SAFE_SNAPSHOTS_SINCE: Final = Version(0, 158, 0)
"""Before this release a command runs in a snapshot of a login shell, which has the variables again that commands must
not have, the provider's key among them. Seen on 0.133 to 0.157.1; snapshots are turned off for those."""


class Switch(NamedTuple):
    """A switch `-c key=value`, whose value is TOML."""

    key: str
    value: str
    reason: str


COMMON_SWITCHES: Final = (
    Switch("analytics.enabled", "false", "no connection but to the model provider"),
    Switch("features.plugins", "false", "plugins fetch from github.com at start"),
    Switch("features.apps", "false", "apps ask chatgpt.com at start"),
    Switch(
        "features.unbounded_connection_retries", "false", "a dead model server must not hang a turn for ever"
    ),
    Switch("thread_unload_delay_secs", "0", "a thread we left is unloaded at once, not after 30 minutes"),
)

PLAIN_SWITCHES: Final = (
    Switch("web_search", '"disabled"', "a hosted tool the client did not offer"),
    Switch("include_permissions_instructions", "false", "a developer message about sandbox and approvals"),
    Switch("include_environment_context", "false", "a user message about folder and shell"),
    Switch("include_apps_instructions", "false", "a developer message about apps"),
    Switch("include_collaboration_mode_instructions", "false", "a developer message about the mode"),
    Switch("project_doc_max_bytes", "0", "AGENTS.md of the folder would reach the model"),
    Switch("skills.include_instructions", "false", "a list of the user's skills would reach the model"),
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
    Switch("features.remote_plugin", "false", "plugins by another door"),
    Switch("features.tool_suggest", "false", "a tool that suggests plugins"),
    Switch("features.skill_search", "false", "a tool that searches skills"),
    Switch("features.hooks", "false", "commands of the user around each turn"),
)

OPT_OUT_NOTIFICATIONS: Final = (
    "thread/started",  # the answer to thread/start says the same
    "thread/status/changed",  # twice per turn; turn/completed says the same
    "thread/readState/changed",
    "thread/settings/updated",
    "thread/name/updated",
    "thread/goal/updated",
    "thread/goal/cleared",
    "thread/queue/changed",
    "thread/prediction/updated",
    "turn/started",  # the answer to turn/start says the same
    "turn/diff/updated",  # the whole diff again after every change
    "item/plan/delta",  # plan mode only, which we never enter
    "item/commandExecution/terminalInteraction",
    "item/fileChange/outputDelta",
    "item/fileChange/patchUpdated",
    "item/mcpToolCall/progress",
    "hook/started",
    "hook/completed",
    "serverRequest/resolved",  # the answer was ours
    "mcpServer/startupStatus/updated",
    "remoteControl/status/changed",
    "skills/changed",
    "app/list/updated",
)
"""Notifications that are not used. Codex does not write them then, which saves reading them."""


def app_server_argv(
    codex: str,
    *,
    plain: bool,
    catalog_path: str | None = None,
    provider: ProviderConfig | None = None,
    hidden: Iterable[str] = (),
    extra: Iterable[tuple[str, str]] = (),
    unknown: Collection[str] = (),
    version: Version = NEWEST_TESTED,
) -> tuple[str, ...]:
    """Returns the argument vector of an app-server.

    `catalog_path` is the file with `plain_catalog`. A plain process needs it (`ValueError` without), because the
    bundled models would put the client's tools behind JavaScript. `provider` gives a custom provider no retries,
    since a retry would stream text again that the client already has, and keeps its keys from the agent's shells;
    `hidden` are further variables that the shells do not get. `extra` are further `(key, TOML value)` pairs, which
    come last and win. `unknown` are keys of switches that the binary does not know, some of which would end it at
    once. `version` is its release, because some switches are only for the faults of earlier ones.
    """
    if plain and catalog_path is None:
        raise ValueError("a plain-model process needs the patched model catalog")
    switches = (*COMMON_SWITCHES, *PLAIN_SWITCHES) if plain else COMMON_SWITCHES
    pairs = [(switch.key, switch.value) for switch in switches if switch.key not in unknown]
    if catalog_path is not None:
        pairs.append(("model_catalog_json", toml_string(catalog_path)))
    if provider is not None:
        pairs += _provider_pairs(provider)
    if not plain:
        pairs += _shell_pairs(provider or ProviderConfig(), hidden)
        if version < SAFE_SNAPSHOTS_SINCE:
            pairs.append(("features.shell_snapshot", "false"))
    argv = [codex, "app-server"]
    for key, value in (*pairs, *extra):
        argv += ["-c", f"{key}={value}"]
    return tuple(argv)


def _provider_pairs(provider: ProviderConfig) -> list[tuple[str, str]]:
    # Codex splits the key at every dot, also inside quotes, and then ends at start for want of a provider of
    # the first half's name. So an id with a dot keeps its own counts.
    if not provider.custom or {".", "="} & set(provider.id):
        return []
    return [
        (f"model_providers.{provider.id}.request_max_retries", "0"),
        (f"model_providers.{provider.id}.stream_max_retries", "0"),
    ]


def _shell_pairs(provider: ProviderConfig, hidden: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the switch that keeps variables from the agent's shells. It replaces the user's list, so it contains
    that list."""
    names = shell_exclude(provider, hidden)
    if not names:
        return []
    listed = ",".join(toml_string(name) for name in names)
    return [("shell_environment_policy.exclude", f"[{listed}]")]


def initialize_params(client_name: str, version: str) -> dict[str, Any]:
    """Returns the parameters of `initialize`. The model server sees `client_name` as `originator`."""
    return {
        "clientInfo": {"name": client_name, "title": client_name, "version": version},
        "capabilities": {
            # dynamicTools, environments and experimentalRawEvents are refused without it
            "experimentalApi": True,
            "requestAttestation": False,
            "optOutNotificationMethods": list(OPT_OUT_NOTIFICATIONS),
        },
    }


def plain_thread_params(
    cwd: str, *, model: str | None, tools: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the parameters of `thread/start` for a plain-model turn: no base prompt, no environment, only the
    client's `tools`.

    `cwd` should be an empty folder, because Codex looks there for a project's configuration.
    """
    return _thread_params(cwd, model, "read-only") | {
        "environments": [],
        "baseInstructions": "",
        "dynamicTools": list(tools),
    }


def agent_thread_params(
    cwd: str, *, model: str | None, sandbox: Sandbox = "read-only", permissions: str | None = None
) -> dict[str, Any]:
    """Returns the parameters of `thread/start` for an agent turn: Codex with its own prompt and tools, working in
    `cwd`.

    `permissions` names a permission profile of the process, which replaces the sandbox.
    """
    params = _thread_params(cwd, model, sandbox)
    if permissions is not None:
        del params["sandbox"]  # Codex refuses both
        params["permissions"] = permissions
    return params


def _thread_params(cwd: str, model: str | None, sandbox: Sandbox) -> dict[str, Any]:
    params: dict[str, Any] = {
        "cwd": cwd,
        "ephemeral": True,  # nothing of the client's conversation is written to the user's home
        "approvalPolicy": "never",  # nobody is there to be asked
        "sandbox": sandbox,
        # usage per model call, and the only sure sign that no further tool call of a step will come
        "experimentalRawEvents": True,
    }
    if model is not None:
        params["model"] = model
    return params
