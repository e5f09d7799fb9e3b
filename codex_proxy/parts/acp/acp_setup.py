"""Makes the agents that speak ACP, and checks them for `doctor`: program, release, session, confinement, and the
skills of the user for which programs of Codex search a client's text.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.configured.agents import settings_with
from codex_proxy.agents.confinement.confinement_setup import (
    confinement_check,
    plain_confinement,
    state_folders,
    wanted_confinement,
)
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Check, CheckBuilder, failed_check
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.shown_text import excerpt
from codex_proxy.files.private import make_folder, replace_file
from codex_proxy.parts import own_settings
from codex_proxy.parts.acp import AcpSettings, AcpTable
from codex_proxy.parts.acp.agent import AcpAgent, AcpLaunch
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.presets import AcpPreset, DeclaredFeatures, Program
from codex_proxy.parts.acp.process import AcpProcess
from codex_proxy.parts.acp.sessions import session_options_of
from codex_proxy.process.child import Command
from codex_proxy.settings.fields import Settings, split_list


async def check_program(preset: AcpPreset, launch: AcpLaunch, command_setting: str) -> list[Check]:
    """Starts the program, opens a session, and ends the program, without a turn. `command_setting` names the setting
    with the command.
    """
    process = AcpProcess(preset)
    try:
        scope = launch.scope_of(launch.workdir, launch.sandbox)
        await process.start(launch.command_in(scope))
    except Fault as fault:
        return [
            _start_failure_check(preset, fault.failure.message, command_setting),
            *_confinement_checks(launch),
        ]
    finally:
        await process.end()
    declared = process.connection.declared
    assert declared is not None
    session = _session_check(launch.program(declared), process)
    checks = [_release_check(preset, declared), session, *_confinement_checks(launch)]
    return checks if launch.plain is None else [*checks, await _plain_turns_check(launch, launch.plain)]


async def _plain_turns_check(launch: AcpLaunch, plain: PlainConfinement) -> Check:
    async def start(command: Command) -> bool:
        process = AcpProcess(launch.preset)
        try:
            await process.start(command)
            return process.signed_in
        finally:
            await process.end()

    try:
        await plain.try_out(start, msgspec.structs.replace(launch.command, cwd=launch.plain_folder), bool)
    except Fault as fault:
        return failed_check("plain-model turns", fault.failure.message)
    return confinement_check(plain)


def _start_failure_check(preset: AcpPreset, message: str, command_setting: str) -> Check:
    install = install_command(preset)
    advice = f"Install it: {install}" if install else f"Look at {command_setting}."
    return CheckBuilder("agent").failed(message, advice)


def _confinement_checks(launch: AcpLaunch) -> list[Check]:
    if not launch.warning:
        return []
    name = "none" if launch.confinement is None else launch.confinement.mechanism
    checking = CheckBuilder("confinement", confinement=name, sandbox=launch.sandbox)
    if launch.confinement is not None and launch.sandbox != "danger-full-access":
        return [checking.ok(launch.warning)]
    advice = "Install Codex or bubblewrap, or leave out --agent-unconfined and --sandbox danger-full-access."
    return [checking.warning(launch.warning, advice)]


def _release_check(preset: AcpPreset, declared: DeclaredFeatures) -> Check:
    title = declared.name or preset.title
    message = f"{title} {declared.version or 'of an unknown version'} speaks ACP."
    if preset.tested_release and declared.version != preset.tested_release:
        message = f"{message} The tested release is {preset.tested_release}."
    return CheckBuilder("agent", version=declared.version, tested=preset.tested_release or None).ok(message)


def _session_check(program: Program, process: AcpProcess) -> Check:
    probe = process.connection.probe
    assert probe is not None
    if probe.error is not None:
        failure = failure_of_error(probe.error, program.preset)
        if failure.kind is FaultKind.AGENT_NOT_AUTHENTICATED:
            advice = program.preset.sign_in or program.declared.sign_in or failure.message
        else:
            advice = "Start the agent directly in this folder and read its output."
        return CheckBuilder("session").failed(failure.message, advice)
    options = session_options_of(probe.result)
    mode = options.mode_of(program.modes("read-only"))
    checking = CheckBuilder("session", models=len(options.models()), mode=mode)
    if mode is None and not program.unconfined:
        message = (
            "A session can be opened, but the agent offers no mode that is read-only or asks for permission."
        )
        advice = "Start the server with --agent-unconfined to serve it anyway."
        return checking.failed(message, advice)
    return checking.ok(
        f"A session can be opened, with {len(options.models())} models, in the mode {mode or 'that it chose'}."
    )


def install_command(preset: AcpPreset) -> str:
    """Returns the command that installs the preset's program; empty without a preset."""
    return f"npm install -g {preset.package}" if preset.package else ""


