"""Renders what is kept of a session as the events of Anthropic's Managed Agents API: what is kept has to be enough for
that API, too. Nothing of the server serves it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from codex_proxy.parts.sessions.sessions import (
    CallResult,
    Content,
    Entry,
    SessionTurn,
    TurnError,
    UserMessage,
    item_object,
)

_ERRORS: Final[Mapping[str, str]] = {
    "rate_limit_exceeded": "model_rate_limited_error",
    "server_overloaded": "model_overloaded_error",
    "usage_limit_exceeded": "billing_error",
    "credit_balance_exhausted": "billing_error",
    "internal_error": "unknown_error",
}


def anthropic_events(turns: Sequence[SessionTurn], entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns the events of a session's turns and items, both oldest first."""
    return [event for turn in turns for event in _Turn(turn).events(e for e in entries if e.turn == turn.id)]


class _Turn:
    def __init__(self, turn: SessionTurn) -> None:
        self._turn = turn
        self._open: dict[str, str] = {}
        """The ids of the events of open calls, by the calls' ids."""
        self._last_call = ""
        self._waits = False
        """Whether the log says that the session waits."""

    def events(self, entries: Iterator[Entry]) -> Iterator[dict[str, Any]]:
        turn, runs = self._turn, False
        for entry in entries:
            if isinstance(entry.item, UserMessage):
                yield self._event(entry.id, "user.message", content=_content(entry.item.content))
                continue
            if not runs:
                yield self._event(f"{turn.id}_runs", "session.status_running")
                runs = True
            if isinstance(entry.item, CallResult):
                yield from self._result(entry, entry.item)
            else:
                yield from self._of_agent(entry)
        if not runs and turn.started_at is not None:
            yield self._event(f"{turn.id}_runs", "session.status_running")
        yield from self._end()

    def _result(self, entry: Entry, result: CallResult) -> Iterator[dict[str, Any]]:
        if not self._waits:
            yield self._idle(self._last_call)
        output = result.output if result.error is None else result.error
        parts: Content = (
            ({"type": "input_text", "text": output},) if isinstance(output, str) else output or ()
        )
        yield self._event(
            entry.id,
            "user.custom_tool_result",
            custom_tool_use_id=self._open.pop(result.call_id),
            content=_content(parts),
            is_error=not result.success,
        )
        self._waits = bool(self._open)
        if self._open:
            yield self._idle(entry.id)
        else:
            yield self._event(f"{entry.id}_runs", "session.status_running")

    def _of_agent(self, entry: Entry) -> Iterator[dict[str, Any]]:
        shown = item_object(entry)
        kind = shown["type"]
        if kind == "message" and shown["content"]:
            yield self._event(entry.id, "agent.message", content=[{"type": "text", "text": _text(shown)}])
        elif kind == "reasoning":
            yield self._event(entry.id, "agent.thinking")
        elif kind == "function_call":
            self._last_call, self._waits = entry.id, False
            self._open[shown["call_id"]] = f"sevt_{entry.id}"
            yield self._event(
                entry.id, "agent.custom_tool_use", name=shown["name"], input=_object(shown["arguments"])
            )
        elif kind != "message":
            yield from self._own_tool(entry, shown)

    def _own_tool(self, entry: Entry, shown: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        failed = shown["status"] != "completed"
        if shown["type"] == "mcp_call":
            output = shown["error"] if failed else shown["output"]
            names = {"mcp_server_name": shown["server_label"], "name": shown["name"]}
            yield self._event(entry.id, "agent.mcp_tool_use", **names, input=_object(shown["arguments"]))
            use = {"mcp_tool_use_id": f"sevt_{entry.id}"}
            kind = "agent.mcp_tool_result"
        else:
            if shown["type"] == "web_search_call":
                name, given, output = "web_search", {"query": shown["action"]["query"]}, ""
            else:
                name, given, output = "bash", {"command": shown["command"]}, shown["output"]
            yield self._event(entry.id, "agent.tool_use", name=name, input=given)
            use, kind = {"tool_use_id": f"sevt_{entry.id}"}, "agent.tool_result"
        content = [{"type": "text", "text": output}] if output else []
        yield self._event(f"{entry.id}_result", kind, **use, content=content, is_error=failed)

    def _end(self) -> Iterator[dict[str, Any]]:
        turn = self._turn
        if self._open and not self._waits and turn.status != "in_progress":
            yield self._idle(self._last_call)
        if turn.completed_at is None:
            return
        if turn.status == "cancelled":
            yield self._event(f"{turn.id}_interrupt", "user.interrupt")
        if turn.error is not None:
            yield self._event(f"{turn.id}_error", "session.error", error=_error(turn.error))
        reason = "retries_exhausted" if turn.error is not None else "end_turn"
        yield self._event(
            f"{turn.id}_idle", "session.status_idle", stop_reason={"type": reason}, stop_details=None
        )

    def _idle(self, id: str) -> dict[str, Any]:
        """Returns what says that the turn waits, which is not kept: it is behind the last call, and each result."""
        reason = {"type": "requires_action", "event_ids": list(self._open.values())}
        return self._event(f"{id}_waits", "session.status_idle", stop_reason=reason, stop_details=None)

    def _event(self, id: str, kind: str, **fields: Any) -> dict[str, Any]:
        at = datetime.fromtimestamp(self._turn.created_at, UTC).isoformat().replace("+00:00", "Z")
        return {"type": kind, "id": f"sevt_{id}", "processed_at": at, **fields}


def _error(error: TurnError) -> dict[str, Any]:
    kind = _ERRORS.get(error.code, "model_request_failed_error")
    return {"type": kind, "message": error.message, "retry_status": {"type": "exhausted"}}


def _text(shown: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in shown["content"])


def _object(arguments: Any) -> dict[str, Any]:
    """Returns the input of a call, which this API has as an object."""
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _content(parts: Content) -> list[dict[str, Any]]:
    return [_block(part) for part in parts]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
