"""Runs a short-lived command of the Codex binary, such as `codex --version`, and returns what it prints."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from codex_proxy.agents.codex.version import Version, version_from
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Command, Exit, SpawnError, spawn

ASK_SECONDS = 20.0
"""How long the binary may take to print its version or its models: usually 0.1 s, some seconds from a cold disk."""


ANSWER_BYTES = 64 << 20
"""How much of the output is kept. A catalog of models has 0.2 MB."""


async def find_version(program: str, environment: Mapping[str, str]) -> Version:
    """Returns the release that `codex --version` prints. Raises `Fault` where it prints none."""
    text = await output_of((program, "--version"), dict(environment))
    version = version_from(text.decode(errors="replace"))
    if version is None:
        raise misconfigured(f"{program} --version did not tell a version: is it the Codex command line?")
    return version


class _Output:
    """Keeps what a child prints, up to a limit."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    def received(self, chunk: bytes) -> None:
        if len(self.out) < ANSWER_BYTES:
            self.out += chunk

    def ended(self, exit: Exit) -> None:
        self.exit.set_result(exit)


async def output_of(command: tuple[str, ...], environment: dict[str, str]) -> bytes:
    """Runs a short command and returns what it prints. Raises `Fault` where it fails or hangs. No process is left."""
    output = _Output()
    try:
        child = await spawn(Command(command, environment, os.getcwd()), output)
    except SpawnError as error:
        message = f"{error}. Give the right path of Codex with --codex-bin."
        raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=message)) from error
    child.close_stdin()
    try:
        async with asyncio.timeout(ASK_SECONDS):
            exit = await asyncio.shield(output.exit)
    except TimeoutError:
        raise misconfigured(f"{' '.join(command)} did not answer within {ASK_SECONDS:g} s") from None
    finally:
        await child.end(grace=0)
    if exit.code != 0:
        raise misconfigured(f"{' '.join(command)} failed: {_reason(exit)}")
    return bytes(output.out)


def _reason(exit: Exit) -> str:
    """Returns why a command failed, from its stderr: the paragraph that begins with an error, else the last line."""
    said = exit.stderr_tail.strip()
    error = re.search(r"^error: .*(?:\n.+)*", said, re.MULTILINE | re.IGNORECASE)
    if said:
        return " ".join(error[0].split()) if error else said.splitlines()[-1]
    return f"exit code {exit.code}" if exit.code else f"signal {exit.signal}"


def misconfigured(message: str) -> Fault:
    """Returns the fault of an agent that cannot be used on this machine. `message` says what to change."""
    return Fault(Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=message))
