"""The log of a session, or of one of its subagents: what happened, in the order in which readers learn of it. Items are
named by their entries, and calls of the agent's tools are in the log as they began: what was told does not change.
Other APIs than OpenAI's list and stream a session as its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from codex_proxy.core.events import Usage


class _Logged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="log"):
    """Something that happened. `number`: its place in the log. It is stored, so that no tag or field may be renamed."""

    number: int


class Said(_Logged, tag="said", frozen=True):
    """A message of the client has become a part of a turn. `name`: see `Batch.name_of`."""

    entry: str
    name: str


class Running(_Logged, tag="running", frozen=True):
    pass


class Waits(_Logged, tag="waits", frozen=True):
    """The turn waits for the client. `calls`: the items of the open calls, and the calls that are asked about."""

    calls: tuple[str, ...]


class Rested(_Logged, tag="rested", frozen=True):
    """No turn goes on. `failed`: whether the last one has failed; `refused`: whether its model has refused to go on."""

    failed: bool = False
    refused: bool = False


class Failed(_Logged, tag="failed", frozen=True):
    code: str
    message: str
    retries: bool = False
    """Whether the agent repeats its call of the model."""


class StepBegan(_Logged, tag="step_began", frozen=True):
    """A call of the model has begun."""


class StepEnded(_Logged, tag="step_ended", frozen=True):
    """`start`: the number of its `StepBegan`. `usage`: None if it is not known."""

    start: int
    usage: Usage | None = None
    failed: bool = False


class Compacted(_Logged, tag="compacted", frozen=True):
    """The agent has replaced what it knew of the conversation by a summary."""


class Shown(_Logged, tag="shown", frozen=True):
    """The agent has put out a whole message, reasoning, or a call of one of the client's functions."""

    entry: str


class Acted(_Logged, tag="acted", frozen=True):
    """The agent has called one of its own tools, or one of an MCP server."""

    item: str
    row: msgspec.Raw
    """The item without its output: a row of core events."""
    subagent: str = ""
    """The subagent whose call it is, of which the client is asked in the session's log; empty for calls of the log's
    own agent.
    """


class Asked(_Logged, tag="asked", frozen=True):
    """The agent asks its client about what is no item: for a form to be filled in, say. `name`, `arguments`: those of
    the question (`approvals.Ask`), a JSON object.
    """

    item: str
    """The question's id."""
    name: str
    arguments: msgspec.Raw


class Ended(_Logged, tag="ended", frozen=True):
    """A call of `Acted` has ended. `entry`: the item with its output; empty where the process is gone that ran it."""

    item: str
    entry: str = ""
    failed: bool = False
    mcp: bool = False
    """Whether an MCP server was called."""


class Answered(_Logged, tag="answered", frozen=True):
    """The client has given the result of a call. `call`: the call's item."""

    entry: str
    call: str


class Decided(_Logged, tag="decided", frozen=True):
    """The client has allowed or denied a call of `Acted`, or what was `Asked`. `words`: what it says of a denial."""

    item: str
    approve: bool
    words: str = ""
    subagent: str = ""
    """As of `Acted`."""


class Interrupted(_Logged, tag="interrupted", frozen=True):
    """The client ends the turn. `name`: that of its event, if it knows one."""

    name: str = ""


class Updated(_Logged, tag="updated", frozen=True):
    """The client has changed the session. `fields`: those that have changed, and what they are now."""

    fields: msgspec.Raw


class ThreadOpened(_Logged, tag="thread_opened", frozen=True):
    """The agent has made a subagent. This and its states are in its own log and in the session's."""

    subagent: str
    name: str = ""


class ThreadRunning(_Logged, tag="thread_running", frozen=True):
    subagent: str
    name: str = ""


class ThreadRested(_Logged, tag="thread_rested", frozen=True):
    """As `Rested`, of a subagent."""

    subagent: str
    name: str = ""
    failed: bool = False
    refused: bool = False


class Told(_Logged, tag="told", frozen=True):
    """A message from the log's agent to another one. `to`: that subagent; empty: the session's own agent. `entry`: an
    entry of the subagent that is one of the two; `name`: the other agent's.
    """

    to: str
    entry: str
    name: str = ""


class Heard(_Logged, tag="heard", frozen=True):
    """A message from another agent, `sender`, to the log's; else as `Told`."""

    sender: str
    entry: str
    name: str = ""


Logged: TypeAlias = (
    Said
    | Running
    | Waits
    | Rested
    | Failed
    | StepBegan
    | StepEnded
    | Compacted
    | Shown
    | Acted
    | Asked
    | Ended
    | Answered
    | Decided
    | Interrupted
    | Updated
    | ThreadOpened
    | ThreadRunning
    | ThreadRested
    | Told
    | Heard
)
LOGGED: Final = _Logged
"""The type of all of these."""


class LogPage(msgspec.Struct, frozen=True):
    """What happened between two changes of the store. `at`: microseconds since 1970 of the first; each one after it is
    one microsecond later.
    """

    at: int
    logged: tuple[Logged, ...]

    @property
    def first(self) -> int:
        return self.logged[0].number


class Log:
    """What of a log continues: the next number, and the earliest time for what comes next."""

    def __init__(self, last: LogPage | None = None, *, next: int = 0) -> None:
        self.next = next if last is None else last.logged[-1].number + 1
        self._earliest = 0 if last is None else last.at + len(last.logged)

    def number(self) -> int:
        """Returns the number of what is logged now."""
        self.next += 1
        return self.next - 1

    def page(self, logged: Sequence[Logged], now: float) -> LogPage:
        """Returns the page of what was logged since the last one. `now`: seconds since 1970."""
        at = max(round(now * 1e6), self._earliest)
        self._earliest = at + len(logged)
        return LogPage(at, tuple(logged))
