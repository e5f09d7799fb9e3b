"""Decides when each output item gets `output_item.done`, and with which status: when the next one begins or the turn
ends, because only the last item of a response that was cut off is `incomplete`. Items of this server keep their own
status.
"""

from __future__ import annotations

from codex_proxy.surfaces.responses import mcp_items
from codex_proxy.surfaces.responses.events import ResponseEvents
from codex_proxy.surfaces.responses.output import ACTIVITY_TYPE, OutputItem


class OutputOrder:
    """The output items in the order of sending, and how each ends. `events` encodes."""

    def __init__(self, events: ResponseEvents) -> None:
        self.items: list[OutputItem] = []
        self._events = events
        self._over_with: dict[int, str] = {}
        """The status of items that have ended and are not done, by index."""
        self._done = 0

    def add(self, output: OutputItem) -> None:
        """Adds an item: `output_item.done` of those that have ended, then its `output_item.added`."""
        output.index = len(self.items)
        self.items.append(output)
        self._close_what_can_be()
        self._events.item_added(output)

    def over(self, output: OutputItem, status: str) -> None:
        """Records how a sent item ended, and ends its last part; `output_item.done` follows later."""
        if output.index is None:
            return
        if output.parts:
            self._events.part_done(output, output.parts[-1])
        if output.made_by_server and status != "incomplete":
            self._events.item_stage(output, status)
        self._over_with[output.index] = status
        self._close_what_can_be()

    def end(self, response_status: str) -> None:
        """Sends the missing `output_item.done` at the turn's end; only the last item of a cut response is
        `incomplete`.
        """
        cut = response_status == "incomplete" or (
            response_status in ("failed", "cancelled")
            and self._over_with.get(len(self.items) - 1) == "incomplete"
        )
        while self._done < len(self.items):
            last = self._done == len(self.items) - 1
            self._close("incomplete" if cut and last else "completed")

    def _close_what_can_be(self) -> None:
        while self._done in self._over_with:
            output = self.items[self._done]
            last = self._done == len(self.items) - 1
            stays = output.made_by_server and self._over_with[self._done] != "incomplete"
            if output.awaiting or (last and not stays):
                return
            self._close("completed")

    def _close(self, status: str) -> None:
        """Sends the first missing `output_item.done`, with `status` unless this server made the item or the activity
        failed.
        """
        output = self.items[self._done]
        ended = self._over_with.pop(self._done)
        self._done += 1
        if output.made_by_server:
            status = self._status_of_server_item(output, ended, status)
        elif ended == "failed" and output.kind == ACTIVITY_TYPE:
            status = "failed"
        output.status = status
        self._events.item_done(output)

    def _status_of_server_item(self, output: OutputItem, ended: str, status: str) -> str:
        """Returns the final status of this server's item: its own; if it was cut off, `status`, or `failed` with an
        output if others follow.
        """
        if ended != "incomplete":
            return ended
        if status == "completed" and output.kind == mcp_items.CALL:
            output.printed[:] = [mcp_items.CUT_OFF]
            self._events.item_stage(output, "failed")
            return "failed"
        return status
