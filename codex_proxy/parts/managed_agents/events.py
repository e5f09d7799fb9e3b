"""Renders the log of a session, or of one of its subagents, as events of the Managed Agents API. No event is stored: it
is rendered anew, with the same id and time, for each list and each stream. Source: docs/managed-agents.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall
from codex_proxy.parts.managed_agents.pages import time_text
from codex_proxy.parts.sessions.approvals import json_value
from codex_proxy.parts.sessions.items import WholeItem
from codex_proxy.parts.sessions.log import (
    Acted,
    Answered,
    Asked,
    Compacted,
    Decided,
    Ended,
    Failed,
    Heard,
    Interrupted,
    Logged,
    LogPage,
    Rested,
    Running,
    Said,
    Shown,
    StepBegan,
    StepEnded,
    ThreadOpened,
    ThreadRested,
    ThreadRunning,
    Told,
    Updated,
    Waits,
)
from codex_proxy.parts.sessions.sessions import AgentItem, CallResult, Content, Entry, UserMessage

EventObject: TypeAlias = dict[str, Any]

INTERRUPTED: Final = (
    "The call was ended before it had a result: the turn was interrupted, or the server restarted."
)
"""The result of a call that has none."""

_ERRORS: Final[Mapping[str, str]] = {
    "rate_limit_exceeded": "model_rate_limited_error",
    "server_overloaded": "model_overloaded_error",
    "usage_limit_exceeded": "billing_error",
    "credit_balance_exhausted": "billing_error",
    "internal_error": "unknown_error",
}


class LogOf(NamedTuple):
    """Whose log is rendered. `id`: the id of a session or subagent; `session`: the session's; `agent`: the name of the
    session's agent, which subagents without a name have, too.
    """

    id: str
    session: str
    agent: str


# --- ids ------------------------------------------------------------------------------------------


def thread_id(id: str) -> str:
    """Returns the id of the thread of a session or subagent."""
    return f"sthr_{_suffix(id)}"


def _suffix(id: str) -> str:
    return id.partition("_")[2]


def event_id(name: str) -> str:
    """Returns the id of the event of a message (`said_name`), or of an item or entry."""
    return f"sevt_{name}"


def item_of(event_id: str) -> str:
    """Returns the item of an event that is a call."""
    return event_id.removeprefix("sevt_")


def id_of(each: Logged, log: LogOf) -> str:
    """Returns the id of the event of something logged."""
    match each:
        case Said(name=name) if name:
            return event_id(name)
        case Interrupted(name=name) if name:
            return event_id(name)
        case Shown(entry=entry):
            return event_id(entry)
        case Acted(item=item) | Asked(item=item):
            return event_id(item)
        case Ended(item=item):
            return event_id(f"{item}_result")
        case Answered(call=call):
            return answer_id(call)
        case Decided(item=item):
            return decision_id(item)
    return _numbered(log, each.number)


def decision_id(item: str) -> str:
    return event_id(f"{item}_decision")


def answer_id(item: str) -> str:
    return event_id(f"{item}_answer")


# --- events ---------------------------------------------------------------------------------------


def needed_entries(logged: Iterable[Logged]) -> list[str]:
    """Returns the ids of the entries without which these cannot be rendered."""
    return [id for each in logged if (id := getattr(each, "entry", ""))]


def events_of(page: LogPage, log: LogOf, entries: Mapping[str, Entry]) -> list[EventObject]:
    """Returns the events of a page of the log. `entries`: those that it names, by their ids."""
    return [event for each in page.logged if (event := event_of(each, page, log, entries))]


def event_of(each: Logged, page: LogPage, log: LogOf, entries: Mapping[str, Entry]) -> EventObject:
    """Returns the event of one thing in a page; empty for what this API does not show."""
    rendered = _RENDERERS[type(each)](each, log, entries)
    if not rendered:
        return {}
    kind, fields = rendered
    at = time_text(seconds_of(each, page))
    return {"type": kind, "id": id_of(each, log), "processed_at": at, **fields}


def seconds_of(each: Logged, page: LogPage) -> float:
    """Returns when something was logged: seconds since 1970."""
    return (page.at + each.number - page.first) / 1e6


def _numbered(log: LogOf, number: int) -> str:
    return event_id(f"{_suffix(log.id)}_{number}")


def stop_reason(kind: str, **fields: Any) -> dict[str, Any]:
    """Returns the fields of an event that says that nothing goes on."""
    return {"stop_reason": {"type": kind, **fields}, "stop_details": None}


def _said(said: Said, _: LogOf, entries: Mapping[str, Entry]) -> Any:
    return "user.message", {"content": _entry_content(entries[said.entry])}


def _waits(waits: Waits, _: LogOf, __: object) -> Any:
    ids = [event_id(each) for each in waits.calls]
    return "session.status_idle", stop_reason("requires_action", event_ids=ids)


def _rest(rested: Rested | ThreadRested) -> dict[str, Any]:
    if not rested.refused:
        return stop_reason("retries_exhausted" if rested.failed else "end_turn")
    details = {"type": "refusal", "category": None, "explanation": None}
    return stop_reason("refusal") | {"stop_details": details}


def _failed(failed: Failed, _: LogOf, __: object) -> Any:
    kind = _ERRORS.get(failed.code, "model_request_failed_error")
    status = {"type": "retrying" if failed.retries else "exhausted"}
    return "session.error", {"error": {"type": kind, "message": failed.message, "retry_status": status}}


def _step_ended(step: StepEnded, log: LogOf, _: object) -> Any:
    usage = step.usage or Usage()
    tokens = {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_written),
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.cache_written,
    }
    fields = {"model_request_start_id": _numbered(log, step.start), "is_error": step.failed}
    return "span.model_request_end", {**fields, "model_usage": tokens}


def _shown(shown: Shown, _: LogOf, entries: Mapping[str, Entry]) -> Any:
    entry = entries[shown.entry]
    assert isinstance(entry.item, AgentItem), "the agent has put it out"
    whole = WholeItem.of(entry.item.events())
    match whole.item:
        case Message():
            return "agent.message", {"content": _entry_content(entry)}
        case Reasoning():
            return "agent.thinking", {}
        case ToolCall(name=name):
            fields = {"name": name, "input": _input("".join(whole.text))}
            return "agent.custom_tool_use", fields
    return ()


def _acted(acted: Acted, _: LogOf, __: object) -> Any:
    whole = WholeItem.of(AgentItem(acted.row).events())
    use = whole.details.use
    policy = dict[str, Any]()
    if use is not None and use.permission is not None:
        allowed = "ask" if use.permission == "always_ask" else "allow"
        policy = {"evaluated_permission": allowed, "evaluation": {"type": use.permission}}
    policy |= of_thread(acted.subagent)
    if whole.is_mcp_call:
        shown = whole.object("", "")
        given = shown["arguments"] if isinstance(shown["arguments"], dict) else {}
        names = {"mcp_server_name": shown["server_label"], "name": shown["name"], "input": given}
        return "agent.mcp_tool_use", {**names, **policy}
    name, given = _own_call(whole) if use is None else (str(use.name), _input(use.input))
    return "agent.tool_use", {"name": name, "input": given, **policy}


def _asked(asked: Asked, _: LogOf, __: object) -> Any:
    given = _input(bytes(asked.arguments).decode())
    return "agent.tool_use", {"name": asked.name, "input": given, "evaluated_permission": "ask"}


def _own_call(whole: WholeItem) -> tuple[str, dict[str, Any]]:
    """Returns the name and input of a call in a session that has no toolset."""
    item, details = whole.item, whole.details
    assert isinstance(item, Activity), "calls of MCP servers have events of their own"
    if item.kind == "web_search":
        return "web_search", {"query": item.text}
    if item.kind == "file_change":
        paths = " ".join(change.path for change in details.changes) or item.text
        return "edit", {"file_path": paths, "diff": "\n".join(change.diff for change in details.changes)}
    return "bash", {"command": details.command or item.text}


def _ended(ended: Ended, _: LogOf, entries: Mapping[str, Entry]) -> Any:
    text = INTERRUPTED
    if ended.entry:
        item = entries[ended.entry].item
        assert isinstance(item, AgentItem), "the agent has put it out"
        text = _output(WholeItem.of(item.events()))
    use = "mcp_tool_use_id" if ended.mcp else "tool_use_id"
    content = [{"type": "text", "text": text}] if text else []
    fields = {use: event_id(ended.item), "content": content, "is_error": ended.failed}
    return f"agent.{'mcp_' if ended.mcp else ''}tool_result", fields


def _output(whole: WholeItem) -> str:
    """Returns the output of a call that has ended."""
    if not whole.is_mcp_call:
        return "".join(whole.output) or whole.details.error or ""
    shown = whole.object("", "")
    found = shown["error"] if whole.status == "failed" else shown["output"]
    return found if isinstance(found, str) else msgspec.json.encode(found).decode() if found else ""


def _answered(answered: Answered, _: LogOf, entries: Mapping[str, Entry]) -> Any:
    result = entries[answered.entry].item
    assert isinstance(result, CallResult), "it is the result of a call"
    output = result.output if result.error is None else result.error
    parts: Content = ({"type": "input_text", "text": output},) if isinstance(output, str) else output or ()
    fields = {
        "custom_tool_use_id": event_id(answered.call),
        "content": content_blocks(parts),
        "is_error": not result.success,
    }
    return "user.custom_tool_result", fields


def _decided(decided: Decided, _: LogOf, __: object) -> Any:
    words = {"deny_message": decided.words} if decided.words else {}
    fields = {"tool_use_id": event_id(decided.item), "result": "allow" if decided.approve else "deny"}
    return "user.tool_confirmation", {**fields, **words, **of_thread(decided.subagent)}


def of_thread(subagent: str) -> dict[str, str]:
    """Returns the field that tells the thread of a subagent whose call is in the session's log."""
    return {"session_thread_id": thread_id(subagent)} if subagent else {}


