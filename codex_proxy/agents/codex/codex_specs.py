"""The specs of the agents that run Codex: `auto`, and one for each protocol."""

from __future__ import annotations

from typing import Any, Final, Literal

from codex_proxy.agents.codex_app_server.contract import CAPABILITIES
from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.core.options import Capability

CodexAgentName = Literal["codex-app-server", "codex-proto"]

CODEX_SETTINGS: Final = frozenset({"codex_bin", "codex_home", "codex_model", "child_env"})
PLAIN_SETTINGS: Final = CODEX_SETTINGS | {"agent_confinement", "agent_state_folders", "kept_threads"}
"""The settings of app-servers, which have plain-model turns and may serve many."""
PARALLEL_CALLS: Final = frozenset({"enable_parallel_tool_calls"})

PROTO_CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {"images", "effort", "sandbox", "exact_usage", "stop_reasons", "model_choice"}
)


def _spec(name: str, make: str, summary: str, **more: Any) -> AgentSpec:
    """`make` is the name for `later`, `more` are other fields."""
    more = {"settings": PLAIN_SETTINGS, "server_settings": PARALLEL_CALLS} | more
    check = later("codex_proxy.agents.codex.checks:codex_checks", name)
    make_later = later(f"codex_proxy.agents.{make}")
    return AgentSpec(
        name=name, summary=summary, make=make_later, check=check, confined=True, uses_codex=True, **more
    )


AUTO: Final = _spec(
    "auto",
    "codex_app_server.app_server_setup:make",
    "the Codex that is found, by a protocol that it speaks",
    variants={
        "codex-app-server": CAPABILITIES,
        "codex-proto": PROTO_CAPABILITIES,
    },
)
APP_SERVER: Final = _spec(
    "codex-app-server",
    "codex_app_server.app_server_setup:make_app_server",
    "Codex, by `codex app-server` (JSON-RPC)",
    capabilities=CAPABILITIES,
    installation=later("codex_proxy.agents.codex.checks:installation", "codex-app-server"),
)
PROTO: Final = _spec(
    "codex-proto",
    "codex_proto.proto_setup:make_proto",
    "older Codex, by `codex proto` (JSON lines)",
    capabilities=PROTO_CAPABILITIES,
    settings=CODEX_SETTINGS,
    installation=later("codex_proxy.agents.codex.checks:installation", "codex-proto"),
)
EXEC: Final = _spec(
    "codex-exec",
    "codex_app_server.app_server_setup:make_in_place_of_exec",
    "an old name of `codex-app-server` with `kept_threads = 0`: a process for each turn",
    capabilities=CAPABILITIES,
)
