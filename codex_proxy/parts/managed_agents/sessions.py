"""Sessions and threads of the Managed Agents API: their objects, and what requests become. They are the sessions of the
part `sessions`. Raises `Fault`. Source: docs/managed-agents.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

from msgspec.structs import replace

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.media import decode_base64
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.managed_agents import session_wire as wire
from codex_proxy.parts.managed_agents.agents import AgentConfiguration, configuration
from codex_proxy.parts.managed_agents.environments import refused
from codex_proxy.parts.managed_agents.events import (
    EventObject,
    LogOf,
    answer_id,
    content_blocks,
    decision_id,
    event_id,
    item_of,
    of_thread,
    thread_id,
)
from codex_proxy.parts.managed_agents.pages import optional_time, time_text
from codex_proxy.parts.sessions.approvals import Approval, request_id_of
from codex_proxy.parts.sessions.commands import NOT_OPEN, WAITING, HeldMessages, Interrupt, Result, Submitted
from codex_proxy.parts.sessions.placed_files import FileResource
from codex_proxy.parts.sessions.sessions import (
    CallResult,
    Content,
    Session,
    Subagent,
    said_name,
)
from codex_proxy.surfaces.answers.renderer import Object
from codex_proxy.surfaces.requests.files import decode_text, no_file
from codex_proxy.surfaces.responses.item_wire import TEXT_LIMIT

# --- what clients send ----------------------------------------------------------------------------


def content_of(blocks: Iterable[Any], place: str) -> Content:
    """Returns content blocks as parts of a message or an output. Raises `Fault` for what is not served."""
    return tuple(_part(block, f"{place}[{index}]") for index, block in enumerate(blocks))


def _part(block: Any, place: str) -> dict[str, Any]:
    match block:
        case wire.TextBlock():
            return {"type": "input_text", "text": block.text}
        case wire.ImageBlock(source=wire.Base64Source() as source):
            return {"type": "input_image", "image_url": f"data:{source.media_type};base64,{source.data}"}
        case wire.ImageBlock(source=wire.UrlSource(url=url)):
            return {"type": "input_image", "image_url": url}
        case wire.DocumentBlock(source=source) if (text := _document(source)) is not None:
            said = [each for each in (block.title, block.context, text) if each]
            return {"type": "input_text", "text": "\n\n".join(said) or " "}
        case wire.SearchResultBlock():
            said = [block.title, block.source, *(each.text for each in block.content)]
            return {"type": "input_text", "text": "\n".join(said)}
        case wire.RedactedBlock():
            raise refused("a redacted block has nothing to show the agent. Leave it out.", place)
        case wire.ImageBlock(source=wire.FileSource(file_id=id)):
            raise _no_such_file(id, place)
        case wire.DocumentBlock(source=wire.FileSource(file_id=id)):
            raise _no_such_file(id, place)
    message = (
        "sessions take images as data or by URL, and documents as text or PDF. Put the file into the folder."
    )
    raise refused(message, f"{place}.source")


def _document(source: Any) -> str | None:
    """Returns the text of a document; None if it has none."""
    if isinstance(source, wire.TextSource):
        return source.data
    if not isinstance(source, wire.Base64Source):
        return None
    try:
        raw = decode_base64(source.data)
    except ValueError:
        return None
    text = None if raw.startswith(b"%PDF-") else decode_text(raw)
    return None if text is None or len(text) > TEXT_LIMIT else text


def _no_such_file(id: str, place: str) -> Fault:
    return Fault.of(FaultKind.NOT_FOUND, f"{place}.source.file_id: {no_file(id)}")


class Sent(NamedTuple):
    """An event that a client has sent. `change`: what it has the session do, if not that of the event before it."""

    event: EventObject
    """As it is shown, but for `processed_at`."""
    change: Submitted | None
    place: str


def messages_of(events: Sequence[Any]) -> list[Content]:
    """Returns the messages with which a session begins. Raises `Fault` for events of other types."""
    found = []
    for index, event in enumerate(events):
        place = f"initial_events[{index}]"
        if not isinstance(event, wire.MessageEvent):
            raise refused(f"a session here begins with user.message, not {event.type}.", place)
        found.append(content_of(event.content, f"{place}.content"))
    return found


NEEDS_VALUES: Final = (
    "the form needs values, for which this API has no event. Deny it, or send them to "
    "POST /v1/agents/sessions/{}/asks/{}."
)


class Sending:
    """Makes changes of a session of a client's events."""

    def __init__(self, session: Session, new_turn: str, new_event: str) -> None:
        """`new_turn`, `new_event`: ids that nothing else has."""
        self.sent: list[Sent] = []
        self._session = session
        self._new_turn = self._turn = new_turn
        self._new_event = new_event
        self._messages: list[Content] = []

    def add_message(self, event: wire.MessageEvent, place: str) -> None:
        """Adds a message: those that follow each other begin one turn."""
        content = content_of(event.content, f"{place}.content")
        follows = bool(self.sent) and self.sent[-1].event["type"] == event.type
        if not follows:
            self._messages, self._turn = [], f"{self._new_turn}{len(self.sent) or ''}"
        self._messages.append(content)
        shown = {
            "type": event.type,
            "id": event_id(said_name(self._turn, len(self._messages) - 1)),
            "content": content_blocks(content),
        }
        change = None if follows else HeldMessages(self._messages, self._turn)
        self.sent.append(Sent(shown, change, place))

    def add_interrupt(self, event: wire.InterruptEvent, place: str) -> None:
        if event.session_thread_id not in (None, thread_id(self._session.id)):
            message = "a subagent alone cannot be interrupted here. Leave it out to interrupt the session."
            raise refused(message, f"{place}.session_thread_id")
        name = f"{self._new_event}{len(self.sent) or ''}"
        self.sent.append(Sent({"type": event.type, "id": event_id(name)}, Interrupt(name), place))

    def add_confirmation(self, event: wire.ConfirmationEvent, place: str) -> None:
        if event.deny_message and event.result == "allow":
            raise bad_request("It is only allowed when 'result' is 'deny'.", f"{place}.deny_message")
        item, words = item_of(event.tool_use_id), event.deny_message or ""
        request_id = request_id_of(item)
        asked = next((each for each in self._session.open_asks if each.request_id == request_id), None)
        decision: Literal["approve", "deny"] = "approve" if event.result == "allow" else "deny"
        shown = {
            "type": event.type,
            "id": decision_id(item),
            "tool_use_id": event.tool_use_id,
            "result": event.result,
            **({"deny_message": words} if words else {}),
            **of_thread(asked.subagent if asked else ""),
        }
        if decision == "approve" and asked is not None and any(field.required for field in asked.fields):
            raise refused(NEEDS_VALUES.format(self._session.id, asked.request_id), f"{place}.result")
        approval = Approval(request_id, decision, words, once=True)
        self.sent.append(Sent(shown, approval, place))

    def add_result(self, event: wire.CustomResultEvent, place: str, turn: str, call_id: str) -> None:
        """Adds the result of a call, of which the turn and the id of the agent are known."""
        content = content_of(event.content or (), f"{place}.content")
        texts = [part["text"] for part in content if part["type"] == "input_text"]
        whole = "\n".join(texts)
        output: str | Content | None = content if len(texts) < len(content) else whole
        failed = bool(event.is_error)
        if failed and isinstance(output, str):
            result = CallResult(call_id, False, None, output or "The tool has failed.")
        else:
            result = CallResult(call_id, not failed, output)
        shown = {
            "type": event.type,
            "id": answer_id(item_of(event.custom_tool_use_id)),
            "custom_tool_use_id": event.custom_tool_use_id,
            "content": content_blocks(content),
            "is_error": failed,
        }
        self.sent.append(Sent(shown, Result(turn, result, once=True), place))