def _thread(kind: str, **more: Any) -> Callable[[Any, LogOf, object], Any]:
    def render(each: ThreadOpened | ThreadRunning | ThreadRested, log: LogOf, _: object) -> Any:
        rest = _rest(each) if isinstance(each, ThreadRested) else {}
        names = {"session_thread_id": thread_id(each.subagent), "agent_name": each.name or log.agent}
        return f"session.thread_{kind}", {**names, **rest, **more}

    return render


def _told(told: Told, log: LogOf, entries: Mapping[str, Entry]) -> Any:
    to = {"to_session_thread_id": thread_id(told.to or log.session), "to_agent_name": told.name or log.agent}
    return "agent.thread_message_sent", {**to, "content": _entry_content(entries[told.entry])}


def _heard(heard: Heard, log: LogOf, entries: Mapping[str, Entry]) -> Any:
    sender = heard.sender or log.session
    names = {"from_session_thread_id": thread_id(sender), "from_agent_name": heard.name or log.agent}
    return "agent.thread_message_received", {**names, "content": _entry_content(entries[heard.entry])}


def _updated(updated: Updated, _: LogOf, __: object) -> Any:
    return "session.updated", msgspec.json.decode(updated.fields)


def _plain(kind: str) -> Callable[[Any, LogOf, object], Any]:
    return lambda _each, _log, _entries: (kind, {})


