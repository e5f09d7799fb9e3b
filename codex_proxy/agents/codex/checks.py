"""What is known of the installed Codex: the checks of `doctor` (program, release, protocol, sign-in, sandbox), which
call no model, and, without a start of its app-server, what `codex-proxy agents` shows.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from codex_proxy.agents.codex.codex_setup import (
    EXEC_IS_OLD,
    NO_CODEX,
    CodexProtocol,
    codex_confinement,
    exec_advice,
    protocol_of,
)
from codex_proxy.agents.codex.codex_specs import CodexAgentName
from codex_proxy.agents.codex.command_sandbox import HOME_ADVICE, confine_fault, home_fault
from codex_proxy.agents.codex.plain_home import user_config
from codex_proxy.agents.codex.process_config import ProviderConfig
from codex_proxy.agents.codex.program import (
    NEWEST_TESTED,
    NEWEST_WITH_PROTO,
    TESTED_RELEASES,
    Version,
    find_codex,
    find_version,
    refusal_of_old,
)
from codex_proxy.agents.codex_app_server.agent import START_SECONDS, AppServerProcess
from codex_proxy.agents.codex_app_server.app_server_setup import app_server_argv
from codex_proxy.agents.codex_app_server.binary_check import ask_binary
from codex_proxy.agents.confinement.confinement_setup import confinement_check
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Check, CheckBuilder, Installation, failed_check
from codex_proxy.core.faults import Fault
from codex_proxy.files.private import temporary_folder
from codex_proxy.process.child import Command, run_short
from codex_proxy.process.launch import child_environment
from codex_proxy.settings.fields import Settings

SANDBOX_ADVICE = (
    "Install bubblewrap (Debian and Ubuntu: `apt install bubblewrap`) or allow user namespaces; until then the agent's "
    "commands fail unless --sandbox danger-full-access lets them run unconfined."
)


async def codex_checks(
    agent: Literal["auto", "codex-exec"] | CodexAgentName, context: AgentContext
) -> list[Check]:
    """Returns the checks, without those that depend on a failed one."""
    settings, environ = context.settings, context.environ
    search_path = environ.get("PATH", os.defpath)
    program = find_codex(settings.codex_bin, search_path)
    if program is None:
        return [failed_check("agent", NO_CODEX.format(context.where_set("codex_bin")))]
    checked = program_check(program, settings.codex_bin or shutil.which("codex", path=search_path))
    try:
        version = await find_version(program, child_environment(environ))
    except Fault as fault:
        advice = f"Give the right path with {context.where_set('codex_bin')}, or reinstall Codex."
        return [checked, CheckBuilder("version").failed(str(fault), advice)]
    found = version_check(version)
    environment = context.child_environment()
    with temporary_folder("doctor") as (folder, _):
        protocol = await protocol_of(
            program,
            version,
            "codex-app-server" if agent == "codex-exec" else agent,
            lambda: ask_binary(program, folder, environment),
            environment,
        )
    checks = [checked, found, protocol_check(protocol)]
    if agent == "codex-exec":
        checks.append(CheckBuilder("old name").warning(EXEC_IS_OLD, exec_advice(context)))
    if protocol.fault:
        return checks
    checks += await sign_in_and_sandbox_checks(program, protocol.agent, context)
    return checks


def version_check(version: Version) -> Check:
    """Returns a check, always `ok`, with the release."""
    failed, newest = TESTED_RELEASES.get(version), str(NEWEST_TESTED)
    checking = CheckBuilder(
        "version", version=str(version), newest_tested=newest, tested=failed is not None, tests_failed=failed
    )
    tested = "not tested with codex-proxy" if failed is None else "tested with codex-proxy"
    message = f"Found Codex {version}, {tested}; the newest tested release is {newest}."
    if failed:
        message += f" {failed} of the compatibility tests fail with it; docs/agents.md lists them."
    return checking.ok(message)


def protocol_check(protocol: CodexProtocol) -> Check:
    """Returns the check whether this server can use the protocol of the installed Codex: `failed` if it cannot,
    `warning` if features are missing.
    """
    if protocol.fault:
        return failed_check("protocol", protocol.fault)
    checking = CheckBuilder("protocol", agent=protocol.agent)
    message = f"This release is served through {protocol.agent}."
    check = protocol.check
    if check is None:
        return checking.ok(message)
    missing = check.contract.missing_features
    checking.facts |= {"off": ", ".join(missing), "unknown_switches": ", ".join(check.unknown_switches)}
    if not missing:
        return checking.ok(message)
    features = [f"{feature} (it has no {', no '.join(names)})" for feature, names in missing.items()]
    return checking.warning(
        f"{message} Unavailable features: {', '.join(features)}.",
        "docs/agents.md explains each feature; another release of Codex may support it.",
    )


def program_check(program: str, named: str | None) -> Check:
    """Returns a check: `warning` for npm's slower wrapper. `named` is the path in the settings or on PATH."""
    path = os.path.realpath(program)
    wrapper = _is_script(path)
    checking = CheckBuilder("agent", path=program, kind="wrapper" if wrapper else "native")
    if not wrapper:
        behind = named is not None and _is_script(os.path.realpath(os.path.expanduser(named)))
        more = f", behind the wrapper {named}" if behind else ""
        return checking.ok(f"{program} (native{more}).")
    return checking.warning(
        f"{program} is a wrapper script, and the native binary that it starts was not found.",
        "Give the path of the native binary with --codex-bin: with a wrapper, every process starts more slowly and "
        "needs more memory.",
    )


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:  # what cannot be read is told by the start that fails
        return False