def launch_of(preset: AcpPreset, context: AgentContext) -> AcpLaunch:
    """Returns how the preset's program is started, without confinement. Raises `NoAgentError` if the command is missing
    or cannot be parsed.
    """
    settings, table = context.settings, _table_of(context)
    argv = preset.argv
    if table.command:
        try:
            argv = tuple(shlex.split(table.command))
        except ValueError as error:
            raise NoAgentError(
                f"{context.where_set('agent_command', 'acp.command')} cannot be read: {error}."
            ) from error
    if not argv:
        raise NoAgentError(
            "The agent acp needs the command of a program that speaks ACP. Set it with "
            f'{context.where_set("agent_command", "acp.command")}, like "gemini --acp".'
        )
    if table.usage is not None:
        preset = msgspec.structs.replace(preset, usage=table.usage)
    workdir = str(settings.workdir)
    command = Command(argv, _environment(preset, context), workdir, limits=context.child_limits)
    return AcpLaunch(
        preset=preset,
        command=command,
        workdir=workdir,
        unconfined=table.unconfined,
        asks_user=settings.approvals == "ask",
        sandbox=settings.sandbox,
    )


def _table_of(context: AgentContext) -> AcpTable:
    return own_settings(context.settings, AcpSettings).acp


async def with_plain_confinement(launch: AcpLaunch, context: AgentContext) -> AcpLaunch:
    """Adds what confines plain-model turns. Raises `NoAgentError` or `OSError`."""
    preset, home = launch.preset, launch.command.env.get("HOME", "")
    empty = context.state_dir / "empty"
    make_folder(empty)
    folders = state_folders(context, home, preset.state_folders)
    files = [os.path.join(home, name) for name in preset.state_files if home]
    signs_in = tuple(os.path.join(home, name) for name in preset.sign_ins if home)
    plain = await plain_confinement(context, preset.title, written=(*folders, *files), read=signs_in)
    return msgspec.structs.replace(launch, plain=plain, plain_folder=str(empty))


async def with_confinement(launch: AcpLaunch, context: AgentContext) -> AcpLaunch:
    """Adds what confines agent turns. Adds nothing if the program has its own sandbox, or if the setting
    `agent_confinement` is `none`. If it is `auto`, adds nothing if `acp.unconfined` is off or no mechanism works.
    Raises `NoAgentError` or `OSError`.
    """
    preset, wanted = launch.preset, context.settings.agent_confinement
    if preset.sandboxed or (wanted == "auto" and not launch.unconfined):
        return launch
    if wanted == "none":
        return msgspec.structs.replace(launch, no_confinement="--agent-confinement none")
    found = await wanted_confinement(context, "confined")
    folders = state_folders(context, launch.command.env.get("HOME", ""), preset.state_folders)
    reason = (
        "" if found.confinement is not None else f"no confinement mechanism works here: {found.why_none()}"
    )
    return msgspec.structs.replace(
        launch, confinement=found.confinement, no_confinement=reason, state_folders=folders
    )


def _environment(preset: AcpPreset, context: AgentContext) -> dict[str, str]:
    names, given, table = [], {}, _table_of(context)
    for entry in split_list(table.env):
        name, equals, value = entry.partition("=")
        if equals:
            given[name] = value
        else:
            names.append(name)
    env = context.child_environment(*preset.keys, *names)
    own = preset.env if table.unconfined else {**preset.env, **preset.declining_env}
    return {**env, **preset_variables(own, context.environ), **given}


