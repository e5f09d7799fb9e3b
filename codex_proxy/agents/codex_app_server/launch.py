"""The arguments with which `codex app-server` is started.

Input: the settings, and the model provider in the user's config.toml. Output: the argument vector, and the
parameters of `initialize`. No IO.

There are two kinds of process. A *plain-model* process runs in a Codex home that this server creates (the shadow
home), and only passes requests to the model, since the client is the agent. An *agent* process runs in the user's
own Codex home, with the user's configuration; its switches only turn off what is of no use in a server (additional
connections, endless retries, idle threads that are kept in memory).

All switches (`agents.codex.switches`) are arguments of the process. In the `config` of `thread/start` they would be
too late for the network connections, and release 0.163 ignores the model catalog there. A process ends at once if
an argument is invalid. Source: experiments with releases 0.133 to 0.169, and the tests with the real binary.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from codex_proxy.agents.codex.program import NEWEST_TESTED, Version
from codex_proxy.agents.codex.sandbox_config import toml_string
from codex_proxy.agents.codex.shadow_home import ProviderConfig
from codex_proxy.agents.codex.switches import (
    COMMON_SWITCHES,
    PLAIN_SWITCHES,
    arguments_of,
    provider_pairs,
    shell_pairs,
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
"""The methods of notifications that this server does not use. `initialize` asks Codex not to send them."""


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
    """Returns the argument vector of an app-server. `codex` is the path of the program. `plain`: the process serves
    plain-model turns; if False, agent turns.

    `catalog_path` is the path of the file with the result of `plain_catalog`. Raises `ValueError` if a plain
    process has none: with Codex's own catalog some models would get a single tool that runs JavaScript, and could
    call the client's tools only from a script. `provider` is the model provider in the user's config.toml; None for
    the default one. If the user has defined it, its retries are turned off, since after a retry the client would
    get the beginning of the text twice.

    In an agent process, the shells that the agent starts do not get the variables with the provider's API keys;
    `hidden` are the names of more variables that they do not get. `extra` are additional `-c` settings, as pairs of
    a key and a TOML value, which override the ones set here. `unknown` are the keys of settings that the binary
    does not know; they are left out, because the binary would exit with an error at some of them. `version` is the
    release of the binary, because some settings are only for earlier releases.
    """
    if plain and catalog_path is None:
        raise ValueError("a plain-model process needs the patched model catalog")
    switches = (*COMMON_SWITCHES, *PLAIN_SWITCHES) if plain else COMMON_SWITCHES
    pairs = [(switch.key, switch.value) for switch in switches if switch.key not in unknown]
    if catalog_path is not None:
        pairs.append(("model_catalog_json", toml_string(catalog_path)))
    if provider is not None:
        pairs += provider_pairs(provider)
    if not plain:
        pairs += shell_pairs(provider or ProviderConfig(), hidden, version)
    return (codex, "app-server", *arguments_of([*pairs, *extra]))


def initialize_params(client_name: str, version: str) -> dict[str, Any]:
    """Returns the parameters of `initialize`. Codex sends `client_name` to the model server as `originator`;
    `version` is this server's.
    """
    return {
        "clientInfo": {"name": client_name, "title": client_name, "version": version},
        "capabilities": {
            # dynamicTools, environments and experimentalRawEvents are refused without it
            "experimentalApi": True,
            "requestAttestation": False,
            "optOutNotificationMethods": list(OPT_OUT_NOTIFICATIONS),
        },
    }
