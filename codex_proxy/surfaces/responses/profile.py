"""The events of `open-responses-server`, to the letter of seed 004: another profile of the same fold.

In and out as of `ResponsesRenderer`; what differs is what the client sees. Events are `data:` lines only, without
sequence numbers; there are no item or part events; every new call repeats `response.in_progress` (or, for a legacy
call, gives `response.tool_calls.created`); calls have status `ready`; all `arguments.done` come at the end; every
end, a failure too, is `response.completed`. OpenAI's own SDKs do not read this: it is for clients of that server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Activity, Reasoning, ToolCall
from codex_proxy.surfaces.base import json_bytes, raw_text
from codex_proxy.surfaces.responses.events import Events, FrameList
from codex_proxy.surfaces.responses.output import OutputItem, Part
from codex_proxy.surfaces.responses.render import ResponsesRenderer

_CALLS: Final = frozenset({"function_call", "custom_tool_call"})


class OpenResponsesEvents(FrameList):
    """Seed 004's events. `current` gives the response object as it is now."""

    end = b"data: [DONE]\n\n"

    def __init__(self, current: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._current = current
        self._whole_calls: list[dict[str, Any]] = []

    def _add(self, type: str, **fields: Any) -> None:
        self._frame(b"data: %b\n\n" % json_bytes({"type": type, **fields}))

    def begin(self, response: dict[str, Any]) -> None:
        self._add("response.created", response={**response, "status": "in_progress"})
        self._add("response.in_progress", response={**response, "status": "in_progress"})

    def fail(self, failure: Failure) -> None:
        """A failure shows in the last object only; calls that it cut are not finalised."""
        self._whole_calls.clear()

    def finish(self, response: dict[str, Any]) -> None:
        for call in self._whole_calls:
            self._add("response.function_call_arguments.done", **call)
        self._add("response.completed", response={**response, "status": "completed"})

    def item_added(self, output: OutputItem) -> None:
        if output.kind not in _CALLS:
            return
        if isinstance(output.item, ToolCall) and output.item.kind == "legacy":
            self._add("response.tool_calls.created", **_place(output), tool_call=ready(output))
        else:
            self._add("response.in_progress", response=self._current())

    def part_added(self, output: OutputItem, part: Part) -> None:
        said = "output_text" if output.kind == "message" else "function_call_arguments"
        part.head = b"data: " + json_bytes({"type": f"response.{said}.delta", **_place(output)})[:-1]

    def deltas(self, output: OutputItem, part: Part, fragments: list[bytes]) -> None:
        for fragment in fragments:
            self._frame(b'%b,"delta":%b}\n\n' % (part.head, fragment))

    def part_done(self, output: OutputItem, part: Part) -> None:
        legacy = isinstance(output.item, ToolCall) and output.item.kind == "legacy"
        if output.kind in _CALLS and not legacy:
            whole = {"id": raw_text(output.id), "output_index": output.index}
            self._whole_calls.append(whole | {"arguments": msgspec.Raw(part.whole())})

    def item_done(self, output: OutputItem) -> None:
        """There is no such event."""


def _place(output: OutputItem) -> dict[str, Any]:
    return {"item_id": raw_text(output.id), "output_index": output.index}


def ready(output: OutputItem) -> dict[str, Any]:
    """A call of the client's is `ready` for it from the moment its name is known."""
    whole = output.whole()
    return whole | {"status": "ready"} if output.kind in _CALLS else whole


class OpenResponsesRenderer(ResponsesRenderer):
    """`PROXY_RESPONSES_PROFILE=open-responses-server`."""

    unshown = (Reasoning, Activity)

    def _events_of_profile(self) -> Events:
        return OpenResponsesEvents(self._current)

    def _whole_output(self) -> list[dict[str, Any]]:
        return [ready(output) for output in self._output]
