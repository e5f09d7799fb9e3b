"""Encodes Responses events as numbered SSE frames. Sources: docs/wire-rules.md#the-responses-stream,
docs/contract.md#events-of-a-response, docs/contract.md#both-apis (the end).

An output item gets `output_item.done` when the next one begins or the turn ends, since only the last of a cut response
is `incomplete`. This server's items keep their own status.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Failure
from codex_proxy.core.items import ToolCall
from codex_proxy.surfaces.answers.renderer import json_bytes, json_text, raw_text
from codex_proxy.surfaces.errors import error_body, row_of, status_of
from codex_proxy.surfaces.responses import mcp
from codex_proxy.surfaces.responses.output import ACTIVITY_TYPE, OutputItem, Part, empty_part, text_part

DONE: Final = b"event: done\ndata: [DONE]\n\n"

DELTAS: Final = {
    ("message", "text"): "response.output_text.delta",
    ("message", "refusal"): "response.refusal.delta",
    ("reasoning", "summary"): "response.reasoning_summary_text.delta",
    ("function_call", "arguments"): "response.function_call_arguments.delta",
    ("custom_tool_call", "arguments"): "response.custom_tool_call_input.delta",
    (mcp.CALL_TYPE, "arguments"): "response.mcp_call_arguments.delta",
    (ACTIVITY_TYPE, "output"): f"{ACTIVITY_TYPE}.output.delta",
}
"""The event's name by kind of item and part."""

_WHOLE_TEXTS: Final = {
    "text": ("response.output_text.done", "text"),
    "refusal": ("response.refusal.done", "refusal"),
    "summary": ("response.reasoning_summary_text.done", "text"),
}
_STAGED_KINDS: Final = frozenset({mcp.LIST_TYPE, mcp.CALL_TYPE})
"""Kinds with events for their beginning and end."""


def payload_of(frame: bytes) -> bytes:
    """Returns the JSON in a frame, for a WebSocket."""
    return frame.partition(b"data: ")[2].rstrip(b"\n")


def socket_error(failure: Failure) -> bytes:
    """Returns the WebSocket message for a failure with an HTTP status. Source: Open Responses."""
    body = msgspec.json.decode(error_body(failure, "responses"))
    return json_bytes({"type": "error", "status": status_of(failure, "responses"), **body})


class _Steer(msgspec.Struct, tag_field="type", tag="response.steer"):
    input: msgspec.Raw
    previous_response_id: str = ""


def refused_steer(frame: str | bytes) -> bytes | None:
    """Returns the event that gives the input of a frame `response.steer` back to the client, since no response takes
    it; None for any other frame.
    """
    if ("response.steer" if isinstance(frame, str) else b"response.steer") not in frame:  # type: ignore[operator]
        return None
    try:
        given = msgspec.json.decode(frame, type=_Steer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response that goes on takes no further input. Send it with 'response.create' when it has ended.",
    }
    steer = {"input": given.input, "previous_response_id": raw_text(given.previous_response_id)}
    return json_bytes({"type": "response.steer.failed", "error": error, "steer": steer, "sequence_number": 0})


