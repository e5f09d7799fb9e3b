"""Decides when an output item gets `output_item.done`, and with which status: when the next one begins or the turn
ends, since only the last of a cut response is `incomplete`. This server's items keep their own status.
"""

from __future__ import annotations

from codex_proxy.surfaces.responses import mcp_items
from codex_proxy.surfaces.responses.events import ResponseEvents
from codex_proxy.surfaces.responses.output import ACTIVITY_TYPE, OutputItem


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
        if status == "completed" and output.kind == mcp_items.CALL_TYPE:
            output.printed[:] = [mcp_items.CUT_OFF]
            self._events.send_item_stage(output, "failed")
            return "failed"
        return status
