"""The events of `open-responses-server`. A call of this server is a function call `in_progress` until it has ended; its
result is an item and a text delta. Source: docs/contract.md#the-profile-of-open-responses-server.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.events import ItemEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, McpApproval, McpCall, McpTools, Reasoning, ToolCall
from codex_proxy.surfaces.answers.renderer import json_bytes, raw_text
from codex_proxy.surfaces.responses import mcp
from codex_proxy.surfaces.responses.events import ResponseEvents
from codex_proxy.surfaces.responses.output import ARGUMENTS_KEY, TEXT_KEY, OutputItem, Part
from codex_proxy.surfaces.responses.render import ResponsesRenderer

Profile: TypeAlias = Literal["openai", "open-responses-server"]
"""The form of events (`PROXY_RESPONSES_PROFILE`)."""

_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_RESULT: Final = "function_call_output"


class OpenResponsesEvents(ResponseEvents):
    """The events of this profile. `current` returns the current response object."""

    end = b"data: [DONE]\n\n"

    def __init__(self, current: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._current = current
        self._whole_calls: list[dict[str, Any]] = []

    def _add(self, type: str, **fields: Any) -> None:
        self._frames.append(b"data: %b\n\n" % json_bytes({"type": type, **fields}))
        self.number += 1

    def begin(self, response: dict[str, Any]) -> None:
        self._add("response.created", response={**response, "status": "in_progress"})
        self._add("response.in_progress", response={**response, "status": "in_progress"})

    def fail(self, failure: Failure) -> None:
        """Sends the last event, whose response has the failure."""
        # Calls get no `arguments.done`, since they may be cut off.
        self._whole_calls.clear()

    def finish(self, response: dict[str, Any]) -> None:
        for call in self._whole_calls:
            self._add("response.function_call_arguments.done", **call)
        self._add("response.completed", response={**response, "status": "completed"})

    def send_item_added(self, output: OutputItem) -> None:
        if output.kind not in _CALLS and output.kind != mcp.CALL_TYPE:
            return
        if _is_legacy(output):
            self._add("response.tool_calls.created", **_place(output), tool_call=item_object(output))
        else:
            self._add("response.in_progress", response=self._current())

    def send_part_added(self, output: OutputItem, part: Part) -> None:
        name = "function_call_arguments" if part.key == ARGUMENTS_KEY else "output_text"
        part.head = b"data: " + json_bytes({"type": f"response.{name}.delta", **_place(output)})[:-1]

    def send_deltas(self, output: OutputItem, part: Part, fragments: list[bytes]) -> None:
        self._frames += [b'%b,"delta":%b}\n\n' % (part.head, fragment) for fragment in fragments]
        self.number += len(fragments)

    def send_part_done(self, output: OutputItem, part: Part) -> None:
        whole = {"id": output.id, "output_index": output.index}
        if _is_legacy(output):
            return
        if output.kind in _CALLS:
            self._whole_calls.append(whole | {"arguments": msgspec.Raw(part.whole())})
        elif output.kind == mcp.CALL_TYPE:
            self._add("response.function_call_arguments.done", **whole, arguments=msgspec.Raw(part.whole()))

    def send_annotation_added(self, output: OutputItem, part: Part) -> None:
        """Sends nothing: this profile has no such event."""

    def send_item_stage(self, output: OutputItem, stage: str) -> None:
        """Sends nothing: this profile has no such event."""

    def send_item_done(self, output: OutputItem) -> None:
        """Sends nothing: this profile has no such event."""

    def send_compacting(self, output: OutputItem) -> None:
        """Sends nothing: this profile has no such event."""


def _is_legacy(output: OutputItem) -> bool:
    """Whether the model server sent `function_call`, which has other events."""
    item = output.item
    if isinstance(item, ToolCall) and item.kind == "legacy":
        return True
    return isinstance(item, ToolCall | McpCall) and item.old_form


def _place(output: OutputItem) -> dict[str, Any]:
    return {"item_id": output.id, "output_index": output.index}


def item_object(output: OutputItem) -> dict[str, Any]:
    """Returns the item in this profile's form: calls of the client's tools are `ready`, this server's calls are
    function calls.
    """
    if isinstance(output.item, McpCall) and output.kind == mcp.CALL_TYPE:
        return _as_function(output, output.item)
    whole = output.whole()
    return whole | {"status": "ready"} if output.kind in _CALLS else whole


def _as_function(output: OutputItem, item: McpCall) -> dict[str, Any]:
    whole = output.whole()
    kept = {name: whole[name] for name in ("id", "name", "arguments", "status")}
    return {"type": "function_call", "call_id": raw_text(item.call_id), **kept}


class _Result(OutputItem):
    """The result of a call that this server ran, as an item."""

    __slots__ = ()

    def whole(self) -> dict[str, Any]:
        assert isinstance(self.item, McpCall)
        return {
            "type": self.kind,
            "id": self.id,
            "call_id": raw_text(self.item.call_id),
            "output": self.text(),
            "status": self.status,
        }

    def tokens(self) -> int:
        """Returns 0: the model did not write the text."""
        return 0


class OpenResponsesRenderer(ResponsesRenderer):
    unshown = (Reasoning, Activity, McpTools, McpApproval)

    def _new_events(self) -> ResponseEvents:
        renderer = weakref.proxy(self)  # the method itself would hold this renderer, which holds the events
        return OpenResponsesEvents(lambda: renderer._current())  # noqa: PLW0108

    def sends_as_event(self, failure: Failure) -> bool:
        # But for a context that is too long: `truncation: auto` tries a shorter one before anything is sent.
        return failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED

    def _on_item_ended(self, event: ItemEnded) -> None:
        super()._on_item_ended(event)
        output = self._items.get(event.id)
        if output is not None and output.kind == mcp.CALL_TYPE and event.status != "incomplete":
            result = _Result(output.item, _RESULT, self._ids.new("fco_"))
            self._announce(result)
            part = self._new_part(result, TEXT_KEY)
            self._events.send_deltas(result, part, part.add([mcp.texts_as_array("".join(output.printed))]))
            self._order.end_item(result, "completed")

    def _whole_output(self) -> list[dict[str, Any]]:
        return [item_object(output) for output in self._output]


# --- the profile that the operator has set ------------------------------------------------------


def new_events(profile: Profile, response: dict[str, Any]) -> ResponseEvents:
    """Returns an encoder that numbers from 0; its events repeat `response`."""
    return OpenResponsesEvents(lambda: response) if profile == "open-responses-server" else ResponseEvents()


LEAVING_OUT_ORPHANS: Final[frozenset[Profile]] = frozenset({"open-responses-server"})
"""The profiles in which outputs whose calls are nowhere are left out (docs/contract.md#message-validation); in others
they are errors.
"""
STREAM_ENDS: Final[dict[Profile, bytes]] = {
    "openai": ResponseEvents.end,
    "open-responses-server": OpenResponsesEvents.end,
}
"""The bytes after a stream's last event."""


def end_frames(
    profile: Profile, final: dict[str, Any], first: int, failure: Failure | None = None
) -> list[tuple[int, bytes]]:
    """Returns the frames from number `first` on that end a stream with a final object. `failure`: that of the object,
    if known.
    """
    events = new_events(profile, final)
    events.number = first
    if failure is None and final["error"] is not None:
        failure = Failure(FaultKind.UNAVAILABLE, final["error"]["message"])
    if failure is not None:
        events.fail(failure)
    events.finish(final)
    return list(enumerate(events.take(), first))


_LAST_FRAMES: Final = (
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
    b'data: {"type":"response.completed"',
)


def is_last(frame: bytes) -> bool:
    """Whether a frame is the last event, such as `response.completed`."""
    return frame.startswith(_LAST_FRAMES)
