"""What the tools do: starts, continues, reads and stops sessions of a key, and lists them. Raises `Fault`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.admission.clients import Client
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.shown_text import escape_lines, one_line
from codex_proxy.core.turn import MODEL_SEPARATOR, Sandbox
from codex_proxy.http.middleware.rate_limit import RequestLimits, count_request
from codex_proxy.parts.mcp_server import arguments
from codex_proxy.parts.mcp_server.depth import DEPTH, depth_of, next_depth
from codex_proxy.parts.mcp_server.texts import last_words, pages_text, shortened
from codex_proxy.parts.mcp_server.waiting import wait, works
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.approvals import Ask
from codex_proxy.parts.sessions.items import item_object
from codex_proxy.parts.sessions.records import ENTRY, TURN
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import Content, Session, folder_environment
from codex_proxy.parts.sessions.summaries import newest_summarized, title_of
from codex_proxy.store.values import PageRequest
from codex_proxy.surfaces.models import OWN_DEFAULT, ModelCatalog, listed_names, resolve
from codex_proxy.surfaces.requests.options import sandbox_of

WAIT_SECONDS: Final = 50.0
"""Seconds of a wait: clients give up a call after 60."""
MAX_MODELS: Final = 50
"""Maximum models of an agent in a list."""
_LATEST: Final = 20
"""How many items are looked at for the agent's last words."""

Result = Mapping[str, Any] | str
"""What a tool returns: an object, or a text."""


class Caller(msgspec.Struct, frozen=True):
    """Who calls a tool: a client with its key, which is an agent of this server or not."""

    sessions: Sessions
    client: Client
    limits: RequestLimits
    by_agent: bool
    sandbox: Sandbox | Literal[""] = ""
    """The widest sandbox of the sessions that it starts, where it is narrower than its key's."""

    @property
    def owner(self) -> str:
        return self.client.name

    @property
    def agents(self) -> list[str]:
        """The names of the agents that the client may use, the default one first."""
        return [*self.client.catalog.members] or [self.sessions.responses.runs.agent.name]


Tell = Callable[[str], Awaitable[None]]


async def start_session(caller: Caller, given: arguments.StartSession, _: Tell) -> Result:
    sessions, owner = caller.sessions, caller.owner
    id, now = sessions.new_id("sess_"), sessions.now()
    depth = next_depth(sessions.with_a_turn(owner), by_agent=caller.by_agent)
    client, model = caller.client, _model(caller, given)
    plain = resolve(model, client.catalog).plain
    if plain and (given.folder or given.sandbox):
        raise bad_request(
            "A model server has no folder and runs no commands. Leave `folder` and `sandbox` out, or name an agent.",
            "folder" if given.folder else "sandbox",
        )
    session = Session(
        id=id,
        created_at=now,
        last_active_at=now,
        agent_id=sessions.new_id("agent_"),
        agent=AgentSettings(model=model),
        environment=folder_environment(id, given.folder or client.workspace.folder)
        if not plain
        else {"type": "none"},
        metadata={DEPTH: str(depth)},
        sandbox=caller.sandbox
        if given.sandbox is None
        else sandbox_of(given.sandbox, caller.sandbox or client.settings.sandbox),
        title=given.title,
    )
    with count_request(caller.limits, client):
        sessions.check_room(owner)
        message = _message(given.prompt)
        prepared = await sessions.turn_requests.check_settings(owner, session, [message])
        live = sessions.new(owner, session)
        await sessions.run(sessions.create(live, [message], prepared))
    works_in = {"folder": prepared.turn.workdir, "sandbox": prepared.turn.sandbox}
    return {
        "session_id": id,
        "agent": sessions.turn_requests.agent_of(prepared),
        **({} if plain else works_in),
        "state": "working",
        "next": "Call wait_session.",
    }


def _message(text: str) -> Content:
    return ({"type": "input_text", "text": text},)


def _model(caller: Caller, given: arguments.StartSession) -> str:
    """Returns the name of the model of a new session."""
    catalog = caller.client.catalog
    if given.agent is None:
        return given.model or OWN_DEFAULT
    names = caller.agents
    agent = next((name for name in names if name.lower() == given.agent.lower()), None)
    if agent is None:
        raise bad_request(f"There is no agent of this name. The agents are: {', '.join(names)}.", "agent")
    if not catalog.members:
        return given.model or OWN_DEFAULT
    if given.model is None:
        return agent
    return given.model if _is_of(agent, given.model, catalog) else f"{agent}{MODEL_SEPARATOR}{given.model}"


def _is_of(agent: str, model: str, catalog: ModelCatalog) -> bool:
    """Whether a name, as it is, means a model of the agent."""
    try:
        return resolve(model, catalog).agent_model.startswith(f"{agent}{MODEL_SEPARATOR}")
    except Fault:  # there is none, or several agents have it
        return False


async def continue_session(caller: Caller, given: arguments.ContinueSession, _: Tell) -> Result:
    sessions, owner = caller.sessions, caller.owner
    session = await sessions.session(owner, given.session_id)
    at_work = bool(session.turn or session.queued)
    with count_request(caller.limits, caller.client):
        if caller.by_agent and not at_work:
            await _deepen(caller, session)
        await sessions.run(sessions.submit(owner, session.id, [[_message(given.prompt)]], None))
    done = "The agent works, and gets the message." if at_work else "A new turn has begun."
    return {"session_id": session.id, "state": "working", "said": done, "next": "Call wait_session."}