class ResponseEvents:
    """Encodes a response's events as SSE frames, and collects these until `take`. `number`: the sequence number of the
    next event.
    """

    end = DONE
    """The bytes after the last event."""

    def __init__(self) -> None:
        self.number = 0
        self._frames: list[bytes] = []

    def take(self) -> list[bytes]:
        """Returns the new frames; the last has the number `number - 1`."""
        taken, self._frames = self._frames, []
        return taken

    def _add(self, type: str, **fields: Any) -> None:
        body = json_bytes({"type": type, **fields, "sequence_number": self.number})
        self._frames.append(b"event: %b\ndata: %b\n\n" % (type.encode(), body))
        self.number += 1

    # --- the response ---------------------------------------------------------------------------

    def begin(self, response: dict[str, Any]) -> None:
        self._add("response.created", response=response)
        self._add("response.in_progress", response={**response, "status": "in_progress"})

    def fail(self, failure: Failure) -> None:
        """Sends the error flat (OpenAI) and nested (Open Responses)."""
        row = row_of(failure, "responses")
        error = {
            "code": None if row.code is None else raw_text(row.code),
            "message": raw_text(failure.message),
            "param": None if failure.param is None else raw_text(failure.param),
        }
        self._add("error", **error, error={"type": row.type, **error})

    def finish(self, response: dict[str, Any]) -> None:
        status = response["status"]
        # The SDKs know no event for `cancelled`; of the ends that they do know this one promises nothing.
        end = "incomplete" if status == "cancelled" else status
        self._add(f"response.{end}", response=response)

    # --- items and their parts ------------------------------------------------------------------

    def send_item_added(self, output: OutputItem) -> None:
        item = output.whole()
        commands: list[str] = []
        if output.kind == "shell_call":
            commands = item["action"]["commands"]
            item["action"] |= {"commands": []}
        self._add("response.output_item.added", output_index=output.index, item=item)
        for index, command in enumerate(commands):
            self._send_command(output, index, command)
        self.send_item_stage(output, "in_progress")

    def _send_command(self, output: OutputItem, index: int, command: str) -> None:
        place = {"command_index": index, "output_index": output.index}
        self._add("response.shell_call_command.added", **place, command="")
        self._add("response.shell_call_command.delta", **place, delta=command)
        self._add("response.shell_call_command.done", **place, command=command)

    def send_part_added(self, output: OutputItem, part: Part) -> None:
        position = self._position(output, part)
        if output.kind == "message":
            self._add("response.content_part.added", **position, part=empty_part(part))
        elif output.kind == "reasoning":
            self._add("response.reasoning_summary_part.added", **position, part=empty_part(part))
        type = DELTAS[output.kind, part.key[0]]
        logprobs: dict[str, Any] = {"logprobs": []} if part.key[0] == "text" else {}
        constant = json_bytes({"type": type, **position, **logprobs})
        part.head = b'event: %b\ndata: %b,"sequence_number":' % (type.encode(), constant[:-1])

    def send_deltas(self, output: OutputItem, part: Part, fragments: list[bytes]) -> None:
        head = part.head
        self._frames += [
            b'%b%d,"delta":%b}\n\n' % (head, number, fragment)
            for number, fragment in enumerate(fragments, self.number)
        ]
        self.number += len(fragments)

    def send_annotation_added(self, output: OutputItem, part: Part) -> None:
        numbered = {"annotation_index": len(part.annotations) - 1, "annotation": part.annotations[-1]}
        self._add("response.output_text.annotation.added", **self._position(output, part), **numbered)

    def send_part_done(self, output: OutputItem, part: Part) -> None:
        position = self._position(output, part)
        kind = part.key[0]
        whole = msgspec.Raw(part.whole())
        if kind in _WHOLE_TEXTS:
            type, field = _WHOLE_TEXTS[kind]
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
            self._add(type, **position, **{field: whole}, **logprobs)
            self._add(
                "response.content_part.done"
                if output.kind == "message"
                else "response.reasoning_summary_part.done",
                **position,
                part=text_part(part),
            )
        elif output.kind == "function_call" and isinstance(output.item, ToolCall):
            name = msgspec.Raw(json_text(output.tool_name.name))
            self._add("response.function_call_arguments.done", **position, name=name, arguments=whole)
        elif output.kind == "custom_tool_call":
            self._add("response.custom_tool_call_input.done", **position, input=whole)
        elif output.kind == mcp.CALL_TYPE:
            self._add("response.mcp_call_arguments.done", **position, arguments=whole)

    def send_item_stage(self, output: OutputItem, stage: str) -> None:
        """Adds the event of an MCP item: `in_progress`, `completed`, `failed`."""
        if output.kind in _STAGED_KINDS:
            position = {"item_id": output.id, "output_index": output.index}
            self._add(f"response.{output.kind}.{stage}", **position)

    def send_hosted(self, output: OutputItem, type: str, fields: dict[str, msgspec.Raw]) -> None:
        """Adds an event of a tool that the model server runs. Nobody here has chosen the names of its fields."""
        place = {"item_id": output.id, "output_index": output.index, "sequence_number": self.number}
        body = json_bytes({**fields, "type": type, **place})
        self._frames.append(b"event: %b\ndata: %b\n\n" % (type.encode(), body))
        self.number += 1

    def send_compacting(self, output: OutputItem) -> None:
        """Sends that the summary of a compaction is being written."""
        position = {"item_id": output.id, "output_index": output.index}
        self._add("response.compaction.compacting", **position)

    def send_item_done(self, output: OutputItem) -> None:
        output.done = output.whole()
        self._add("response.output_item.done", output_index=output.index, item=output.done)

    @staticmethod
    def _position(output: OutputItem, part: Part) -> dict[str, Any]:
        position: dict[str, Any] = {"item_id": output.id, "output_index": output.index}
        if output.kind == "message":
            position["content_index"] = part.index
        elif output.kind == "reasoning":
            position["summary_index"] = part.index
        return position


