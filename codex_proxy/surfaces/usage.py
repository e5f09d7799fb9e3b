"""The tokens of one turn, as the agent reports them or as an estimate.

Input: the usage events of a turn. Output: a `Usage`, and whether it is an estimate. The renderer of each API puts a
`Usage` into the form of that API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from codex_proxy.core.events import Spending, StepCompleted, TurnEnded, Usage, UsageReported
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, TextPart
from codex_proxy.core.tokens import estimate_tokens

_TRIGGERS: Final = frozenset({"token_count", "task_complete", "provider"})


def tokens_in(history: Iterable[HistoryItem]) -> int:
    """Returns an estimate of the tokens of the texts in the history. Images and raw items count nothing."""
    return sum(map(_tokens, history))


def text_tokens(json: bytes) -> int:
    """Returns an estimate of the tokens of a JSON document as it is written, including its keys and punctuation."""
    return estimate_tokens(bytes(json).decode("utf-8", "replace"))


def _tokens(item: HistoryItem) -> int:
    if isinstance(item, HistoryMessage | HistoryOutput):
        return sum(estimate_tokens(part.text) for part in item.parts if isinstance(part, TextPart))
    return estimate_tokens(item.arguments) if isinstance(item, HistoryCall) else 0


def json_tokens(texts: Iterable[bytes]) -> int:
    """Returns an estimate of the tokens of these texts. Each of them is a JSON string (with quotes and escapes),
    which is decoded before it is counted.
    """
    return sum(estimate_tokens(msgspec.json.decode(text, type=str)) for text in texts)


class TurnTokens:
    """Collects the tokens of one turn that the agent reports, and estimates those that it does not report.
    `reported` is None until the agent has reported some. `trigger` is the name of the agent's message that reported
    them or, without one, that ended the turn.
    """

    def __init__(self) -> None:
        self.reported: Usage | None = None
        self.trigger = "provider"
        self.cut = False
        """Whether the server ended the turn during a call of the model, whose tokens are not reported."""
        self._total_reported = False
        self._last_input = 0
        """The input tokens of the last call of the model whose tokens were reported."""
        self.partial = False
        """Whether tokens of calls of the model are missing in `reported`."""

    @property
    def estimated(self) -> bool:
        """Whether the tokens, or some of them, are an estimate."""
        return self.reported is None or self.cut or self.partial

    def add_total(self, event: UsageReported) -> None:
        """Records the agent's total of the turn so far, which replaces an earlier one."""
        more = event.usage.input - (self.reported.input if self.reported and self._total_reported else 0)
        self._last_input = more if more > 0 else self._last_input
        self.reported = event.usage
        self.trigger = event.trigger
        self.partial = event.partial
        self._total_reported = True

    def add_call(self, event: StepCompleted) -> None:
        """Adds the tokens of one call of the model. Ignored if the agent also reports totals."""
        if event.usage is None or self._total_reported:
            return
        self._last_input = event.usage.input
        self.reported = event.usage if self.reported is None else self.reported + event.usage
        self.trigger = "token_count"

    def end(self, event: TurnEnded) -> None:
        """Records the end of the turn: whether it cut off a call of the model, whose tokens are not reported and so
        estimated. If the agent has reported no tokens, `trigger` becomes that of the event.
        """
        self.cut = event.cut
        trigger = event.trigger
        if self.reported is None:
            self.trigger = trigger if trigger in _TRIGGERS else "provider"

    def tokens(self, *, prompt: Callable[[], int], answer: Callable[[], int]) -> Usage:
        """Returns the tokens that the agent reported. If it reported none, or not those of every call of the model,
        returns the estimates of `prompt` and `answer` where they are higher (if it reported none, at least 1 each).
        If only the last call was cut off, its input is estimated as that of the call before it, whose input it
        begins with, and the output as that of the answer.
        """
        if self.reported is None:
            return Usage(input=max(1, prompt()), output=max(1, answer()))
        if self.partial:
            most = max(self.reported.input, prompt()), max(self.reported.output, answer())
            return msgspec.structs.replace(self.reported, input=most[0], output=most[1])
        if self.cut:  # what was reported is of the calls before the last one
            return msgspec.structs.replace(
                self.reported,
                input=self.reported.input + self._last_input,
                output=max(self.reported.output, answer()),
            )
        return self.reported

    def spending(self, *, prompt: Callable[[], int], answer: Callable[[], int], failed: bool) -> Spending:
        """Returns the tokens of the turn so far for the usage report, reported or estimated; zero if nothing was
        reported and there is no answer yet. `prompt` and `answer` return estimates of the tokens. `failed` (whether
        the turn has failed) becomes the field of the result.
        """
        if self.reported is None and not answer():
            return Spending(failed=failed)
        tokens = self.tokens(prompt=prompt, answer=answer)
        return Spending(tokens, estimated=self.estimated, failed=failed)
