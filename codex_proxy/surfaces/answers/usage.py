"""A turn's tokens, reported or estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from codex_proxy.core.events import Spending, StepCompleted, TurnEnded, Usage, UsageReported
from codex_proxy.core.items import HistoryItem, images_in, texts_in
from codex_proxy.core.media import url_tokens
from codex_proxy.core.tokens import estimate_all, estimate_tokens

_ENOUGH: Final = 128 * 1024
"""The bytes of JSON strings that are decoded to estimate their tokens: megabytes of escapes take up to a second."""
_LONGEST_ESCAPE: Final = 12
"""The bytes of a surrogate pair in escapes."""
_TRIGGERS: Final = frozenset({"token_count", "task_complete", "provider"})


def tokens_in(history: Sequence[HistoryItem]) -> int:
    """Estimates the tokens of a history, without raw items."""
    return estimate_all(texts_in(history)) + sum(url_tokens(image.url) for image in images_in(history))


def text_tokens(json: bytes) -> int:
    """Estimates the tokens of a JSON document as written."""
    return estimate_tokens(bytes(json).decode("utf-8", "replace"))


def json_tokens(texts: Iterable[bytes]) -> int:
    """Estimates the tokens of JSON strings, decoded. Only the first ones, up to `_ENOUGH` bytes, are counted; the
    others are taken to be like them.
    """
    tokens = counted = rest = 0
    for text in texts:
        size = min(len(text), _ENOUGH - counted)
        tokens += estimate_tokens(_beginning(text, size))
        counted += size
        rest += len(text) - size
    return tokens + tokens * rest // max(1, counted)


def _beginning(text: bytes, size: int) -> str:
    """Decodes the first `size` bytes of a JSON string, without the character or escape that this cuts."""
    if size == len(text):
        return msgspec.json.decode(text, type=str)
    for end in range(size, max(0, size - _LONGEST_ESCAPE), -1):
        with suppress(ValueError):
            return msgspec.json.decode(text[:end] + b'"', type=str)
    return ""


class TurnTokens:
    """The tokens of a turn, for the usage in its answer: as the agent reports them, else estimated. `trigger`: the
    type of the agent's message that reported them or ended the turn.
    """

    def __init__(self) -> None:
        self.reported: Usage | None = None
        self.trigger = "provider"
        self.cut = False
        """Whether a model call was cut off, whose tokens are not reported."""
        self._total_reported = False
        self._last_input = 0
        """The input of the last reported model call."""
        self.partial = False
        """Whether calls' tokens are missing in `reported`."""

    @property
    def is_estimated(self) -> bool:
        return self.reported is None or self.cut or self.partial

    def add_total(self, event: UsageReported) -> None:
        """Takes the turn's total so far, which replaces an earlier one."""
        more = event.usage.input - (self.reported.input if self.reported and self._total_reported else 0)
        self._last_input = more if more > 0 else self._last_input
        self.reported = event.usage
        self.trigger = event.trigger
        self.partial = event.partial
        self._total_reported = True

    def add_call(self, event: StepCompleted) -> None:
        """Adds a call's tokens, unless the agent reports totals."""
        if event.usage is None or self._total_reported:
            return
        self._last_input = event.usage.input
        self.reported = event.usage if self.reported is None else self.reported + event.usage
        self.trigger = "token_count"

    def end(self, event: TurnEnded) -> None:
        self.cut = event.cut
        trigger = event.trigger
        if self.reported is None:
            self.trigger = trigger if trigger in _TRIGGERS else "provider"

    def tokens(self, *, prompt: Callable[[], int], answer: Callable[[], int]) -> Usage:
        """Returns the turn's tokens. `prompt` and `answer` return estimates of the input and the output: they are used
        if nothing was reported and, where they are higher, if the reports lack model calls. If only the last call was
        cut off, the input of the call before counts as its input.
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
        """Returns the tokens for the usage report; none if nothing was reported and nothing was answered. `prompt` and
        `answer` return estimates.
        """
        if self.reported is None and not answer():
            return Spending(failed=failed)
        tokens = self.tokens(prompt=prompt, answer=answer)
        return Spending(tokens, estimated=self.is_estimated, failed=failed)
