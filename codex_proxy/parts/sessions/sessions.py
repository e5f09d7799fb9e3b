"""Sessions of the Agents API, as they are stored: a session, its turns, and the entries of its log, which are items of
clients, items of the agent as core events, and results of calls. Their objects, as clients see them, are rendered from
that. Source: docs/agents-api.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, TypedDict

import msgspec

from codex_proxy.core.event_rows import decode_row, encode_row
from codex_proxy.core.events import (
    Event,
    Usage,
)
from codex_proxy.core.items import (
    PlanStep,
)
from codex_proxy.core.turn import SANDBOXES, Sandbox
from codex_proxy.parts.sessions.agents import AgentSettings, SessionAgent, session_agent_object
from codex_proxy.parts.sessions.approvals import Ask, ask_object, json_value
from codex_proxy.parts.sessions.placed_files import FileResource
from codex_proxy.parts.sessions.rules import Rule
from codex_proxy.surfaces.answers.renderer import Count, Object, Yes

Content: TypeAlias = tuple[dict[str, Any], ...]
"""Parts of a message or an output: `input_text` and `input_image`."""

COST_DIGITS: Final = 9
"""How many digits of a sum of costs are kept behind the point."""

SessionStatus: TypeAlias = Literal["idle", "in_progress", "requires_action", "failed"]
TurnStatus: TypeAlias = Literal["queued", "in_progress", "waiting", "completed", "failed", "cancelled"]


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A call of one of the client's functions. `item`, `index`: its item, and that item's place in the turn's output.
    `answered`: the digest of its result; empty until there is one.
    """

    call_id: str
    name: str
    arguments: str
    turn: str
    item: str
    index: int
    answered: str = ""


class Cost(msgspec.Struct, frozen=True):
    """What an agent says that its work has cost. `currency`: its code, as `USD`."""

    amount: float
    currency: str

    def added_to(self, before: Cost | None) -> Cost:
        """Returns the sum with earlier costs; this one alone if they were in another currency."""
        if before is None or before.currency != self.currency:
            return self
        return Cost(round(before.amount + self.amount, COST_DIGITS), self.currency)


class AgentThread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's own session behind a session, which the agent stores (`core.turn.StoredSession`)."""

    agent: str
    id: str
    made_with: str = ""
    """What it was made with."""
    turn: str = ""
    """The last turn that it has taken: it has everything up to that turn's end."""
    imported: str = ""
    """The agent's id of the last turn that another program has run on it, and that is a turn of the session."""
    until: str = ""
    item: str = ""
    """The turn up to whose end it had everything before `turn`, or has it if that has ended, and the last item then;
    empty: not known.
    """