class OutputOrder:
    def __init__(self, events: ResponseEvents) -> None:
        self.items: list[OutputItem] = []
        self._events = events
        self._end_statuses: dict[int, str] = {}
        """The statuses of ended items without `output_item.done`, by index."""
        self._done = 0

    def add(self, output: OutputItem) -> None:
        """Sends `output_item.done` of ended items, then `output_item.added`."""
        output.index = len(self.items)
        self.items.append(output)
        self._close_ended_items()
        self._events.send_item_added(output)

    def end_item(self, output: OutputItem, status: str) -> None:
        """Ends the item's last part; `output_item.done` follows later."""
        if output.index is None:
            return
        if output.parts:
            self._events.send_part_done(output, output.parts[-1])
        if output.made_by_server and status != "incomplete":
            self._events.send_item_stage(output, status)
        self._end_statuses[output.index] = status
        self._close_ended_items()

    def end(self, response_status: str) -> None:
        """Sends missing `output_item.done`; only a cut response's last item is `incomplete`."""
        for output in self.items[self._done :]:  # open ones too, which an exception may have left
            if output.index not in self._end_statuses:
                self.end_item(output, "incomplete")
        cut = response_status == "incomplete" or (
            response_status in ("failed", "cancelled")
            and self._end_statuses.get(len(self.items) - 1) == "incomplete"
        )
        while self._done < len(self.items):
            last = self._done == len(self.items) - 1
            self._close("incomplete" if cut and last else "completed")

    def _close_ended_items(self) -> None:
        while self._done in self._end_statuses:
            output = self.items[self._done]
            last = self._done == len(self.items) - 1
            stays = output.made_by_server and self._end_statuses[self._done] != "incomplete"
            if output.awaiting or (last and not stays):
                return
            self._close("completed")

    def _close(self, status: str) -> None:
        """Ends the first item that is not done, with `status` unless it has its own."""
        output = self.items[self._done]
        ended = self._end_statuses.pop(self._done)
        self._done += 1
        if output.made_by_server:
            status = self._status_of_server_item(output, ended, status)
        elif ended == "failed" and output.kind == ACTIVITY_TYPE:
            status = "failed"
        output.status = status
        self._events.send_item_done(output)

    def _status_of_server_item(self, output: OutputItem, ended: str, status: str) -> str:
        """Returns the item's status. If the item was cut off, this is `status` or, if other items follow, `failed`,
        with an output that says so.
        """
        if ended != "incomplete":
            return ended
        if status == "completed" and output.kind == mcp.CALL_TYPE:
            output.printed[:] = [mcp.CUT_OFF]
            self._events.send_item_stage(output, "failed")
            return "failed"
        return status