def preset_variables(own: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a preset sets (`own`). JSON objects are merged with those in `environ`."""
    out = dict(own)
    for name, value in own.items():
        users = environ.get(name)
        if users and value.startswith("{"):
            try:
                theirs, ours = msgspec.json.decode(users), msgspec.json.decode(value)
            except msgspec.MsgspecError:
                continue
            if isinstance(theirs, dict):
                out[name] = msgspec.json.encode(_merge(theirs, ours)).decode()
    return out


def _merge(theirs: Any, ours: Any) -> Any:
    if not (isinstance(theirs, dict) and isinstance(ours, Mapping)):
        return ours
    return {**theirs, **{name: _merge(theirs.get(name), value) for name, value in ours.items()}}


def with_settings_file(launch: AcpLaunch, context: AgentContext) -> AcpLaunch:
    """Writes the preset's settings over the machine's own, and adds the variable that names the file. Raises
    `NoAgentError`.
    """
    file = launch.preset.settings_file
    if file is None or file.variable in launch.command.env:  # with --agent-env the operator names another one
        return launch
    machines = Path(context.environ.get(file.variable) or file.path)
    own = context.state_dir / "agent-settings" / f"{launch.preset.name}.json"
    try:
        theirs = msgspec.json.decode(machines.read_bytes()) if machines.exists() else {}
        make_folder(own.parent)
        with replace_file(own) as out:
            out.write(msgspec.json.encode(_merge(theirs, file.settings)))
    except (OSError, msgspec.MsgspecError) as error:
        raise NoAgentError(
            f"The settings of {launch.preset.title} in {machines} cannot be joined with those of this server in {own} "
            f"({error})."
        ) from error
    env = {**launch.command.env, file.variable: str(own)}
    return msgspec.structs.replace(launch, command=msgspec.structs.replace(launch.command, env=env))


def with_program(launch: AcpLaunch, context: AgentContext) -> AcpLaunch:
    """Replaces the program's name by its path. Raises `NoAgentError`, with the command that installs it, if it is not
    found.
    """
    program, preset = launch.command.argv[0], launch.preset
    if os.sep in program or shutil.which(program, path=launch.command.env.get("PATH", os.defpath)):
        return launch
    install = install_command(preset)
    how = f"Install it (`{install}`)" if install else "Install it"
    raise NoAgentError(
        f"{preset.title} was not found: {program} is not on PATH. {how}, or set its command "
        f"with {context.where_set('agent_command', 'acp.command')}."
    )


async def _find_launch(preset: AcpPreset, context: AgentContext) -> AcpLaunch:
    launch = with_program(launch_of(preset, context), context)
    launch = await with_confinement(with_settings_file(launch, context), context)
    return await with_plain_confinement(launch, context)


async def make(preset: AcpPreset, context: AgentContext) -> AcpAgent:
    """Makes the agent of a preset. Raises `NoAgentError`."""
    return AcpAgent(await _find_launch(preset, context))


async def make_fake(context: AgentContext) -> AcpAgent:
    """Makes the fake agent, driven by ACP. Raises `NoAgentError` or `OSError`."""
    from codex_proxy.agents.fake.fake_setup import PROGRAM

    settings = context.settings
    preset = AcpPreset(
        name="fake",
        title="The fake agent",
        argv=(*PROGRAM, "acp"),
        apart="sessions",
        usage="turn",
        reopens=True,
        read_only=("plan",),
    )
    command = Command(
        preset.argv, context.child_environment(), str(settings.workdir), limits=context.child_limits
    )
    launch = AcpLaunch(
        preset=preset,
        command=command,
        workdir=str(settings.workdir),
        unconfined=_table_of(context).unconfined,
        asks_user=settings.approvals == "ask",
        sandbox=settings.sandbox,
    )
    return AcpAgent(await with_confinement(launch, context))


def program_of_client(name: str, settings: Settings) -> tuple[str, str] | None:
    """Returns the program in the command of an agent whose file has this name (`/opt/qwen` of `/opt/qwen --acp`), if
    there is one, and the name of the setting.
    """
    for each in (*settings_with(settings, "acp"), settings):
        with contextlib.suppress(ValueError):  # a quote without its end: `serve` says it
            program, *_ = shlex.split(own_settings(each, AcpSettings).acp.command or "") or ("",)
            if (
                os.path.basename(program) == name != program
            ):  # a bare name is looked up as the client's own is
                return program, "acp.command"
    return None


async def check(preset: AcpPreset, context: AgentContext) -> list[Check]:
    try:
        launch = await _find_launch(preset, context)
    except NoAgentError as error:
        found = [failed_check("agent", str(error))]
    else:
        found = await check_program(preset, launch, context.where_set("agent_command", "acp.command"))
    if not preset.adds_skills:
        return found
    settings, home = context.settings, context.environ.get("HOME", "")
    return [*found, *skills_check(settings.codex_home, home, settings.workdir)]


MAX_SHOWN: Final = 10


def skills_check(codex_home: Path, home: str, workdir: Path) -> list[Check]:
    """Returns a check if a client's text with `$NAME` can add skills to an agent turn."""
    folders = [codex_home / "skills", workdir / ".codex" / "skills", workdir / ".agents" / "skills"]
    if home:
        folders.append(Path(home) / ".agents" / "skills")
    names = sorted({excerpt(name) for folder in folders for name in _skills_in(folder)})
    if not names:
        return []
    shown = ", ".join(names[:MAX_SHOWN]) + (
        f" and {len(names) - MAX_SHOWN} more" if names[MAX_SHOWN:] else ""
    )
    return [
        CheckBuilder("skills").warning(
            f"In agent turns a client's text with $NAME adds the skill of that name: {shown}.",
            "Remove skills that clients must not call, or serve Codex with --agent codex-app-server, which adds none.",
        )
    ]


def _skills_in(folder: Path) -> Iterable[str]:
    try:
        return [path.parent.name for path in folder.glob("*/SKILL.md")]
    except OSError:
        return []