_UNSERVED: Final = {
    "user.define_outcome": "user.define_outcome is not served here. Say in a user.message what is wanted.",
    "user.tool_result": "user.tool_result is not served here: this server runs the agent's own tools.",
    "system.message": "system.message is not served here. Set 'system' of the agent, or send a user.message.",
}


_IMAGE: Final = re.compile(
    r"events\[(?P<change>\d+)\](?:\.input\[(?P<message>\d+)\]\.content|\.output)\[(?P<part>\d+)\]\.image_url"
)
"""Matches an image in the changes that events were made to, of which one has all messages that follow each other."""


def unserved(event: wire.UnservedEvent, place: str) -> Fault:
    return refused(_UNSERVED[event.type], place)


def no_such_call(event: wire.ConfirmationEvent | wire.CustomResultEvent) -> Fault:
    """Returns the fault of an answer to a call that the session does not have."""
    field, id, of = (
        ("tool_use_id", event.tool_use_id, "agent.tool_use")
        if isinstance(event, wire.ConfirmationEvent)
        else ("custom_tool_use_id", event.custom_tool_use_id, "agent.custom_tool_use")
    )
    message = f'`{field}` "{excerpt(id)}" does not match any `{of}` event in this session'
    return bad_request(message)


def in_words(fault: Fault, given: Sequence[Any], sent: Sequence[Sent], session: Session) -> Fault:
    """Returns a refusal of events in the words of the API. `session`: as it is now."""
    failure = fault.failure
    if image := _IMAGE.fullmatch(failure.param or ""):
        changes = [index for index, each in enumerate(sent) if each.change is not None]
        place = sent[changes[int(image["change"])] + int(image["message"] or 0)].place
        return Fault(replace(failure, param=f"{place}.content[{image['part']}].source"))
    if failure.code == WAITING:
        place = next((each.place for each in sent if each.event["type"] == "user.message"), "events")
        open_now = ", ".join(_open_calls(session))
        return bad_request(
            f"Invalid user.message event at {place}: waiting on responses to events [{open_now}]; only "
            "`user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or `user.interrupt` may be sent"
        )
    if failure.code == NOT_OPEN:
        for event, each in zip(given, sent, strict=True):
            if failure.param in (
                getattr(each.change, "request_id", None),
                getattr(getattr(each.change, "result", None), "call_id", None),
            ):
                return no_such_call(event)
    return fault


