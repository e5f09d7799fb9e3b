"""Makes the agent `codex-exec`: reads config.toml, asks the binary for its models, and creates home and catalog of
plain-model turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex.catalog import CatalogError
from codex_proxy.agents.codex.confined_reads import ConfinedReads
from codex_proxy.agents.codex.plain_home import (
    CodexPaths,
    codex_environment,
    in_own_home,
    make_plain_home,
    removed_home,
)
from codex_proxy.agents.codex.program import NOT_SIGNED_IN, Version, find_version
from codex_proxy.agents.codex.sandbox_config import workspace_write_pairs
from codex_proxy.agents.codex.setup import (
    NO_EXEC,
    codex_confinement,
    codex_paths,
    home_notices,
    lacks_for_exec,
)
from codex_proxy.agents.codex.shadow_home import DEFAULT_PROVIDER, ProviderConfig
from codex_proxy.agents.codex.spec import EXEC_CAPABILITIES
from codex_proxy.agents.codex.switches import COMMON_SWITCHES, PLAIN_SWITCHES, switch_pairs
from codex_proxy.agents.codex_app_server.binary_check import unknown_switches
from codex_proxy.agents.codex_exec.agent import CodexExecAgent, TurnFiles
from codex_proxy.agents.codex_exec.dialect import CodexExec
from codex_proxy.agents.codex_exec.launch import exec_argv
from codex_proxy.agents.processes.child_per_turn import ChildSpec
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, misconfigured
from codex_proxy.core.turn import Turn
from codex_proxy.files.temporary import remove_left_folders, temporary_folder
from codex_proxy.process.child import Command, run_short
from codex_proxy.process.launch import credential_names
from codex_proxy.settings.fields import Settings

log = structlog.get_logger(__name__)

NO_BASE_PROMPT = ("instructions", '""')
"""The pair for `-c` that removes Codex's own prompt."""


SIGN_IN_VARIABLES: Final = ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN")


class ExecLaunch(msgspec.Struct, frozen=True):
    """How one mode's processes start: `pairs` for `-c`, `env`, and `folder` (None: the turn's)."""

    pairs: tuple[tuple[str, str], ...]
    env: dict[str, str]
    folder: str | None = None


class ExecSetup(msgspec.Struct, frozen=True):
    version: Version
    agent: ExecLaunch
    plain: ExecLaunch | None
    """How processes for plain-model turns start; None if the catalog cannot be patched."""
    models: tuple[AgentModel, ...] = ()


async def _prepare(context: AgentContext, paths: CodexPaths) -> ExecSetup:
    """Returns how processes start. Raises `Fault` or `OSError`."""
    program, base, child_env = paths.program, context.child_environment(), context.settings.child_env_names
    version, missing = await find_version(program, base), await lacks_for_exec(program, base)
    if missing:
        raise misconfigured(NO_EXEC.format(version=version, missing=missing))
    remove_left_folders(paths.state)
    with temporary_folder("home", paths.state) as folder:
        command = (program, "exec", "--skip-git-repo-check")
        switches = [*COMMON_SWITCHES, *PLAIN_SWITCHES]
        unknown = await unknown_switches(command, switches, {**base, "CODEX_HOME": folder.path})
    provider = paths.user.provider
    env = codex_environment(context.environ, child_env, provider)
    hidden = credential_names(env, extra=child_env)
    pairs = switch_pairs(provider, catalog=None, hidden=hidden, unknown=unknown, version=version)
    agent = ExecLaunch(
        (*pairs, *workspace_write_pairs(paths.profiles.policy)), in_own_home(env, paths.codex_home)
    )
    try:
        home = await make_plain_home(paths, version, base, lite=None)
    except Fault as fault:
        if not isinstance(fault.__cause__, CatalogError):
            raise
        log.warning("no_plain_model", reason=str(fault))
        return ExecSetup(version, agent, None)
    pairs = [*switch_pairs(provider, catalog=home.catalog, unknown=unknown), NO_BASE_PROMPT]
    plain = ExecLaunch(tuple(pairs), {**env, "CODEX_HOME": home.folder}, home.empty_folder)
    return ExecSetup(version, agent, plain, home.models)


async def make_exec(context: AgentContext, warning: str = "") -> Agent:
    """Makes the agent. `warning` is for the operator. Raises `NoAgentError`, `Fault` or `OSError`."""
    paths = codex_paths(context)
    program, settings, provider = paths.program, context.settings, paths.user.provider
    reads = ConfinedReads(program, paths.profiles, context.environ)
    setup = await _prepare(context, paths)
    confinement = await codex_confinement(context, provider)
    if setup.plain is not None:
        argv = (program, "debug", "models", "--bundled")
        await confinement.try_out(run_short, Command(argv, setup.plain.env, setup.plain.folder or "/"))
        warning = f"{warning} {confinement.warning}".strip()
    warning = " ".join((warning, *await home_notices(program, context))).strip()
    limits = context.child_limits

    def command(turn: Turn, files: TurnFiles) -> Command:
        plain = setup.plain if turn.mode == "model" else None
        launch = plain or setup.agent
        pairs = [*launch.pairs, *(paths.profiles.pairs() if turn.permissions is not None else ())]
        argv = exec_argv(program, turn, pairs, images=files.images, schema=files.schema)
        folder = launch.folder or turn.workdir or str(settings.workdir)
        unconfined = Command(argv, launch.env, folder, limits=limits)
        return unconfined if plain is None else confinement.wrap(unconfined)

    spec = ChildSpec(
        name="codex-exec",
        version=str(setup.version),
        command=lambda turn: command(turn, TurnFiles()),
        dialect=CodexExec,
        capabilities=EXEC_CAPABILITIES if setup.plain is not None else EXEC_CAPABILITIES - {"plain_model"},
        models=setup.models,
        any_model=True,
        ahead=True,
        warning=warning,
        trouble=lambda: removed_home(setup.agent.env) or missing_sign_in(settings, provider, setup.agent.env),
    )
    return CodexExecAgent(spec, command, paths.state, reads)


def missing_sign_in(settings: Settings, provider: ProviderConfig, env: Mapping[str, str]) -> Failure | None:
    """Returns a failure if `auth.json` is missing (Codex would try for 13 s), unless another provider, a keyring or a
    variable may have credentials.
    """
    if (
        provider.id != DEFAULT_PROVIDER
        or provider.keyring
        or any(env.get(name) for name in SIGN_IN_VARIABLES)
    ):
        return None
    return None if (settings.codex_home / "auth.json").exists() else NOT_SIGNED_IN
