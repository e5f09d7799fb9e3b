"""The tokens of a turn's attempts. A turn that was cut before its agent has reported any has an estimate: of its text,
and of what the agent adds to it, as a whole turn has shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from codex_proxy.core.events import Event, Stop, TurnEnded, Usage, UsageReported
from codex_proxy.core.items import RawHistoryItem, images_in, texts_in
from codex_proxy.core.media import url_tokens
from codex_proxy.core.repair import ENDS_WELL, TurnRepair
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn

MAX_CHARS: Final = 2000
"""Maximum characters of a request from which is learned: the error of its estimate would count as the agent's."""
_CUT_ENDS: Final = frozenset({Stop.LENGTH, Stop.INTERRUPTED, Stop.CONTENT_FILTER})


class AddedTokens:
    """The tokens that agents add to a request, such as their own instructions and tools: for each agent and mode, as of
    the newest turn that showed it. They say nothing of a client, since the text of the request is subtracted.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def learn(self, turn: Turn, agent: str, input: int) -> None:
        """Takes the reported input of a turn that was one model call. Long requests are ignored, and those with images
        or raw items, whose tokens are not known.
        """
        chars = 0
        for text in _texts(turn):
            chars += len(text)
            if chars > MAX_CHARS:
                return
        if RawHistoryItem in map(type, turn.history) or images_in(turn.history):
            return
        known = self._known.get((agent, turn.mode))
        if known is not None and 0 <= input - known <= chars:
            return  # as far as can be told without counting
        self._known[agent, turn.mode] = max(0, input - estimate_all(_texts(turn)))

    def estimate(self, turn: Turn, agent: str) -> int | None:
        """Estimates a turn's input; None if nothing is known of its agent."""
        added = self._known.get((agent, turn.mode))
        if added is None:
            return None
        images = sum(url_tokens(image.url) for image in images_in(turn.history))
        return added + estimate_all(_texts(turn)) + images


def _texts(turn: Turn) -> Iterator[str]:
    yield from texts_in(turn.history)
    for tool in turn.tools:
        yield tool.description
        yield bytes(tool.parameters or b"").decode()
    yield bytes(turn.output_schema or b"").decode()


def _count_reports(events: Sequence[Event]) -> int:
    return sum(isinstance(each, UsageReported) for each in events)


class TurnUsage:
    """The tokens of all attempts: the client pays for a discarded one too."""

    def __init__(self, turn: Turn, agent: str, added: AddedTokens) -> None:
        self._turn, self._agent, self._added = turn, agent, added
        self._before = Usage()
        """The tokens of a discarded first attempt."""
        self._newest: UsageReported | None = None
        self._reports = 0
        """Of the current attempt."""
        self._uncounted = False
        """Whether an attempt was discarded whose tokens were not reported."""
        self._is_first = True

    def add(self, reported: UsageReported) -> UsageReported:
        """Returns the report plus the discarded attempt's usage."""
        self._newest = reported
        self._reports += 1
        partial = self._uncounted or reported.partial
        return UsageReported(self._before + reported.usage, reported.trigger, partial=partial)

    def begin_attempt(self, *, begun: bool) -> list[Event]:
        """Discards the current attempt, and returns its usage. `begun`: whether the attempt may have used tokens
        that were not reported.
        """
        newest, self._newest, self._is_first, self._reports = self._newest, None, False, 0
        if newest is None:
            self._uncounted = self._uncounted or begun
            return []
        self._before += newest.usage
        # Until the new attempt's tokens are reported, if they ever are.
        return [UsageReported(self._before, newest.trigger, partial=True)]

    def at_end(
        self, ended: TurnEnded, given: Sequence[Event], logged: Sequence[Event], repair: TurnRepair
    ) -> list[Event]:
        """Returns an estimate of a turn that was cut before its agent has reported tokens. Learns from one that ended
        well. `given`: the last batch; `logged`: what of it is within the limits.
        """
        newest = self._newest
        if ended.cut or ended.stop in _CUT_ENDS:
            # A report behind the cut does not count: it depends on the pipe whether it comes in the same batch.
            dropped = _count_reports(given) - _count_reports(logged)
            tokens = self._added.estimate(self._turn, self._agent) if self._reports == dropped else None
            if tokens is None:
                return []
            output, limit = estimate_all(repair.texts()), self._turn.max_tokens
            usage = Usage(input=tokens, output=output if limit is None else min(output, limit))
            return [UsageReported(self._before + usage, "provider", partial=True)]
        # Only of one model call is it known what the client's part of the input was.
        is_one_call = self._is_first and repair.has_only_texts and not self._turn.forwarded
        if is_one_call and ended.stop in ENDS_WELL and newest is not None and not newest.partial:
            self._added.learn(self._turn, self._agent, newest.usage.input)
        return []
