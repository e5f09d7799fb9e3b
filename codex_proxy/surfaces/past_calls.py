"""A history in which outputs follow directly after the calls of one message, in their order: models accept no other,
clients send any.
"""

from __future__ import annotations

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, TextPart


class HistoryWithCalls:
    """Collects a history in `items`. Calls of a message, their outputs and what comes with them are kept until `settle`
    adds the rest.
    """

    def __init__(self) -> None:
        self.items: list[HistoryItem] = []
        self.calls: dict[str, HistoryCall] = {}
        """The calls that are not settled yet, by their ids."""
        self.outputs: dict[str, HistoryOutput] = {}
        self._beside: list[HistoryItem] = []

    def add(self, item: HistoryItem) -> None:
        """Adds an item, at once or after the outputs of unsettled calls."""
        (self._beside if self.calls else self.items).append(item)

    def add_call(self, call: HistoryCall) -> None:
        self.calls[call.call_id] = call
        self.items.append(call)

    @property
    def unanswered(self) -> list[HistoryCall]:
        """The calls that have no output yet."""
        return [call for call_id, call in self.calls.items() if call_id not in self.outputs]

    def settle(self, missing: str = "") -> None:
        """Adds the output of each call (`missing` for a missing one), then what came with the outputs."""
        for call_id in self.calls:
            self.items.append(self.outputs.get(call_id) or HistoryOutput(call_id, (TextPart(missing),)))
        self.items += self._beside
        self.calls, self.outputs, self._beside = {}, {}, []
