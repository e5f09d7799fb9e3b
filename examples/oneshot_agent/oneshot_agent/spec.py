"""The spec of the agent, for `codex-proxy serve --agent-plugin oneshot_agent.spec:SPEC`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from codex_proxy.agent_plugin import (
    Agent,
    AgentContext,
    AgentSpec,
    Check,
    ChildPerTurnAgent,
    ChildSpec,
    Command,
    NoAgentError,
    SpawnError,
    find_program,
)

from .dialect import OneShotTurn

VARIABLE = "ONESHOT_PROGRAM"
"""The environment variable of the server that names the program and its arguments, in the syntax of a shell."""

DEFAULT = (sys.executable, "-P", str(Path(__file__).with_name("program.py")))


def command_of(context: AgentContext, workdir: str = "") -> Command:
    """Returns the command for a turn that works in `workdir`. Raises `NoAgentError`."""
    try:
        argv = tuple(shlex.split(context.environ.get(VARIABLE, ""))) or DEFAULT
    except ValueError as error:
        raise NoAgentError(f"{VARIABLE} cannot be read as a command: {error}.") from error
    folder = workdir or str(context.settings.workdir)
    return Command(argv, context.child_environment(), folder, limits=context.child_limits)


async def make(context: AgentContext) -> Agent:
    """Returns the agent. Raises `NoAgentError` if the program does not exist."""
    try:
        program = find_program(command_of(context))
    except SpawnError as error:
        raise NoAgentError(f"{error}. Name a program with {VARIABLE}.") from error
    return ChildPerTurnAgent(
        ChildSpec(
            name=SPEC.name,
            version=Path(program).name,
            command=lambda turn: command_of(context, turn.workdir),
            dialect=OneShotTurn,
            capabilities=SPEC.capabilities,
            models=(),
            any_model=True,
            reads="chunks",
        )
    )


async def check(context: AgentContext) -> list[Check]:
    """Returns the checks for `codex-proxy doctor`."""
    try:
        program = find_program(command_of(context))
    except (SpawnError, NoAgentError) as error:
        advice = f"Name a program with {VARIABLE}."
        return [Check(name="agent", status="failed", message=str(error), advice=advice)]
    return [Check(name="agent", status="ok", message=f"Each turn runs {program}.", facts={"path": program})]


SPEC = AgentSpec(
    name="oneshot",
    summary="any program that reads a prompt from stdin and prints its answer",
    make=make,
    check=check,
)
