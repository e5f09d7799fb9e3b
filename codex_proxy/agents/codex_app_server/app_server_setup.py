"""Makes the agents of `codex app-server`: asks the binary what it supports, reads config.toml, creates the home and the
catalog of plain-model turns; and `auto`, which chooses the agent for a protocol that the installed Codex supports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex.codex_setup import (
    codex_confinement,
    codex_paths,
    codex_program,
    exec_notice,
    home_notices,
    protocol_of,
)
from codex_proxy.agents.codex.command_sandbox import ConfinedReads
from codex_proxy.agents.codex.plain_home import codex_environment, in_own_home, make_plain_home
from codex_proxy.agents.codex.process_config import (
    SUBAGENTS_SWITCH,
    UNLOAD_SWITCH,
    ProviderConfig,
    arguments_of,
    switch_pairs,
    workspace_write_pairs,
)
from codex_proxy.agents.codex.program import (
    NEWEST_TESTED,
    Version,
    find_version,
    refusal_of_old,
    resume_command,
)
from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck, check_binary, renew_check
from codex_proxy.agents.codex_app_server.contract import ContractCheck, Feature, Missing
from codex_proxy.agents.process_pool.plan import ONE_TURN_AHEAD, PoolLimits
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.faults import misconfigured
from codex_proxy.files.private import make_folder, remove_left_folders
from codex_proxy.process.child import Command
from codex_proxy.process.launch import credential_names
from codex_proxy.settings.fields import Settings

log = structlog.get_logger(__name__)


MAX_AGE: Final = 6 * 3600.0
MAX_TURNS: Final = 10_000
"""The turns after which a process is replaced; one that leaks memory is replaced earlier."""


def app_server_argv(
    codex: str,
    provider: ProviderConfig,
    *,
    catalog: str | None = None,
    hidden: Iterable[str] = (),
    extra: Iterable[tuple[str, str]] = (),
    unknown: Collection[str] = (),
    version: Version = NEWEST_TESTED,
) -> tuple[str, ...]:
    """Returns the command line, for plain-model turns if there is a patched model `catalog`. `extra` are more pairs for
    `-c`; others: see `switch_pairs`.
    """
    # As arguments, because in `thread/start` switches would be too late, or ignored.
    pairs = switch_pairs(provider, catalog=catalog, hidden=hidden, unknown=unknown, version=version)
    return (codex, "app-server", *arguments_of([*pairs, *extra]))


async def prepare_app_server(context: AgentContext) -> AppServerProcesses:
    """Prepares the start. Raises `NoAgentError`, `Fault` or `OSError`."""
    settings, environ = context.settings, context.environ
    paths, base = codex_paths(context), context.child_environment()
    provider = paths.user.provider
    version = await find_version(paths.program, base)
    if too_old := refusal_of_old(version):
        raise misconfigured(too_old)
    remove_left_folders(paths.state)
    check = await check_binary(paths.program, paths.state, base)
    if check.contract.refusal is not None:
        raise misconfigured(f"Codex {version} {check.contract.refusal}")
    home = await make_plain_home(paths, version, base, lite=lite_form(settings))
    sqlite = Path(paths.state) / "codex"
    make_folder(sqlite)
    child_env, limits = settings.child_env_names, context.child_limits
    env = codex_environment(environ, child_env, provider) | {"CODEX_SQLITE_HOME": str(sqlite)}
    plain_argv = app_server_argv(
        paths.program, provider, catalog=home.catalog, unknown=check.unknown_switches
    )
    agent_argv = app_server_argv(
        paths.program,
        provider,
        hidden=credential_names(env, extra=child_env),
        extra=[*workspace_write_pairs(paths.profiles.policy), *paths.profiles.pairs()],
        unknown=check.unknown_switches,
        version=version,
    )
    return AppServerProcesses(
        name="codex-app-server",
        version=str(version),
        plain=Command(plain_argv, env | {"CODEX_HOME": home.folder}, home.empty_folder, limits=limits),
        confinement=await codex_confinement(context, provider),
        agent=Command(agent_argv, in_own_home(env, paths.codex_home), paths.workdir, limits=limits),
        empty_folder=home.empty_folder,
        models=home.models,
        any_model=provider.custom,
        sign_in_file=str(settings.codex_home / "auth.json"),
        start_mark=str(sqlite / f"started-{version}"),
        reads=ConfinedReads(paths.program, paths.profiles, environ),
        notices=(*paths.user.notices, *await home_notices(paths.program, context)),
        contract=_contract_of(check),
        renew_check=lambda: renew_check(
            paths.program, paths.state, context.child_environment(), context.clock.epoch()
        ),
        resume_command=resume_command(version),
    )


def _contract_of(check: BinaryCheck) -> ContractCheck:
    """Returns what the binary lacks. Without the one switch another program could not use a stored thread; without the
    other all turns have subagents, or none has.
    """
    needed: dict[str, Feature] = {UNLOAD_SWITCH: "stored_sessions", SUBAGENTS_SWITCH: "subagents"}
    unknown = [Missing(key, feature) for key, feature in needed.items() if key in check.unknown_switches]
    return ContractCheck((*check.contract.missing, *unknown))


def pool_limits(settings: Settings) -> PoolLimits:
    if not settings.kept_threads:
        return ONE_TURN_AHEAD
    return PoolLimits(
        max_processes=settings.app_server_processes,
        max_age=MAX_AGE,
        max_turns_served=MAX_TURNS,
        # Who has a slot is not refused here.
        max_waiting=max(PoolLimits().max_waiting, settings.max_running_turns),
    )


async def make_app_server(context: AgentContext, *notices: str) -> Agent:
    """Makes the agent `codex-app-server`; `notices` are further sentences for the operator. Raises `NoAgentError`,
    `Fault` or `OSError`.
    """
    settings = context.settings
    processes = await prepare_app_server(context)
    processes = msgspec.structs.replace(processes, notices=(*notices, *processes.notices))
    warm_plain = settings.builtin_tools == "never"
    return AppServerAgent(processes, pool_limits(settings), warm_plain=warm_plain)


async def make_in_place_of_exec(context: AgentContext) -> Agent:
    """Makes the agent for the name `codex-exec`: an app-server for each turn. Raises as `make_app_server`."""
    settings = context.settings.model_copy(update={"kept_threads": 0})
    return await make_app_server(msgspec.structs.replace(context, settings=settings), exec_notice(context))


def lite_form(settings: Settings) -> bool | None:
    """Returns `use_responses_lite` for plain-model turns: False for parallel calls, which it excludes; None keeps each
    model's own.
    """
    return False if settings.enable_parallel_tool_calls else None


async def make(context: AgentContext) -> Agent:
    """Makes the agent for the installed Codex. Raises `NoAgentError` or `Fault` if there is none that can be used."""
    program, environment = codex_program(context), context.child_environment()
    version = await find_version(program, environment)

    async def check() -> BinaryCheck:
        state = context.state_dir
        make_folder(state)
        return await check_binary(program, str(state), environment)

    protocol = await protocol_of(program, version, "auto", check, environment)
    if protocol.agent == "codex-proto":
        from codex_proxy.agents.codex_proto.proto_setup import make_proto

        return await make_proto(context)
    return await make_app_server(context)
