"""Tokens of one turn, out of the sums that `codex proto` gives for its whole session."""

from __future__ import annotations

from codex_proxy.agents.codex_proto.wire import Msg, TokenUsage
from codex_proxy.core.events import Usage

NONE = Usage()


class Tally:
    """The turn's share: the sum now less the sum before the turn.

    The first count of a turn comes with the response's headers and repeats the sum before; so does the first
    count of every further model call, which is why the counts of last calls must not be added up.
    """

    __slots__ = ("_before", "_sum")

    def __init__(self) -> None:
        self._before: Usage | None = None
        self._sum = NONE

    @property
    def turn(self) -> Usage:
        """The turn so far."""
        return _less(self._sum, self._before or NONE)

    def count(self, msg: Msg, *, said: bool) -> Usage | None:
        """Tokens that are new with this count. `said`: the turn has put something out before it."""
        info = msg.info
        if info is None:
            self._before = self._before or NONE
            return self._add(msg)
        total = _usage(info.total_token_usage)
        if self._before is None:
            # A child that does not begin with the old sum: then what the last call took is new.
            last = _usage(info.last_token_usage) if info.last_token_usage else total
            self._before = self._sum = _less(total, last) if said else total
        new = _less(total, self._sum)
        self._sum = total
        return None if new == NONE else new

    def _add(self, msg: Msg) -> Usage | None:
        """A count of the oldest spelling: the tokens of one model call, at the top level of the event."""
        used = Usage(
            msg.input_tokens or 0,
            msg.cached_input_tokens or 0,
            msg.output_tokens or 0,
            msg.reasoning_output_tokens or 0,
        )
        self._sum += used
        return None if used == NONE else used


def _usage(tokens: TokenUsage) -> Usage:
    return Usage(
        tokens.input_tokens,
        tokens.cached_input_tokens,
        tokens.output_tokens,
        tokens.reasoning_output_tokens,
    )


def _less(one: Usage, other: Usage) -> Usage:
    return Usage(
        max(0, one.input - other.input),
        max(0, one.cached - other.cached),
        max(0, one.output - other.output),
        max(0, one.reasoning - other.reasoning),
    )