def _open_calls(session: Session) -> list[str]:
    """Returns the ids of the events that wait for the client."""
    calls = [call.item for call in session.open_calls]
    return [event_id(each) for each in (*calls, *(ask.item or ask.request_id for ask in session.open_asks))]


# --- as clients see them --------------------------------------------------------------------------

Status = Literal["rescheduling", "running", "idle", "terminated"]


class FileResourceObject(TypedDict):
    """A file in a session's folder. `mount_path`: where it is on this machine."""

    id: str
    type: Literal["file"]
    file_id: str
    mount_path: str
    created_at: str
    updated_at: str


class SessionObject(TypedDict):
    id: str
    type: Literal["session"]
    status: Status
    agent: Object
    environment_id: str
    title: str | None
    metadata: dict[str, str]
    resources: list[FileResourceObject]
    vault_ids: list[str]
    outcome_evaluations: list[Object]
    budget: Object | None
    stats: Object
    usage: Object
    deployment_id: str | None
    created_at: str
    updated_at: str
    archived_at: str | None


class SessionPage(TypedDict):
    """A page of sessions. `prev_page`: null for the first one."""

    data: list[SessionObject]
    next_page: str | None
    prev_page: str | None


class SessionDeleted(TypedDict):
    id: str
    type: Literal["session_deleted"]


class ThreadObject(TypedDict):
    id: str
    type: Literal["session_thread"]
    session_id: str
    parent_thread_id: str | None
    agent: Object
    status: Status
    stats: Object | None
    usage: Object | None
    workflow_run_id: str | None
    created_at: str
    updated_at: str
    archived_at: str | None


class SentEvents(TypedDict):
    data: list[Object]


def status_of(session: Session) -> Status:
    return "running" if session.status == "in_progress" else "idle"


def log_of(session: Session, subagent: str = "") -> LogOf:
    """Returns whose log it is: that of the session, or of a subagent."""
    return LogOf(subagent or session.id, session.id, session.agent.name or session.agent_id)


def session_object(session: Session) -> SessionObject:
    return {
        "id": session.id,
        "type": "session",
        "status": status_of(session),
        "agent": session_agent(session),
        "environment_id": environment_id_of(session),
        "title": session.title,
        "metadata": session.metadata,
        "resources": [resource_object(each) for each in session.resources],
        "vault_ids": [],
        "outcome_evaluations": [],
        "budget": None,
        "stats": {},
        "usage": _usage(session.usage),
        "deployment_id": None,
        "created_at": time_text(session.created_at),
        "updated_at": time_text(session.last_active_at),
        "archived_at": optional_time(session.archived_at),
    }


def resource_object(resource: FileResource) -> FileResourceObject:
    made = time_text(resource.created_at)
    return {
        "id": resource.id,
        "type": "file",
        "file_id": resource.file_id,
        "mount_path": f"{resource.folder.rstrip('/')}/{resource.path}",
        "created_at": made,
        "updated_at": made,
    }


def environment_id_of(session: Session) -> str:
    """Returns the environment; of a session of OpenAI's API an id that no environment has."""
    return session.environment_id or f"env_{session.id.partition('_')[2]}"


def _configuration(session: Session) -> AgentConfiguration:
    return configuration(session.agent_id, session.agent_version, session.agent)


def session_agent(session: Session) -> dict[str, Any]:
    """Returns the agent of a session, in which agents that it may have work are whole."""
    found = _configuration(session)
    agents = [_thread_agent(session)]
    return {**found, "multiagent": found["multiagent"] and {"type": "coordinator", "agents": agents}}


def _thread_agent(session: Session) -> dict[str, Any]:
    return {name: value for name, value in _configuration(session).items() if name != "multiagent"}


def _usage(usage: Usage) -> dict[str, Any]:
    written = {"ephemeral_5m_input_tokens": usage.cache_written, "ephemeral_1h_input_tokens": 0}
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_written),
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": written,
    }


def primary_thread(session: Session) -> ThreadObject:
    return {
        "id": thread_id(session.id),
        "type": "session_thread",
        "session_id": session.id,
        "parent_thread_id": None,
        "agent": _thread_agent(session),
        "status": status_of(session),
        "stats": {},
        "usage": _usage(session.usage),
        "workflow_run_id": None,
        "created_at": time_text(session.created_at),
        "updated_at": time_text(session.last_active_at),
        "archived_at": optional_time(session.archived_at),
    }


def subagent_thread(session: Session, subagent: Subagent) -> ThreadObject:
    parent = session.id if subagent.parent == session.agent_id else subagent.parent
    agent = {**_thread_agent(session), **({"name": subagent.name} if subagent.name else {})}
    return {
        "id": thread_id(subagent.id),
        "type": "session_thread",
        "session_id": session.id,
        "parent_thread_id": thread_id(parent),
        "agent": agent,
        "status": "idle" if subagent.turn is None else "running",
        "stats": {},
        "usage": None,
        "workflow_run_id": None,
        "created_at": time_text(subagent.opened_at),
        "updated_at": time_text(subagent.closed_at or subagent.opened_at),
        "archived_at": None,
    }
