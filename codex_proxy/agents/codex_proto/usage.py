"""The tokens of one turn, calculated from the session totals that `codex proto` reports."""

from __future__ import annotations

from codex_proxy.agents.codex_proto.wire import Msg, TokenUsage
from codex_proxy.core.events import Usage

NO_USAGE = Usage()


class TurnUsage:
    """Counts a turn's tokens: the session's total now, less the total before the turn.

    The first count of a turn comes with the response's headers and repeats the total before it, as does the first
    count of each further model call. That is why the counts of the last call (`last_token_usage`) must not be summed.
    """

    __slots__ = ("_session_before", "_session_total")

    def __init__(self) -> None:
        self._session_before: Usage | None = None
        self._session_total = NO_USAGE

    @property
    def so_far(self) -> Usage:
        """The tokens of the turn so far."""
        return _difference(self._session_total, self._session_before or NO_USAGE)

    def add_count(self, msg: Msg, *, has_output: bool) -> Usage | None:
        """Handles a `token_count` event. Returns the tokens that it adds, or None if it adds none.

        `has_output`: whether the model has put out something since the last count.
        """
        info = msg.info
        if info is None:
            self._session_before = self._session_before or NO_USAGE
            return self._add(msg)
        total = _usage(info.total_token_usage)
        if self._session_before is None:
            # The child has not reported the total before this turn: what the last call used is new.
            last = _usage(info.last_token_usage) if info.last_token_usage else total
            self._session_before = self._session_total = _difference(total, last) if has_output else total
        new = _difference(total, self._session_total)
        self._session_total = total
        return None if new == NO_USAGE else new

    def _add(self, msg: Msg) -> Usage | None:
        """Adds the count of the oldest releases: the tokens of one model call, at the top level of the event."""
        used = Usage(
            msg.input_tokens or 0,
            msg.cached_input_tokens or 0,
            msg.output_tokens or 0,
            msg.reasoning_output_tokens or 0,
        )
        self._session_total += used
        return None if used == NO_USAGE else used


def _usage(tokens: TokenUsage) -> Usage:
    """Converts the child's token counts."""
    return Usage(
        tokens.input_tokens,
        tokens.cached_input_tokens,
        tokens.output_tokens,
        tokens.reasoning_output_tokens,
    )


def _difference(one: Usage, other: Usage) -> Usage:
    """Returns `one - other`, with negative numbers as 0."""
    return Usage(
        max(0, one.input - other.input),
        max(0, one.cached - other.cached),
        max(0, one.output - other.output),
        max(0, one.reasoning - other.reasoning),
    )
