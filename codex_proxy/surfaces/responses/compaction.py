"""Compaction: a summary by the plain model takes the place of what was said before. It is asked for at
`/responses/compact`, or by a last item `compaction_trigger`. Source:
docs/wire-rules.md#compaction-counting-and-websocket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.events import ItemStarted, RawItem, Stop, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, Message, TextPart
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.responses.history import encode_summary, note_unrun_call
from codex_proxy.surfaces.responses.output import TEXT_KEY, OutputItem, PartKey
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.responses.response_object import status_of

COMPACTION_WORDS: Final = (
    "Sum up the conversation so far, for yourself: you will go on from your summary and see nothing else of it. "
    "Keep every fact, decision, name, number and open question that may matter later, and the user's own wishes "
    "in the user's words. Answer with the summary only."
)
NO_SUMMARY: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The model gave no summary, so nothing was compacted. Try again."
)
_CUT: Final = {
    "incomplete": Failure(
        FaultKind.UPSTREAM_ERROR,
        "The model's summary was cut off, so nothing was compacted. Compact a shorter conversation, or try again.",
    ),
    "cancelled": Failure(
        FaultKind.UPSTREAM_ERROR, "The model ended its summary early, so nothing was compacted. Try again."
    ),
}
"""By status: a part of a summary must not take the place of a conversation."""


def compaction_turn(turn: Turn, history: tuple[HistoryItem, ...]) -> Turn:
    """Returns a turn of the plain model, without tools and format, whose answer is the summary of `history`."""
    wish = HistoryMessage("user", (TextPart(COMPACTION_WORDS),))
    return msgspec.structs.replace(
        turn,
        history=(*map(note_unrun_call, history), wish),
        mode="model",
        tools=(),
        tool_choice="auto",
        web_search=False,
        hosted=None,
        output_schema=None,
        verbosity=None,
        stop=(),
    )


def summary_in(response: Mapping[str, Any]) -> str:
    """Returns the summary in a response; empty lines separate its parts."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "\n\n".join(part["text"] for part in parts if part["type"] == "output_text")


def lacks_summary(status: str, summary: str) -> Failure | None:
    """Returns why the answer of a `compaction_turn` is no summary to go on from; None if it is one. `status`: that of
    its response.
    """
    return _CUT.get(status) or (None if summary.strip() else NO_SUMMARY)


class _Compaction(OutputItem):
    """The output item. `printed` has the summary."""

    __slots__ = ()

    def whole(self) -> dict[str, Any]:
        content = encode_summary("".join(self.printed))
        return {"type": self.kind, "id": self.id, "encrypted_content": content}

    def tokens(self) -> int:
        return estimate_all(self.printed)


class CompactionRenderer(ResponsesRenderer):
    """Renders the answer to a `compaction_trigger`: all messages as one item `compaction`, when the turn has ended. A
    turn without a whole summary fails and has no item, so that a chain goes on from what was said.
    """

    _compaction: _Compaction | None = None

    def _on_item_started(self, event: ItemStarted) -> None:
        item = event.item
        if not isinstance(item, Message) or item.choice:
            return
        self._begin()
        if self._compaction is not None:
            self._compaction.printed.append("\n\n")
        else:
            self._compaction = _Compaction(item, "compaction", self._ids.new("cmp_"))
        self._items[item.id] = self._compaction

    def _add_text(self, id: str, key: PartKey, *texts: str) -> None:
        output = self._items.get(id)
        if output is not None and key == TEXT_KEY:
            output.printed += texts

    def _on_item_ended(self, event: object) -> None:
        """Leaves the item open: another message may follow."""

    def _on_raw_item(self, event: RawItem) -> None:
        """Leaves out reasoning."""

    def _on_turn_ended(self, event: TurnEnded) -> None:
        if event.failure is None and event.stop != Stop.INTERRUPTED:
            summary = "" if self._compaction is None else "".join(self._compaction.printed)
            failure = lacks_summary(status_of(event.stop), summary)
            if failure is not None:
                event = TurnEnded.with_failure(failure)
            elif self._compaction is not None:
                self._announce(self._compaction)
                self._events.send_compacting(self._compaction)
        super()._on_turn_ended(event)
