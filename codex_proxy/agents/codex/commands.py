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
"""How long the binary may take to tell its version or its models: 0.1 s as a rule, seconds on a cold disk."""


ANSWER_BYTES = 64 << 20
"""More than any catalog (0.2 MB); what comes after that is not kept."""


async def find_version(program: str, environment: Mapping[str, str]) -> Version:
    """What `codex --version` says. A `Fault` where it says nothing that is a version."""
    text = await output_of((program, "--version"), dict(environment))
    version = version_from(text.decode(errors="replace"))
    if version is None:
        raise misconfigured(f"{program} --version did not tell a version: is it the Codex command line?")
    return version


class _Output:
    """A child's sink that keeps what it prints, up to a limit."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    def received(self, chunk: bytes) -> None:
        if len(self.out) < ANSWER_BYTES:
            self.out += chunk

    def ended(self, exit: Exit) -> None:
        self.exit.set_result(exit)


async def output_of(command: tuple[str, ...], environment: dict[str, str]) -> bytes:
    """What a short-lived command prints. Raises `Fault` where it fails or hangs; leaves no process."""
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
    """What a command said that failed: from the line that calls itself an error up to the next blank one, else its
    last line."""
    said = exit.stderr_tail.strip()
    error = re.search(r"^error: .*(?:\n.+)*", said, re.MULTILINE | re.IGNORECASE)
    if said:
        return " ".join(error[0].split()) if error else said.splitlines()[-1]
    return f"exit code {exit.code}" if exit.code else f"signal {exit.signal}"


def misconfigured(message: str) -> Fault:
    """The agent on this machine cannot be used as it is; the message says what to change."""
    return Fault(Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=message))
