"""What is known of the program of an ACP agent without a start of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping

from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.checks import Installation
from codex_proxy.core.faults import Fault
from codex_proxy.parts.acp.acp_setup import install_command, launch_of
from codex_proxy.parts.acp.presets import AcpPreset, Program
from codex_proxy.process.child import Command
from codex_proxy.process.releases import printed_release, release_of_package

ANY_PROGRAM = 'codex-proxy serve --agent acp --agent-command "PROGRAM --its-acp-flag"'


async def installation(preset: AcpPreset, context: AgentContext) -> Installation:
    """Returns the program that the preset or the setting `acp.command` names, its release, and whether a sign-in of it
    can be seen.
    """
    install = install_command(preset) or ANY_PROGRAM
    try:
        launch = launch_of(preset, context)
    except NoAgentError as error:
        trouble = (
            str(error) if preset.argv else ""
        )  # without a preset there is no command until somebody names one
        return Installation(installed=False, install=install, trouble=trouble)
    env = launch.command.env
    program = _path_of(launch.command.argv[0], env)
    if program is None:
        return Installation(installed=False, install=install)
    version, trouble = await _release_of(program, preset, env)
    return Installation(
        installed=True,
        program=program,
        version=version,
        trouble=trouble,
        signed_in=_has_sign_in(preset, env),
        sign_in=preset.sign_in,
        capabilities=Program(preset).capabilities
        | {"images"},  # most take some; the program tells when it runs
    )


def _path_of(program: str, env: Mapping[str, str]) -> str | None:
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    return found and os.path.abspath(found)


async def _release_of(program: str, preset: AcpPreset, env: dict[str, str]) -> tuple[str, str]:
    """Returns the release, and what went wrong if it is not known. A program without a preset is not asked: what it
    does with `--version` is its own affair.
    """
    if not preset.package:
        return "", ""
    if found := await asyncio.to_thread(release_of_package, program, preset.package):
        return found, ""
    folder = os.path.dirname(program)
    try:
        return await printed_release(Command((program, "--version"), env, folder)), ""
    except Fault as fault:
        return "", str(fault)


def _has_sign_in(preset: AcpPreset, env: Mapping[str, str]) -> bool | None:
    """Looks for keys that the program gets, and for files of a sign-in. False if it has no folder of its own yet, so
    that it was never used here; None if it may have a sign-in elsewhere (a keychain, a file of its settings).
    """
    if any(env.get(name) for name in preset.key_variables):
        return True
    home, moved = env.get("HOME", ""), env.get(preset.home_variable, "")
    files = [
        os.path.join(moved, *path.split("/")[1:]) if moved else os.path.join(home, path)
        for path in preset.sign_in_files
    ]
    if any(map(os.path.isfile, files)):
        return True
    folders = (
        [moved]
        if moved
        else [os.path.join(home, path) for path in (*preset.state_folders, *preset.state_files)]
    )
    return None if not folders or any(map(os.path.exists, folders)) else False
