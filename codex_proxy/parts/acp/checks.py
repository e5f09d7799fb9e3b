"""The checks of `doctor` for an ACP agent: program, release, session, confinement."""

from __future__ import annotations

import msgspec

from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.confinement.setup import confinement_check
from codex_proxy.core.checks import Check, CheckBuilder, failed_check
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.acp.agent import AcpLaunch
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.process import AcpProcess
from codex_proxy.parts.acp.program import DeclaredFeatures, Program
from codex_proxy.parts.acp.session_setup import session_options_of
from codex_proxy.process.child import Command


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
    advice = (
        f"Install it: npm install -g {preset.package}" if preset.package else f"Look at {command_setting}."
    )
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