async def _deepen(caller: Caller, session: Session) -> None:
    """Notes that an agent begins another turn of a session: else two sessions could do so in turns without end. Raises
    `Fault` NOT_ALLOWED beyond the limit.
    """
    sessions, owner = caller.sessions, caller.owner
    others = [each for each in sessions.with_a_turn(owner) if each.id != session.id]
    depth = next_depth(others, by_agent=True)
    if depth > depth_of(session):
        patch: dict[str, str | None] = {DEPTH: str(depth)}
        await sessions.run(
            sessions.change(owner, session.id, lambda same: same, patch=patch, is_activity=False)
        )


async def report(caller: Caller, session: Session) -> Result:
    """Returns what wait_session tells of a session."""
    sessions, owner = caller.sessions, caller.owner
    newest = PageRequest(_LATEST, "desc", None)
    entries = await sessions.store.page(owner, ENTRY, newest, parent=session.id)
    items = [item for item in map(item_object, entries.items) if item]
    turns = await sessions.store.page(owner, TURN, PageRequest(1, "desc", None), parent=session.id)
    turn = turns.items[0] if turns.items else None
    found: dict[str, Any] = {"session_id": session.id, "state": state_of(session)}
    if turn is not None and not works(session):
        found["turn"] = turn.status
    failure = session.error or (turn.error.message if turn is not None and turn.error is not None else "")
    if failure:
        found["error"] = shortened(failure)
    found["last_words"] = last_words(items)
    if session.open_asks:
        found["waits_for"] = [question(ask) for ask in session.open_asks]
        found["next"] = (
            "Tell your user that a person has to decide this on the page of codex-proxy, or in its terminal; no tool "
            "can. Then call wait_session again."
        )
    elif works(session):
        found["next"] = "Call wait_session again."
    return found


def state_of(session: Session) -> str:
    """Returns `working`, `waits_for_a_person`, `waits_for_a_client` (which runs functions), `failed` or `finished`."""
    if session.open_asks:
        return "waits_for_a_person"
    if session.status == "requires_action":
        return "waits_for_a_client"
    if works(session):
        return "working"
    return "failed" if session.status == "failed" else "finished"


def question(ask: Ask) -> dict[str, Any]:
    """Returns a question of the agent as a model may read it."""
    arguments_text = msgspec.json.encode(ask.arguments).decode()
    return {"message": escape_lines(ask.message), "name": ask.name, "arguments": shortened(arguments_text)}


async def read_session(caller: Caller, given: arguments.ReadSession, _: Tell) -> Result:
    sessions, owner = caller.sessions, caller.owner
    session = await sessions.session(owner, given.session_id)
    unknown = bad_request("No item of this session has this id.", "after")
    newest = given.after is None
    asked = PageRequest(arguments.MAX_LISTED, "desc" if newest else "asc", given.after)
    page = await sessions.store.page(owner, ENTRY, asked, parent=session.id, unknown_after=unknown)
    entries: Sequence[Any] = page.items[::-1] if newest else page.items
    items = [item for item in map(item_object, entries) if item]
    texts, cut = pages_text(items, newest=newest)
    more = cut or page.has_more
    if not texts:
        return "There are no items behind this one." if given.after else "There are no items yet."
    note = (
        "[Earlier items were left out.]"
        if newest
        else "[There are more: call read_session with the last id.]"
    )
    lines = [note, *texts] if more and newest else [*texts, note] if more else texts
    return "\n\n".join(lines)


async def list_sessions(caller: Caller, given: arguments.ListSessions, _: Tell) -> Result:
    found = await newest_summarized(caller.sessions.store, caller.owner, search=given.search)
    listed = [
        {
            "session_id": session.id,
            "title": one_line(escape_lines(title_of(session))),
            "state": state_of(session),
            "model": session.agent.model,
            "folder": session.environment.get("workspace_directory"),
            "last_active_at": session.last_active_at,
        }
        for session in found[: given.limit]
    ]
    return {"sessions": listed, "has_more": len(found) > given.limit}


async def stop_session(caller: Caller, given: arguments.StopSession, tell: Tell) -> Result:
    sessions, owner = caller.sessions, caller.owner
    session = await sessions.session(owner, given.session_id)
    await sessions.run(sessions.submit(owner, session.id, ["cancel"], None))

    def goes_on(now: Session) -> bool:
        """Whether the turn has not ended, also if it waits for a person."""
        return bool(now.turn) and now.turn == session.turn

    await wait(sessions, owner, session.id, tell, STOP_SECONDS, goes_on)
    return await report(caller, await sessions.session(owner, session.id))


STOP_SECONDS: Final = 10.0
"""Seconds for which an agent is waited for that is to stop."""


async def list_agents(caller: Caller, _: arguments.ListAgents, __: Tell) -> Result:
    client = caller.client
    catalog, names = client.catalog, caller.agents
    models: dict[str, list[str]] = {name: [] for name in names}
    for name in listed_names(catalog, ""):
        try:
            found = resolve(name, catalog)
        except Fault:
            continue  # an alias that leads nowhere
        agent = found.agent_model.partition(MODEL_SEPARATOR)[0] if catalog.members else names[0]
        if agent in models and client.allows(found.agent_model, found.effort):
            models[agent].append(name)
    return {
        "agents": [
            {"agent": name, "models": found[:MAX_MODELS], "more_models": len(found) > MAX_MODELS}
            for name, found in models.items()
        ],
        "default": names[0],
    }


CALLS: Final[Mapping[str, Callable[[Caller, Any, Tell], Awaitable[Result]]]] = {
    "start_session": start_session,
    "continue_session": continue_session,
    "read_session": read_session,
    "list_sessions": list_sessions,
    "stop_session": stop_session,
    "list_agents": list_agents,
}
"""What each tool does, by its name, but for wait_session (`questions.Persons.wait`)."""
