"""A history in which outputs directly follow the calls of a message, in order, as models demand."""

from __future__ import annotations

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, TextPart


class HistoryWithCalls:
    """Keeps a message's calls, their outputs and the items between them until `finish_calls`."""

    def __init__(self) -> None:
        self.items: list[HistoryItem] = []
        self.calls: dict[str, HistoryCall] = {}
        """The calls since the last `finish_calls`."""
        self.outputs: dict[str, HistoryOutput] = {}
        self._beside: list[HistoryItem] = []

    def add(self, item: HistoryItem) -> None:
        """Adds an item; one behind a call is kept until `finish_calls`."""
        (self._beside if self.calls else self.items).append(item)

    def add_call(self, call: HistoryCall) -> None:
        self.calls[call.call_id] = call
        self.items.append(call)

    @property
    def unanswered(self) -> list[HistoryCall]:
        return [call for call_id, call in self.calls.items() if call_id not in self.outputs]

    def finish_calls(self, missing: str = "") -> None:
        """Adds each call's output (else `missing`), then the items between them."""
        for call_id in self.calls:
            self.items.append(self.outputs.get(call_id) or HistoryOutput(call_id, (TextPart(missing),)))
        self.items += self._beside
        self.calls, self.outputs, self._beside = {}, {}, []
