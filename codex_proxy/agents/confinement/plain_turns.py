"""Keeps the processes of plain-model turns from reading the user's files, except what they need to run, their state
and temporary folder. A program that does not start when confined runs unconfined, and the operator is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from codex_proxy.agents.confinement.confine import Confinement
from codex_proxy.core.faults import Fault
from codex_proxy.process.child import Command

log = structlog.get_logger(__name__)

T = TypeVar("T")

STATE_VARIABLES: Final = (
    "CLAUDE_CONFIG_DIR", "CODEX_HOME", "CODEX_SQLITE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
)  # fmt: skip

UNCONFINED_WARNING: Final = "Nothing keeps plain-model turns of {title} from reading your files: {why}."
NOT_SIGNED_IN: Final = "{title} finds its sign-in only without it"
PROGRAM_ADVICE: Final = (
    "Name the folders that the program needs, beside its own, in PROXY_AGENT_STATE_FOLDERS, or say with "
    "--agent-confinement none that this is accepted."
)


class PlainConfinement:
    """Confines one agent's processes. After `try_out` it confines either every process, whatever fails, or none."""

    def __init__(
        self,
        title: str,
        confinement: Confinement | None,
        *,
        written: tuple[str, ...] = (),
        read: tuple[str, ...] = (),
        why: str = "",
        advice: str = "",
        required: bool = False,
    ) -> None:
        """`written`: what processes may also read and write; `read`: what they may also read. Without `confinement`
        turns are unconfined, for the reason `why`, with `advice`. `required`: the operator named the mechanism, so a
        program that does not work with it is not served.
        """
        self.confinement = confinement
        self.advice = advice
        self._title = title
        self._written = written
        self._read = read
        self._why = why
        self._required = required

    @property
    def warning(self) -> str:
        """Tells the operator why plain-model turns are not confined; else empty."""
        if self.confinement is not None or not self._why:
            return ""
        return f"{UNCONFINED_WARNING.format(title=self._title, why=self._why)} {self.advice}".strip()

    def wrap(self, command: Command) -> Command:
        """Returns the command, confined unless `warning` says otherwise. Raises `SpawnError`."""
        if self.confinement is None:
            return command
        state = (command.env[name] for name in STATE_VARIABLES if name in command.env)
        return self.confinement.wrap(command, (*self._written, *state), self._read)

    async def try_out(
        self,
        start: Callable[[Command], Awaitable[T]],
        command: Command,
        is_signed_in: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Starts the program confined, unless plain-model turns run unconfined already. If the start fails, or nobody
        is signed in, and confinement is not required, starts it unconfined; if somebody is signed in then, plain-model
        turns stay unconfined. Returns what the last call of `start` returned. Raises the `Fault` of the last start.
        """
        if self.confinement is None:
            return await start(command)
        await asyncio.to_thread(self.confinement.clear_tmp)
        try:
            result = await start(self.wrap(command))
            if self._required or is_signed_in(result):
                return result
            why = NOT_SIGNED_IN.format(title=self._title)
        except Fault as fault:
            if self._required:
                raise
            why = fault.failure.message.rstrip(".")
        unconfined = await start(command)
        if is_signed_in(unconfined):
            by, self.confinement = self.confinement.title, None
            self._why, self.advice = f"it does not work confined by {by} ({why})", PROGRAM_ADVICE
            log.warning("plain_model_not_confined", agent=self._title, mechanism=by)
        return unconfined
