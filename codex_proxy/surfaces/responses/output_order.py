"""Decides when each output item of a response gets its `output_item.done` event ("is done"), and with which status.

Items are done in the order in which they were sent, each when the next one begins or the turn has ended. Only then
is it known whether it is the last one: the last item of a response that was cut off is `incomplete`. An item that
this server made (see `OutputItem.made_by_server`) keeps the status with which it ended. Input: items and how they
ended. Output: calls of the methods of an `Events` encoder.
"""

from __future__ import annotations

from codex_proxy.surfaces.responses import mcp_items
from codex_proxy.surfaces.responses.events import Events
from codex_proxy.surfaces.responses.output import ACTIVITY_TYPE, OutputItem


class OutputOrder:
    """The output items of one response in the order in which they are sent, and the status with which each ends.
    `events` encodes their events.
    """

    def __init__(self, events: Events) -> None:
        self.items: list[OutputItem] = []
        self._events = events
        self._over_with: dict[int, str] = {}
        """The status with which each item ended, by its index, for items that have ended and are not done."""
        self._done = 0
        """The number of items that are done."""

    def add(self, output: OutputItem) -> None:
        """Adds an item, and sends its `output_item.added`. Before that, sends `output_item.done` of the items that
        have ended.
        """
        output.index = len(self.items)
        self.items.append(output)
        self._close_what_can_be()
        self._events.item_added(output)

    def over(self, output: OutputItem, status: str) -> None:
        """Records that an item has ended with this status (`incomplete`: it was cut off), and ends its last part;
        `output_item.done` follows later. Does nothing for an item that was not sent.
        """
        if output.index is None:
            return
        if output.parts:
            self._events.part_done(output, output.parts[-1])
        if output.made_by_server and status != "incomplete":
            self._events.item_stage(output, status)
        self._over_with[output.index] = status
        self._close_what_can_be()

    def end(self, response_status: str) -> None:
        """Sends `output_item.done` of all items that are not done, at the end of the turn. `response_status` is the
        final status of the response. Only the last item of a response that was cut off is `incomplete`.
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
        """Sends `output_item.done` of the first item that is not done, with this `status`. Exceptions: an item that
        this server made (see `_status_of_server_item`), and an activity that failed, whose status is `failed`.
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
        """Returns the final status of an item that this server made. `ended` is the status with which it ended;
        unless that is `incomplete` (it was cut off), it is final. An item that was cut off gets `status`, but a
        call that is not the last item gets `failed`, with an output that says so, because only the last item may be
        incomplete.
        """
        if ended != "incomplete":
            return ended
        if status == "completed" and output.kind == mcp_items.CALL:
            output.printed[:] = [mcp_items.CUT_OFF]
            self._events.item_stage(output, "failed")
            return "failed"
        return status
