"""The dialect of a one-shot program: the prompt goes to stdin, text comes from stdout, and an exit status is the end.

It does no IO: every method returns a `Step`, with events for the log and bytes to write.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from codex_proxy.agent_plugin import NOTHING, Ended, SingleTurn, Step, failure_from_exit
from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded, TurnStarted
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, Message, TextPart
from codex_proxy.core.turn import Turn

ANSWER = "answer"
"""The id of the only item of a turn."""

NO_OUTPUT = Failure(
    kind=FaultKind.AGENT_PROTOCOL,
    message="The program ended without an error and without an answer. Run it by hand with the same prompt.",
)


class OneShotTurn(SingleTurn):
    """A `Dialect` for one turn of a one-shot program, which is one child process. It reads chunks of bytes."""

    def __init__(self) -> None:
        # A character may be cut in two by the end of a chunk.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._answering = False

    def begin(self, turn: Turn) -> Step:
        """Writes the prompt and closes stdin, so that the program knows that the prompt is complete."""
        return Step([TurnStarted(model=turn.model)], prompt_of(turn).encode(), close_stdin=True)

    def receive(self, lines: Sequence[bytes]) -> Step:
        """Returns what the program has printed as text of the answer."""
        return Step(self._text(self._decoder.decode(b"".join(lines))))

    def eof(self, ended: Ended) -> Step:
        """Ends the turn. The exit status of the program says whether the answer is complete."""
        if self.ended:
            return NOTHING
        events = self._text(self._decoder.decode(b"", final=True))
        self.ended = True
        if ended.code != 0:
            return Step([*events, TurnEnded(Stop.FAILED, failure=failure_from_exit(ended))])
        if not self._answering:
            return Step([TurnEnded(Stop.FAILED, failure=NO_OUTPUT)])
        return Step([*events, ItemEnded(ANSWER), TurnEnded(Stop.STOP)])

    def _text(self, text: str) -> list[Event]:
        if not text or self.ended:
            return []
        opened: list[Event] = [] if self._answering else [ItemStarted(Message(ANSWER))]
        self._answering = True
        return [*opened, TextDelta(ANSWER, text)]


def prompt_of(turn: Turn) -> str:
    """Returns the prompt: one message unchanged, or a conversation as text with the speaker before each message."""
    if len(turn.history) == 1 and isinstance(turn.history[0], HistoryMessage):
        return _text_of(turn.history[0].parts)
    return "\n\n".join(_labelled(item) for item in turn.history)


def _labelled(item: HistoryItem) -> str:
    if isinstance(item, HistoryMessage):
        return f"{item.role}: {_text_of(item.parts)}"
    if isinstance(item, HistoryCall):
        return f"call of {item.name}: {item.arguments}"
    if isinstance(item, HistoryOutput):
        return f"output of the call: {_text_of(item.parts)}"
    return ""


def _text_of(parts: Sequence[object]) -> str:
    """Returns the text of a message. It has no images: they are refused, since the agent lacks that capability."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))
