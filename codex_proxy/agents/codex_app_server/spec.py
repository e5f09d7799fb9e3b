"""The agent `codex-app-server`: Codex, in a few long-lived processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from codex_proxy.agents.codex.agent_spec import codex_agent_spec
from codex_proxy.agents.codex.spec import PLAIN_CODEX_SETTINGS, codex_confinement, codex_paths
from codex_proxy.agents.codex_app_server.contract import CAPABILITIES
from codex_proxy.agents.spec import AgentContext

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.process_pool.plan import PoolLimits
    from codex_proxy.settings.fields import Settings


MAX_AGE: Final = 6 * 3600.0
MAX_TURNS: Final = 10_000
"""The turns after which a process is replaced; one that leaks memory is replaced earlier."""


def pool_limits(settings: Settings) -> PoolLimits:
    from codex_proxy.agents.process_pool.plan import PoolLimits

    return PoolLimits(
        max_processes=settings.app_server_processes,
        max_age=MAX_AGE,
        max_turns_served=MAX_TURNS,
        # Who has a slot is not refused here.
        max_waiting=max(PoolLimits().max_waiting, settings.max_running_turns),
    )


async def make_app_server(context: AgentContext) -> Agent:
    """Makes the agent. Raises `NoAgentError` or `Fault`."""
    import msgspec

    from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
    from codex_proxy.agents.codex_app_server.binary_check import renew_check
    from codex_proxy.agents.codex_app_server.setup import can_confine, prepare_app_server

    settings, environ = context.settings, context.environ
    paths = codex_paths(context)
    setup = await prepare_app_server(paths, environ, settings.child_env_names, lite_form(settings))
    limits = context.child_limits
    processes = AppServerProcesses(
        name="codex-app-server",
        version=str(setup.version),
        plain=msgspec.structs.replace(setup.plain, limits=limits),
        confinement=await codex_confinement(context, setup.provider),
        agent=msgspec.structs.replace(setup.agent, limits=limits),
        empty_folder=setup.empty_folder,
        models=setup.models,
        any_model=setup.provider.custom,
        sign_in_file=str(settings.codex_home / "auth.json"),
        start_mark=setup.start_mark,
        profiles=paths.profiles,
        can_confine=lambda: can_confine(paths.program, paths.profiles, environ, str(settings.state_dir)),
        notices=setup.notices,
        contract=setup.check.contract,
        renew_check=lambda: renew_check(
            paths.program, paths.state, context.child_environment(), context.clock.epoch()
        ),
    )
    warm_plain = settings.builtin_tools == "never"
    return AppServerAgent(processes, pool_limits(settings), warm_plain=warm_plain)


def lite_form(settings: Settings) -> bool | None:
    """Returns `use_responses_lite` for plain-model turns: False for parallel calls, which it excludes; None keeps each
    model's own.
    """
    return False if settings.enable_parallel_tool_calls else None


SPEC = codex_agent_spec(
    "codex-app-server",
    summary="Codex, by `codex app-server` (JSON-RPC)",
    make=make_app_server,
    capabilities=CAPABILITIES,
    settings=PLAIN_CODEX_SETTINGS,
    server_settings=frozenset({"enable_parallel_tool_calls"}),
)