MAX_THREADS: Final = 20
"""How many of the agent's own sessions a session keeps: another one is made where the last one cannot go on."""


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages that wait. `id`: the id of the turn that they begin, unless the one that goes on takes them before."""

    id: str
    messages: tuple[Content, ...]
    steers: bool = True
    """Whether the turn that goes on may take them."""


def said_name(batch: str, index: int) -> str:
    """Returns the name in the log of a message of a batch: it is known before the message is a part of a turn."""
    return f"{batch.removeprefix('turn_')}_said{index}"


def environment_id(session: str) -> str:
    return f"env_{session.partition('_')[2]}"


def folder_environment(session: str, folder: str, remote_url: str = "") -> dict[str, Any]:
    """Returns the environment of the session with this id, which works in a folder, as it is stored and shown."""
    own = {"type": "self_hosted", "id": environment_id(session), "workspace_directory": folder}
    return {**own, "remote_url": remote_url, "capability_directories": []}


class ItemStorage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The space that the items of a session take in the store."""

    size: int = 0
    """Their size in bytes, with that of their images."""
    images: tuple[str, ...] = ()
    """The ids of the images that were stored last."""


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session. Times: seconds since 1970."""

    id: str
    created_at: int
    last_active_at: int
    agent_id: str
    agent: AgentSettings
    environment: dict[str, Any]
    metadata: dict[str, str] = {}
    agent_version: int = 1
    title: str | None = None
    """The user's, if there is one."""
    beginning: str = ""
    """The beginning of the first message."""
    sandbox: Sandbox | Literal[""] = ""
    """The widest sandbox of the session's turns, which the client has chosen; empty: the key's."""
    forked_from: str = ""
    """The id of the session whose items this one began with, if it is a fork."""
    plan: tuple[PlanStep, ...] = ()
    """The newest plan of the agent, if it tells one."""
    context_used: int = 0
    """The tokens of the last call of the model, which the next one has before it; 0: not told."""
    context_window: int = 0
    """The window of the model in tokens, if the agent tells it."""
    cost: Cost | None = None
    """The sum of what the agent says that the session has cost, if it tells that."""
    environment_id: str = ""
    """That of the environment of Anthropic's API, if the session has one."""
    archived_at: int | None = None
    """When it was archived: since then it can only be read, renamed, restored or deleted."""
    resources: tuple[FileResource, ...] = ()
    status: SessionStatus = "idle"
    error: str | None = None
    subagents: tuple[Subagent, ...] = ()
    """The newest ones, and all that are open."""
    turn: str = ""
    """The id of the turn that has not ended, if any."""
    actions: tuple[Call | Ask, ...] = ()
    """The calls of that turn, and its questions without an answer."""
    queued: tuple[Batch, ...] = ()
    """Messages for the turn that goes on, or for the next ones."""
    usage: Usage = Usage()
    """The sum of the turns."""
    usage_known: bool = True
    """Whether every turn has ended with known usage."""
    running: bool = False
    """Whether the log has last told that a turn runs."""
    threads: tuple[AgentThread, ...] = ()
    """The agent's own sessions: the last one goes on, those before it could not. All are deleted with the session, and
    the oldest above `MAX_THREADS` at the end of a turn.
    """
    storage: ItemStorage = ItemStorage()
    rules: tuple[Rule, ...] = ()
    """What the client has permitted for the rest of the session."""

    @property
    def thread(self) -> AgentThread | None:
        """The agent's own session that has the conversation, if the agent stores it."""
        return self.threads[-1] if self.threads else None

    def sandbox_below(self, widest: Sandbox) -> Sandbox:
        """Returns the sandbox of the session's turns for a key with this sandbox."""
        return min(self.sandbox or widest, widest, key=SANDBOXES.index)

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls that wait for a result."""
        return tuple(each for each in self.actions if isinstance(each, Call) and not each.answered)

    @property
    def open_asks(self) -> tuple[Ask, ...]:
        """The questions that wait for an answer."""
        return tuple(each for each in self.actions if isinstance(each, Ask))


class TurnError(msgspec.Struct, frozen=True):
    code: str
    message: str


class SessionTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn of a session."""

    id: str
    session: str
    agent_id: str
    created_at: int
    subagent: str = ""
    """The id of the subagent whose turn it is; empty: the session's own."""
    status: TurnStatus = "queued"
    started_at: int | None = None
    completed_at: int | None = None
    error: TurnError | None = None
    refused: bool = False
    """Whether the model has refused to go on."""
    usage: Usage | None = None
    before: str = ""
    """The id of the session's last item before the turn's first; empty if there is none."""
    items: int = 0
    """How many items the turn has, of which `outputs` are the agent's."""
    outputs: int = 0
    runs: int = 0
    """How many runs of the agent have ended: one, and one for each time that calls got their results. Of a subagent's
    turn: how many calls of its model.
    """
    step: int | None = None
    """The number in the log of the call of the model that has not ended, if any."""
    acting: dict[str, bool] = {}
    """The items of the agent's own calls that have not ended, each with whether an MCP server is called."""

    def usage_with(self, more: Usage | None) -> Usage | None:
        """Returns the tokens with those of one more run: known if those of every run are."""
        if not self.runs:
            return more
        return None if more is None or self.usage is None else self.usage + more


class Subagent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subagent of a session. `own_id` is the agent's id of it; `parent` is the agent that made it."""

    id: str
    own_id: str
    session: str
    parent: str
    opened_at: int
    closed_at: int | None = None
    name: str = ""
    task: str = ""
    turns: int = 0
    """How many turns it has had."""
    turn: SessionTurn | None = None
    """The turn that has not ended, if any."""
    last_item: str = ""
    """The id of its last item; empty without one."""
    logged: int = 0
    """How much its log has."""


