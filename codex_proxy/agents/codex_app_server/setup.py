"""Prepares the start of app-server processes: asks the binary, reads config.toml, and creates home and catalog of
plain-model turns. A *plain-model* process runs in its own home (the shadow home) and only calls the model; an *agent*
process runs in the user's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex.home_locks import private_home, remove_left_homes
from codex_proxy.agents.codex.plain_home import (
    CodexPaths,
    codex_environment,
    in_own_home,
    make_plain_home,
    user_config,
)
from codex_proxy.agents.codex.program import NEWEST_TESTED, Version, find_version, output_of
from codex_proxy.agents.codex.sandbox_config import Profiles, workspace_write_pairs
from codex_proxy.agents.codex.setup import codex_confinement, codex_paths
from codex_proxy.agents.codex.shadow_home import ProviderConfig
from codex_proxy.agents.codex.switches import arguments_of, switch_pairs
from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck, check_binary, renew_check
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault, misconfigured
from codex_proxy.files.private import make_folder
from codex_proxy.process.child import Command
from codex_proxy.process.launch import child_environment, credential_names
from codex_proxy.settings.fields import Settings

log = structlog.get_logger(__name__)


MAX_AGE: Final = 6 * 3600.0
MAX_TURNS: Final = 10_000
"""The turns after which a process is replaced; one that leaks memory is replaced earlier."""


class CodexSetup(msgspec.Struct, frozen=True):
    version: Version
    provider: ProviderConfig
    models: tuple[AgentModel, ...]
    plain: Command
    agent: Command
    empty_folder: str
    start_mark: str = ""
    """A file that exists once this release has started; until then one process starts at a time."""
    check: BinaryCheck = BinaryCheck()
    notices: tuple[str, ...] = ()


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


async def prepare_app_server(
    paths: CodexPaths, environment: Mapping[str, str], child_env: tuple[str, ...], lite: bool | None
) -> CodexSetup:
    """Prepares the start. Children get harmless variables of `environment`, and `child_env`. `lite`: see
    `plain_catalog`. Raises `Fault`.
    """
    base = child_environment(environment, extra=child_env)
    version = await find_version(paths.program, base)
    try:
        remove_left_homes(paths.state)
        check = await check_binary(paths.program, paths.state, base)
        if check.contract.refusal is not None:
            raise misconfigured(f"Codex {version} {check.contract.refusal}")
        shadow = user_config(paths.codex_home)
        home = await make_plain_home(paths, version, shadow, base, lite=lite)
        sqlite = Path(paths.state) / "codex"
        make_folder(sqlite)
        env = codex_environment(environment, child_env, shadow.provider) | {"CODEX_SQLITE_HOME": str(sqlite)}
        plain_argv = app_server_argv(
            paths.program, shadow.provider, catalog=home.catalog, unknown=check.unknown_switches
        )
        agent_argv = app_server_argv(
            paths.program,
            shadow.provider,
            hidden=credential_names(env, extra=child_env),
            extra=[*workspace_write_pairs(paths.profiles.policy), *paths.profiles.pairs()],
            unknown=check.unknown_switches,
            version=version,
        )
        return CodexSetup(
            version=version,
            provider=shadow.provider,
            models=home.models,
            plain=Command(plain_argv, env | {"CODEX_HOME": home.folder}, home.empty_folder),
            agent=Command(agent_argv, in_own_home(env, paths.codex_home), paths.workdir),
            empty_folder=home.empty_folder,
            start_mark=str(sqlite / f"started-{version}"),
            check=check,
            notices=shadow.notices,
        )
    except OSError as error:
        raise misconfigured(f"the state folder {paths.state} cannot be used: {error}") from error


async def can_confine(program: str, profiles: Profiles, environment: Mapping[str, str], state: str) -> bool:
    """Whether Codex can limit reading here (bubblewrap and user namespaces, or macOS), by running `true`.
    Logs why not.
    """
    name = str(profiles.of("read-only"))
    switches = arguments_of(profiles.pairs())
    try:
        with private_home(state) as home:
            command = (program, "sandbox", *switches, "-P", name, "-C", "/", "--", "true")
            await output_of(command, child_environment(environment) | {"CODEX_HOME": home})
    except (Fault, OSError) as fault:
        log.warning("agent_reads_not_confined", reason=str(fault))
        return False
    return True


def pool_limits(settings: Settings) -> PoolLimits:
    return PoolLimits(
        max_processes=settings.app_server_processes,
        max_age=MAX_AGE,
        max_turns_served=MAX_TURNS,
        # Who has a slot is not refused here.
        max_waiting=max(PoolLimits().max_waiting, settings.max_running_turns),
    )


async def make_app_server(context: AgentContext) -> Agent:
    """Makes the agent. Raises `NoAgentError` or `Fault`."""
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
