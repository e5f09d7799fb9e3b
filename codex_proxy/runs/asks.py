"""The questions for permission that a run's client answers, or the turn's toolset. While one is open, the run has no
slot, and its time stands still. What the turn's sandbox would not confine is declined at once, whoever may answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ApprovalRequested, InputRequested, RequestClosed
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import Permission, ToolUse
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.safety import is_inside
from codex_proxy.core.turn import Turn
from codex_proxy.runs.time_and_tokens import DeadlineWatch
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)

Question: TypeAlias = ApprovalRequested | InputRequested | RequestClosed

DECLINED: Final = Decision(approve=False)
ALLOWED: Final = Decision(approve=True)
MAX_SHOWN: Final = 256 << 10
"""Maximum bytes of what a client is asked about: nobody approves what is not shown whole."""
MAX_CHANGES: Final = 100
"""Maximum changed files of a patch that a client is asked about."""
OWN_FOLDERS: Final = frozenset({".git", ".codex", ".agents", ".aws", ".claude"})
"""The folders of a workspace in which the sandbox lets nobody write: what they have runs, or rules, elsewhere."""

TOO_LONG: Final = "It is too long to be shown."
READ_ONLY: Final = "The turn is read-only."
OUTSIDE: Final = "It would change a file outside of the turn's folder, or one that a link leads to."
OWN_FOLDER: Final = "It would change a folder of the tools themselves, such as .git."
OUTSIDE_READ: Final = "It would read outside of the turn's folder."
READS: Final = frozenset({"read", "glob", "grep"})
"""The tools that only read files."""
_WILDCARD: Final = re.compile(r"[*?\[{]")
NO_TOOL: Final = "The turn's toolset does not have the tool."
NOBODY: Final = "Nobody may answer."
NOBODY_ASKED: Final = "Nobody is asked for permission."


def beyond_sandbox(event: ApprovalRequested, turn: Turn) -> str:
    """Returns why nobody may permit this; empty if somebody may. Looks at the files of a patch as they are now."""
    details = event.details
    if details is None:
        return event.beyond or "The agent does not tell what it is."
    if event.beyond:
        return event.beyond
    shown, use = msgspec.structs.replace(details, use=None), details.use
    if len(details.changes) > MAX_CHANGES or len(encode_json(shown)) > MAX_SHOWN:
        return TOO_LONG
    if use is not None and use.name in READS and turn.sandbox != "danger-full-access":
        return "" if _reads_within(use, turn.workdir) else OUTSIDE_READ
    if event.kind != "file_change" or turn.sandbox == "danger-full-access":
        return ""
    if turn.sandbox == "read-only":
        return READ_ONLY
    paths = [path for change in details.changes for path in (change.path, change.moved_to) if path]
    found = [outside_folder(path, turn.workdir) for path in paths] or [OUTSIDE]
    return next(filter(None, found), "")


def _reads_within(use: ToolUse, folder: str) -> bool:
    """Whether all that a call of these tools reads is in the folder, also behind links. An agent may take `~` for the
    user's home.
    """
    given = msgspec.json.decode(use.input, type=dict[str, Any])
    named = [str(given.get("file_path") or given.get("path") or folder)]
    if use.name == "glob":
        named.append(str(given.get("pattern", "")))
    if any(each.startswith("~") for each in named):
        return False
    path = os.path.join(folder, *named)
    first, *rest = _WILDCARD.split(path, maxsplit=1)
    root, read = os.path.realpath(folder), os.path.realpath(os.path.dirname(first) if rest else first)
    return (read == root or is_inside(read, root)) and ".." not in "".join(rest).split(os.sep)


def outside_folder(path: str, folder: str) -> str:
    """Returns why a file is not one that patches of a turn in this folder may change; empty if it is. No part of its
    path in the folder may be a link: it could lead elsewhere when the patch is applied.
    """
    if path.startswith("~"):
        return OUTSIDE
    plain = os.path.normpath(os.path.join(folder, path))
    root = os.path.realpath(folder)
    if plain == folder or not is_inside(plain, folder):
        return OUTSIDE
    within = os.path.relpath(plain, folder)
    if os.path.realpath(plain) != os.path.join(root, within):
        return OUTSIDE
    return OWN_FOLDER if OWN_FOLDERS.intersection(within.lower().split(os.sep)) else ""


def _permission(event: ApprovalRequested) -> Permission | None:
    """Returns the policy of the tool that is asked for; None if the turn's toolset does not have it."""
    return None if event.details is None or event.details.use is None else event.details.use.permission


class OpenAsks:
    """The open questions of one run."""

    def __init__(
        self,
        turn: Turn,
        slot: Slot,
        watch: DeadlineWatch,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        send: Callable[[str, Decision], None],
    ) -> None:
        """`send` gives the agent an answer, if the run has not ended."""
        self._turn, self._slot, self._watch, self._spawn, self._send = turn, slot, watch, spawn, send
        self._open: dict[str, ApprovalRequested] = {}

    def take(self, event: Question) -> Question:
        """Takes a question: answers it at once, so that the agent goes on, or lets the client answer it. Forgets one
        that the agent no longer asks. Returns the event with what has become of it.
        """
        if isinstance(event, RequestClosed):
            if self._open.pop(event.request_id, None) is not None and not self._open:
                self._spawn(self._go_on(event.request_id, None))
            return event
        if isinstance(event, InputRequested):
            self._send(event.request_id, DECLINED)
            return event
        if (answer := self._answer_to(event)) is not None:
            self._send(
                event.request_id, ALLOWED if answer.approve else DECLINED
            )  # which has words of its own
            return msgspec.structs.replace(event, allowed=answer.approve, declined=answer.message)
        self._open[event.request_id] = event
        self._slot.lend()
        self._watch.hold()
        return msgspec.structs.replace(event, asked=True)

    def _answer_to(self, event: ApprovalRequested) -> Decision | None:
        """Returns the answer to a question, if the client is not asked: with the reason if it is declined."""
        turn, why = self._turn, ""
        if turn.toolset is None and turn.approvals == "decline":
            return Decision(message=NOBODY_ASKED)
        asks = turn.toolset is None or event.of_server
        permission = "always_ask" if asks else _permission(event)
        if permission is None:
            why = NO_TOOL
        elif permission == "always_ask" and turn.approvals == "decline":
            why = NOBODY
        if why := why or beyond_sandbox(event, turn):
            log.info("approval_declined", kind=event.kind, reason=why)
            return Decision(message=why)
        return ALLOWED if permission == "always_allow" else None

    def decide(self, request_id: str, decision: Decision) -> None:
        """Answers a question, if it is open. The agent gets the last answer when the run has a slot again, and others
        at once: the model is not called before the last.
        """
        event = self._open.pop(request_id, None)
        if event is None:
            return
        if decision.approve and (why := beyond_sandbox(event, self._turn)):  # the files may be others by now
            log.info("approval_declined", kind=event.kind, reason=why)
            decision = Decision(message=why)
        if self._open:
            self._send(request_id, decision)
        else:
            self._spawn(self._go_on(request_id, decision))

    async def _go_on(self, request_id: str, decision: Decision | None) -> None:
        try:
            await self._slot.take_again()
        except Fault:
            return  # the server stops, and ends the run
        if self._open:  # asked meanwhile
            self._slot.lend()
        else:
            self._watch.go_on()
        if decision is not None:
            self._send(request_id, decision)