async def sign_in_and_sandbox_checks(
    program: str, agent: CodexAgentName, context: AgentContext
) -> list[Check]:
    """Returns the checks of the sign-in and the sandbox. For a release without app-server there is only that of the
    sign-in's file.
    """
    settings, environ = context.settings, context.environ
    if "codex_home" in settings.model_fields_set and not settings.codex_home.is_dir():
        return [
            CheckBuilder("sign-in").skipped("Codex's home does not exist.")
        ]  # which has a check of its own
    config = settings.codex_home / "config.toml"
    try:
        provider = user_config(settings.codex_home).provider
    except Fault as fault:
        return [CheckBuilder("sign-in").failed(str(fault), f"Fix {config}.")]
    if agent == "codex-proto":
        return [sign_in_file_check(program, provider, settings, environ)]
    with temporary_folder("doctor") as (folder, _):
        confined = await plain_turns_check(program, provider, context, folder)
        signed_in = await sign_in_check(program, provider, settings, environ, folder)
        return [signed_in, confined, await sandbox_check(program, settings, environ)]


async def plain_turns_check(
    program: str, provider: ProviderConfig, context: AgentContext, folder: str
) -> Check:
    settings = context.settings.model_copy(update={"state_dir": Path(folder)})
    env = context.child_environment() | {"CODEX_HOME": folder}
    try:
        confinement = await codex_confinement(msgspec.structs.replace(context, settings=settings), provider)
        await confinement.try_out(run_short, Command((program, "--version"), env, folder))
    except (NoAgentError, Fault) as error:
        return failed_check("plain-model turns", str(error))
    return confinement_check(confinement)


def sign_in_file_check(
    program: str, provider: ProviderConfig, settings: Settings, environ: Mapping[str, str]
) -> Check:
    """Looks for the sign-in's file, since Codex cannot be asked."""
    file = settings.codex_home / "auth.json"
    if provider.custom or file.is_file():
        return CheckBuilder("sign-in").ok(f"Codex has a sign-in in {settings.codex_home}.")
    message = f"There is no {file}, and this release of Codex cannot report its sign-in status."
    return CheckBuilder("sign-in").warning(message, f"Run `{login_command(program, settings, environ)}`.")