class UserMessage(msgspec.Struct, frozen=True, tag="user_message"):
    content: Content


class CallResult(msgspec.Struct, frozen=True, tag="call_result", omit_defaults=True):
    call_id: str
    success: bool
    output: str | Content | None = None
    error: str | None = None


class AgentItem(msgspec.Struct, frozen=True, tag="agent_item"):
    """What the agent put out: a row of its events (`core.event_rows`)."""

    row: msgspec.Raw

    @classmethod
    def of(cls, events: Iterable[Event]) -> AgentItem:
        return cls(msgspec.Raw(encode_row(events)))

    def events(self) -> list[Event]:
        return decode_row(bytes(self.row))


EntryItem: TypeAlias = UserMessage | CallResult | AgentItem


class Entry(msgspec.Struct, frozen=True):
    """An entry of a session's log: an item with its turn."""

    id: str
    turn: str
    item: EntryItem


# --- the objects of sessions and turns --------------------------------------------------------------


class InputTokensDetails(TypedDict):
    cached_tokens: Count


class OutputTokensDetails(TypedDict):
    reasoning_tokens: Count


class TokenUsage(TypedDict):
    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class AgentSession(TypedDict):
    """A session. `usage` is null while a turn runs, and if a turn ended without known usage."""

    id: str
    object: Literal["agent.session"]
    agent: SessionAgent
    created_at: Count
    last_active_at: Count
    environment: Object
    status: SessionStatus
    error: str | None
    metadata: dict[str, str]
    required_actions: list[Object]
    usage: TokenUsage | None
    vault_ids: list[str]


class SessionDeleted(TypedDict):
    id: str
    object: Literal["agent.session.deleted"]
    deleted: Yes


class Environment(TypedDict):
    """The environment of a session: a folder of this machine, in which nothing is installed."""

    id: str
    object: Literal["agent.environment"]
    type: Literal["self_hosted"]
    status: Literal["connected"]
    files: list[Object]
    plugins: list[Object]
    skills: list[Object]


class TurnErrorObject(TypedDict):
    code: str
    message: str


class Turn(TypedDict):
    id: str
    object: Literal["agent.session.turn"]
    session_id: str
    agent_id: str
    subagent_id: str | None
    status: TurnStatus
    created_at: Count
    started_at: Count | None
    completed_at: Count | None
    error: TurnErrorObject | None
    usage: TokenUsage | None


def session_object(session: Session) -> AgentSession:
    actions = [each for each in session.actions if not each.answered]
    ended = session.usage_known and not session.turn
    return {
        "id": session.id,
        "object": "agent.session",
        "agent": session_agent_object(session.agent_id, session.agent),
        "created_at": session.created_at,
        "last_active_at": session.last_active_at,
        "environment": session.environment,
        "status": session.status,
        "error": session.error,
        "metadata": session.metadata,
        "required_actions": list(map(_action_object, actions)) if session.status == "requires_action" else [],
        "usage": usage_object(session.usage) if ended else None,
        "vault_ids": [],
    }


def _action_object(action: Call | Ask) -> dict[str, Any]:
    if isinstance(action, Ask):
        return ask_object(action)
    return {
        "type": "function_call",
        "turn_id": action.turn,
        "call_id": action.call_id,
        "name": action.name,
        "arguments": json_value(action.arguments),
    }


def turn_object(turn: SessionTurn) -> Turn:
    return {
        "id": turn.id,
        "object": "agent.session.turn",
        "session_id": turn.session,
        "agent_id": turn.agent_id,
        "subagent_id": turn.subagent or None,
        "status": turn.status,
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "completed_at": turn.completed_at,
        "error": None if turn.error is None else {"code": turn.error.code, "message": turn.error.message},
        "usage": None if turn.completed_at is None else usage_object(turn.usage),
    }


def usage_object(usage: Usage | None) -> TokenUsage | None:
    """Returns tokens; None if they are not known."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