_RENDERERS: Final[Mapping[type, Callable[[Any, LogOf, Mapping[str, Entry]], Any]]] = {
    Said: _said,
    Running: _plain("session.status_running"),
    Waits: _waits,
    Rested: lambda rested, _, __: ("session.status_idle", _rest(rested)),
    Failed: _failed,
    StepBegan: _plain("span.model_request_start"),
    StepEnded: _step_ended,
    Compacted: _plain("agent.thread_context_compacted"),
    Shown: _shown,
    Acted: _acted,
    Asked: _asked,
    Ended: _ended,
    Answered: _answered,
    Decided: _decided,
    Interrupted: _plain("user.interrupt"),
    Updated: _updated,
    ThreadOpened: _thread("created", workflow_run_id=None),
    ThreadRunning: _thread("status_running"),
    ThreadRested: _thread("status_idle"),
    Told: _told,
    Heard: _heard,
}
"""What renders each: it returns the type and the fields."""


# --- contents -------------------------------------------------------------------------------------


def _input(text: str) -> dict[str, Any]:
    """Returns the input of a call, which this API has as an object."""
    found = json_value(text)
    return found if isinstance(found, dict) else {"arguments": found}


def _entry_content(entry: Entry) -> list[dict[str, Any]]:
    """Returns the content of a message of a client, or of an agent."""
    if isinstance(entry.item, UserMessage):
        return content_blocks(entry.item.content)
    assert isinstance(entry.item, AgentItem), "results of calls are no messages"
    return [{"type": "text", "text": "".join(WholeItem.of(entry.item.events()).text)}]


def content_blocks(parts: Content) -> list[dict[str, Any]]:
    """Returns parts of a message or an output as content blocks."""
    return [*map(_block, parts)]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def previews_of(told: Mapping[str, Any], wanted: frozenset[str]) -> Iterator[EventObject]:
    """Yields the previews that an event of OpenAI's API is. `wanted`: the types of which the client wants any."""
    kind = told["type"].removeprefix("agent.session.turn.")
    if kind == "item.added":
        item = told["item"]
        of = {"message": "agent.message", "reasoning": "agent.thinking"}.get(item["type"], "")
        if of in wanted and item.get("role") != "user":
            yield {"type": "event_start", "event": {"type": of, "id": event_id(item["id"])}}
    elif kind == "output_text.delta" and "agent.message" in wanted:
        delta = {"type": "content_delta", "index": 0, "content": {"type": "text", "text": told["delta"]}}
        yield {"type": "event_delta", "event_id": event_id(told["item_id"]), "delta": delta}