async def sign_in_check(
    program: str, provider: ProviderConfig, settings: Settings, environ: Mapping[str, str], folder: str
) -> Check:
    """Asks an app-server in the user's home who is signed in."""
    home = settings.codex_home
    checking = CheckBuilder("sign-in", provider=provider.id, codex_home=str(home))
    missing = [name for name in provider.env_names if not environ.get(name)]
    if provider.custom and missing:
        message = (
            f"The provider {provider.id} of {home / 'config.toml'} needs {', '.join(missing)}, "
            "which is not set here."
        )
        return checking.warning(
            message, f"Set {', '.join(missing)} in the environment that starts the server."
        )
    extra = settings.child_env_names
    env = child_environment(environ, extra=extra, env_keys=provider.env_names, credentials=True)
    env |= {"CODEX_SQLITE_HOME": folder, "CODEX_HOME": str(home) if home.is_dir() else folder}
    argv = app_server_argv(program, provider)
    process = AppServerProcess()
    try:
        await process.start(Command(argv, env, folder), timeout_seconds=START_SECONDS)
        checking.facts["user_agent"] = process.connection.user_agent
        signed_in = process.connection.signed_in
    except Fault as fault:
        return checking.failed(str(fault), "Run `codex` directly to see the reason.")
    finally:
        await process.end()
    if not signed_in:
        login = login_command(program, settings, environ)
        return checking.failed(f"Codex is not signed in ({home}).", f"Run `{login}`.")
    if provider.custom:
        return checking.ok(f"Every variable that the provider {provider.id} needs is set.")
    return checking.ok("Codex is signed in.")


def login_command(program: str, settings: Settings, environ: Mapping[str, str]) -> str:
    on_path = shutil.which("codex", path=environ.get("PATH", os.defpath)) is not None
    home = ""
    if "codex_home" in settings.model_fields_set and not environ.get("CODEX_HOME"):
        home = f"CODEX_HOME={shlex.quote(str(settings.codex_home))} "
    return f"{home}{'codex' if on_path and not settings.codex_bin else shlex.quote(program)} login"


async def sandbox_check(program: str, settings: Settings, environ: Mapping[str, str]) -> Check:
    """Returns a check: a warning if the agent's commands cannot be confined, or are not."""
    bubblewrap = shutil.which("bwrap", path=environ.get("PATH", os.defpath))
    checking = CheckBuilder("sandbox", sandbox=settings.sandbox, bubblewrap=bubblewrap)
    if settings.sandbox == "danger-full-access":
        return checking.warning(
            "The agent's commands run unconfined (danger-full-access).",
            "Omit --sandbox, unless this machine is disposable.",
        )
    if fault := await home_fault(program, settings.codex_home, environ):
        return checking.warning(fault, HOME_ADVICE)
    if why := await confine_fault(program, environ):
        return checking.warning(f"Codex cannot confine commands here: {why}", SANDBOX_ADVICE)
    by = "bubblewrap is installed" if bubblewrap else "without bubblewrap from the system"
    return checking.ok(f"Codex can confine commands ({by}).")


# --- without a start ------------------------------------------------------------------------------


async def installation(agent: CodexAgentName, context: AgentContext) -> Installation:
    """Returns the Codex that the agent would start, with its release, and whether its home has a sign-in."""
    settings = context.settings
    proto = agent == "codex-proto"
    package = f"@openai/codex@{NEWEST_WITH_PROTO}" if proto else "@openai/codex@latest"
    missing = Installation(installed=False, install=f"npm install -g {package}")
    program = find_codex(settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        return missing
    try:
        version = await find_version(program, context.child_environment())
    except Fault as fault:
        return msgspec.structs.replace(missing, program=program, trouble=str(fault))
    if version[:2] > NEWEST_WITH_PROTO[:2] if proto else refusal_of_old(version):
        return missing
    return Installation(
        installed=True,
        program=program,
        version=str(version),
        signed_in=_has_sign_in(context),
        sign_in=f"Run `{login_command(program, settings, context.environ)}`.",
    )


def _has_sign_in(context: AgentContext) -> bool | None:
    """Looks for the file of the sign-in and for the variables of the user's provider; None if neither tells."""
    home = context.settings.codex_home
    try:
        provider = user_config(home).provider
    except Fault:
        return None  # `doctor` says what is wrong with the configuration
    if provider.custom:
        return (
            None if provider.token_command else all(context.environ.get(name) for name in provider.env_names)
        )
    return True if (home / "auth.json").is_file() else None if provider.keyring else False
