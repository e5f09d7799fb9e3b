"""Summaries of sessions: what a list of sessions shows of each, and what a program needs beside OpenAI's own object of
it to show a conversation. Source: docs/agents-api.md#beside-openais-api.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

from msgspec.structs import replace

from codex_proxy.admission.clients import Client
from codex_proxy.agents.agent import Agent, agent_for, all_agents
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import StepStatus
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Sandbox
from codex_proxy.parts.sessions.approvals import SessionAsk, session_ask
from codex_proxy.parts.sessions.conversation import beginning_of
from codex_proxy.parts.sessions.records import ENTRY, TURN, SessionStore
from codex_proxy.parts.sessions.sessions import (
    Batch,
    Session,
    SessionStatus,
    SessionTurn,
    TokenUsage,
    TurnStatus,
    UserMessage,
    usage_object,
)
from codex_proxy.store.values import PageRequest
from codex_proxy.surfaces.answers.renderer import Count
from codex_proxy.surfaces.models import resolve, window_of

MAX_QUEUED_TEXT: Final = 2000
"""Maximum characters of a message that waits."""


class TurnSummary(TypedDict):
    id: str
    status: TurnStatus
    created_at: Count


class QueuedMessage(TypedDict):
    """A batch of messages that waits. `id`: that of the turn which it begins, unless the one that goes on takes it."""

    id: str
    text: str


class Step(TypedDict):
    step: str
    status: StepStatus


class ContextUse(TypedDict):
    """Tokens: those that the conversation takes in the model's window, and that window if it is known."""

    used: Count
    window: Count | None


class CostSoFar(TypedDict):
    """What the agent says that the session has cost. `currency`: its code, as `USD`."""

    amount: float
    currency: str


class SessionSummary(TypedDict):
    """A session in short. `title`: the user's, else the beginning of the first message; `resume`: the command that
    opens the conversation in the agent's own terminal program, if there is one.
    """

    object: Literal["agent.session.summary"]
    id: str
    title: str
    agent: str
    model: str
    mode: Literal["agent", "model"]
    folder: str | None
    sandbox: Sandbox | None
    approvals: Literal["ask", "decline"]
    may_approve: bool
    status: SessionStatus
    created_at: Count
    last_active_at: Count
    archived: bool
    forked_from: str | None
    turn: TurnSummary | None
    queued: list[QueuedMessage]
    plan: list[Step] | None
    usage: TokenUsage | None
    context: ContextUse | None
    cost: CostSoFar | None
    asks: list[SessionAsk]
    resume: str | None


class Viewer(NamedTuple):
    """For whom summaries are made: a client, and the server's agent."""

    client: Client
    agent: Agent


ViewerNow: TypeAlias = Callable[[], Viewer]
"""Returns the viewer with the rights of the moment. Raises `Fault` INVALID_API_KEY once its key is no longer valid."""


def title_of(session: Session) -> str:
    return session.title or session.beginning


def summary_object(session: Session, turn: SessionTurn | None, viewer: Viewer) -> SessionSummary:
    """Returns a session in short. `turn`: the one that goes on, if any."""
    client, hosted = viewer.client, session.environment["type"] != "none"
    toolset = session.agent.toolset
    asks = client.approvals == "ask" and client.has_approver if toolset is None else toolset.asks
    return {
        "object": "agent.session.summary",
        "id": session.id,
        "title": title_of(session),
        "agent": _agent_name(session, viewer),
        "model": session.agent.model,
        "mode": "agent" if hosted else "model",
        "folder": session.environment.get("workspace_directory"),
        "sandbox": session.sandbox_below(client.settings.sandbox) if hosted else None,
        "approvals": "ask" if asks and hosted else "decline",
        "may_approve": client.may_approve,
        "status": session.status,
        "created_at": session.created_at,
        "last_active_at": session.last_active_at,
        "archived": session.archived_at is not None,
        "forked_from": session.forked_from or None,
        "turn": None
        if turn is None
        else {"id": turn.id, "status": turn.status, "created_at": turn.created_at},
        "queued": [{"id": batch.id, "text": _text_of(batch)} for batch in session.queued],
        "plan": [{"step": each.step, "status": each.status} for each in session.plan] or None,
        "usage": usage_object(session.usage) if session.usage_known else None,
        "context": _context(session, viewer.client),
        "cost": None
        if session.cost is None
        else {"amount": session.cost.amount, "currency": session.cost.currency},
        "asks": [session_ask(each) for each in session.open_asks],
        "resume": _resume_command(session, viewer.agent),
    }


async def newest_summarized(
    store: SessionStore, owner: str, *, archived: bool = False, search: str = ""
) -> list[Session]:
    """Returns sessions, the one that was active last first: of those that were made last, the archived ones or the
    others that a search finds.
    """
    made = await store.newest_sessions(owner)
    found = [each for each in made if (each.archived_at is not None) == archived]
    if search:
        said, lower = await store.sessions_with(owner, search), search.casefold()
        found = [each for each in found if each.id in said or lower in title_of(each).casefold()]
    return sorted(found, key=lambda each: (each.last_active_at, each.created_at), reverse=True)


async def summaries_of(
    store: SessionStore, owner: str, found: Sequence[Session], viewer: Viewer
) -> list[SessionSummary]:
    """Returns the summaries of sessions, in their order."""
    return [await summary_of(store, owner, each, viewer) for each in found]


async def summary_of(store: SessionStore, owner: str, session: Session, viewer: Viewer) -> SessionSummary:
    turn = None
    if session.turn:
        turn = await store.find(owner, TURN, session.turn)
    if not title_of(session):  # stored by a release that did not keep the beginning
        page = await store.page(owner, ENTRY, PageRequest(1, "asc", None), parent=session.id)
        first = page.items[0].item if page.items else None
        if isinstance(first, UserMessage):
            session = replace(session, beginning=beginning_of([first.content]))
    return summary_object(session, turn, viewer)


def _agent_name(session: Session, viewer: Viewer) -> str:
    """Returns the name of the agent that runs the session's turns; empty if its model is gone."""
    try:
        model = resolve(session.agent.model, viewer.client.catalog).agent_model
    except Fault:
        return "" if session.thread is None else session.thread.agent
    return agent_for(viewer.agent, model).name


def _context(session: Session, client: Client) -> ContextUse | None:
    if not session.context_used:
        return None
    if session.context_window:
        return {"used": session.context_used, "window": session.context_window}
    try:
        window = window_of(resolve(session.agent.model, client.catalog).agent_model, client.catalog)
    except Fault:
        window = None
    return {"used": session.context_used, "window": window}


def _text_of(batch: Batch) -> str:
    parts = (part for content in batch.messages for part in content)
    texts = (part["text"] if part["type"] == "input_text" else "[image]" for part in parts)
    return excerpt("\n".join(texts), MAX_QUEUED_TEXT - 3)


def _resume_command(session: Session, agent: Agent) -> str | None:
    thread = session.thread
    if thread is None:
        return None
    known = (each.resume_command for each in all_agents(agent) if each.name == thread.agent)
    command = next(known, None)  # none of an agent that this server no longer has
    return f"{command} {thread.id}" if command else None
