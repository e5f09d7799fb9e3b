"""The arguments of `codex app-server`, and the parameters of `initialize`. A *plain-model* process runs in a home of
its own (the shadow home) and only calls the model; an *agent* process in the user's home. Switches are arguments,
because in `thread/start` they would be too late, or ignored. An invalid one ends the process. Source: experiments with
releases 0.133 to 0.169.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from codex_proxy.agents.codex.program import NEWEST_TESTED, Version
from codex_proxy.agents.codex.shadow_home import ProviderConfig
from codex_proxy.agents.codex.switches import arguments_of, switch_pairs

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
"""That Codex is asked not to send."""


def app_server_argv(
    codex: str,
    *,
    plain: bool,
    catalog_path: str | None = None,
    provider: ProviderConfig = ProviderConfig(),  # noqa: B008
    hidden: Iterable[str] = (),
    extra: Iterable[tuple[str, str]] = (),
    unknown: Collection[str] = (),
    version: Version = NEWEST_TESTED,
) -> tuple[str, ...]:
    """Returns the arguments of an app-server for plain-model turns (`plain`) or agent turns. A plain process needs a
    `catalog_path` (`plain_catalog`), or raises `ValueError`. `extra` are further `-c` settings. Others: see
    `switch_pairs`.
    """
    if plain and catalog_path is None:
        raise ValueError("a plain-model process needs the patched model catalog")
    catalog = catalog_path if plain else None
    pairs = switch_pairs(provider, catalog=catalog, hidden=hidden, unknown=unknown, version=version)
    return (codex, "app-server", *arguments_of([*pairs, *extra]))


def initialize_params(client_name: str, version: str) -> dict[str, Any]:
    """Returns the parameters of `initialize`; Codex sends `client_name` as `originator`."""
    return {
        "clientInfo": {"name": client_name, "title": client_name, "version": version},
        "capabilities": {
            # dynamicTools, environments and experimentalRawEvents are refused without it
            "experimentalApi": True,
            "requestAttestation": False,
            "optOutNotificationMethods": list(OPT_OUT_NOTIFICATIONS),
        },
    }
