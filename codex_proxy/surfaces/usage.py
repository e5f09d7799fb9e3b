"""A turn's tokens, reported or estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from codex_proxy.core.events import Spending, StepCompleted, TurnEnded, Usage, UsageReported
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    texts_of,
)
from codex_proxy.core.media import image_info
from codex_proxy.core.tokens import estimate_all, estimate_tokens

_TRIGGERS: Final = frozenset({"token_count", "task_complete", "provider"})


_TILE: Final = 512
_TILE_TOKENS: Final = 170
_PATCH: Final = 32
_PATCH_TOKENS: Final = 1.7
_MAX_IMAGE_TOKENS: Final = 2_700
"""The tokens of the largest image, and of one of unknown size."""


def tokens_in(history: Sequence[HistoryItem]) -> int:
    """Estimates the tokens of a history, without raw items."""
    images = (part.url for part in parts_in(history) if isinstance(part, ImagePart))
    return estimate_all(texts_in(history)) + sum(map(url_tokens, images))


def url_tokens(url: str) -> int:
    """Estimates the tokens of an image by its data URL; an upper bound, as `image_tokens`."""
    return image_tokens(url.partition(";base64,")[2])


def image_tokens(payload: str) -> int:
    """Returns an upper bound of the tokens of an image in base64; of one that cannot be read, the most."""
    info = image_info(payload)
    if info is None:
        return _MAX_IMAGE_TOKENS
    tiles = math.ceil(info.width / _TILE) * math.ceil(info.height / _TILE) * _TILE_TOKENS
    patches = math.ceil(info.width / _PATCH) * math.ceil(info.height / _PATCH) * _PATCH_TOKENS
    return min(_MAX_IMAGE_TOKENS, 100 + math.ceil(max(tiles, patches)))


def texts_in(history: Iterable[HistoryItem]) -> Iterator[str]:
    """Yields all texts, also the arguments of calls."""
    for item in history:
        if isinstance(item, HistoryCall):
            yield item.arguments
        elif isinstance(item, HistoryMessage | HistoryOutput):
            yield from texts_of(item.parts)


def parts_in(history: Iterable[HistoryItem]) -> Iterator[Part]:
    """Yields the parts of messages and outputs."""
    for item in history:
        if isinstance(item, HistoryMessage | HistoryOutput):
            yield from item.parts


def text_tokens(json: bytes) -> int:
    """Estimates the tokens of a JSON document as written."""
    return estimate_tokens(bytes(json).decode("utf-8", "replace"))


def json_tokens(texts: Iterable[bytes]) -> int:
    """Estimates the tokens of JSON strings, decoded."""
    return sum(estimate_tokens(msgspec.json.decode(text, type=str)) for text in texts)


class TurnTokens:
    """`trigger`: the message that reported them or ended the turn."""

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
        """Returns the turn's tokens; where calls are missing, the estimates if higher. If only the last call was
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
        if self.reported is None and not answer():
            return Spending(failed=failed)
        tokens = self.tokens(prompt=prompt, answer=answer)
        return Spending(tokens, estimated=self.is_estimated, failed=failed)
