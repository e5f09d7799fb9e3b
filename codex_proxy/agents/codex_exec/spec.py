"""The agent `codex-exec`: Codex, with a process for each turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from codex_proxy.agents.codex.agent_spec import codex_agent_spec
from codex_proxy.agents.codex.spec import (
    NO_EXEC,
    PLAIN_CODEX_SETTINGS,
    codex_confinement,
    codex_paths,
    lacks_for_exec,
)
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.faults import misconfigured

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.codex.plain_home import CodexPaths
    from codex_proxy.agents.codex.program import Version
    from codex_proxy.agents.codex.shadow_home import ProviderConfig
    from codex_proxy.agents.codex_exec.setup import ExecSetup
    from codex_proxy.agents.dialect import Capability
    from codex_proxy.core.faults import Failure
    from codex_proxy.settings.fields import Settings

CAPABILITIES: Final[frozenset[Capability]] = frozenset(
    {
        *("images", "structured_output", "plain_model", "web_search", "verbosity", "service_tier"),
        *("sandbox", "exact_usage", "stop_reasons", "model_choice"),
    }
)

SIGN_IN_VARIABLES: Final = ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN")


async def make_exec(context: AgentContext, warning: str = "") -> Agent:
    """Makes the agent. `warning` is for the operator. Raises `NoAgentError` or `Fault`."""
    from codex_proxy.agents.codex.program import run_short
    from codex_proxy.agents.codex_app_server.setup import can_confine
    from codex_proxy.agents.codex_exec.agent import CodexExecAgent, TurnFiles
    from codex_proxy.agents.codex_exec.dialect import CodexExec
    from codex_proxy.agents.codex_exec.launch import exec_argv
    from codex_proxy.agents.processes.child_per_turn import ChildSpec
    from codex_proxy.core.turn import Turn
    from codex_proxy.process.child import Command

    paths = codex_paths(context)
    program, settings, profiles = paths.program, context.settings, paths.profiles
    version, setup = await _prepare(context, paths)
    confinement = await codex_confinement(context, setup.provider)
    if setup.plain is not None:
        argv = (program, "debug", "models", "--bundled")
        await confinement.try_out(run_short, Command(argv, setup.plain.env, setup.plain.folder or "/"))
        warning = f"{warning} {confinement.warning}".strip()
    limits = context.child_limits

    def command(turn: Turn, files: TurnFiles) -> Command:
        plain = setup.plain if turn.mode == "model" else None
        launch = plain or setup.agent
        pairs = [*launch.pairs, *(profiles.pairs() if turn.permissions is not None else ())]
        argv = exec_argv(program, turn, pairs, images=files.images, schema=files.schema)
        folder = launch.folder or turn.workdir or str(settings.workdir)
        unconfined = Command(argv, launch.env, folder, limits=limits)
        return unconfined if plain is None else confinement.wrap(unconfined)

    spec = ChildSpec(
        name="codex-exec",
        version=str(version),
        command=lambda turn: command(turn, TurnFiles()),
        dialect=CodexExec,
        capabilities=CAPABILITIES if setup.plain is not None else CAPABILITIES - {"plain_model"},
        models=setup.models,
        any_model=True,
        ahead=True,
        warning=warning,
    )
    return CodexExecAgent(
        spec,
        command,
        paths.state,
        lambda: missing_sign_in(settings, setup.provider, setup.agent.env),
        profiles,
        lambda: can_confine(program, profiles, context.environ, paths.state),
    )


async def _prepare(context: AgentContext, paths: CodexPaths) -> tuple[Version, ExecSetup]:
    """Returns the release, and how its processes start. Raises `Fault`."""
    from codex_proxy.agents.codex.home_locks import private_home, remove_left_homes
    from codex_proxy.agents.codex.program import find_version
    from codex_proxy.agents.codex.switches import COMMON_SWITCHES, PLAIN_SWITCHES
    from codex_proxy.agents.codex_app_server.binary_check import unknown_switches
    from codex_proxy.agents.codex_exec.setup import prepare_exec

    program, base = paths.program, context.child_environment()
    version, missing = await find_version(program, base), await lacks_for_exec(program, base)
    if missing:
        raise misconfigured(NO_EXEC.format(version=version, missing=missing))
    try:
        remove_left_homes(paths.state)
        with private_home(paths.state) as home:
            command = (program, "exec", "--skip-git-repo-check")
            switches = [*COMMON_SWITCHES, *PLAIN_SWITCHES]
            unknown = await unknown_switches(command, switches, {**base, "CODEX_HOME": home})
        child_env = context.settings.child_env_names
        return version, await prepare_exec(paths, version, context.environ, child_env, unknown)
    except OSError as error:
        raise misconfigured(f"the state folder {paths.state} cannot be used: {error}") from error


def missing_sign_in(settings: Settings, provider: ProviderConfig, env: Mapping[str, str]) -> Failure | None:
    """Returns a failure if `auth.json` is missing (Codex would try for 13 s), unless another provider, a keyring or a
    variable may have credentials.
    """
    from codex_proxy.agents.codex.program import NOT_SIGNED_IN
    from codex_proxy.agents.codex.shadow_home import DEFAULT_PROVIDER

    if (
        provider.id != DEFAULT_PROVIDER
        or provider.keyring
        or any(env.get(name) for name in SIGN_IN_VARIABLES)
    ):
        return None
    return None if (settings.codex_home / "auth.json").exists() else NOT_SIGNED_IN


SPEC = codex_agent_spec(
    "codex-exec",
    summary="Codex, by `codex exec --json`, if the other two are not available",
    make=make_exec,
    capabilities=CAPABILITIES,
    settings=PLAIN_CODEX_SETTINGS,
)
