"""Counts the tokens of each model call at its end, and of the turn from its `result`. Unlike in Anthropic's API,
the input tokens of a `Usage` include the cache. Each request reports the tokens since the one before.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple

from codex_proxy.core.events import Usage
from codex_proxy.parts.claude_code.messages import StreamTokens


def usage_of(tokens: StreamTokens) -> Usage:
    details = tokens.output_tokens_details
    cached, written = tokens.cache_read_input_tokens or 0, tokens.cache_creation_input_tokens or 0
    return Usage(
        input=(tokens.input_tokens or 0) + cached + written,
        cached=cached,
        cache_written=written,
        output=tokens.output_tokens or 0,
        reasoning=(details.thinking_tokens or 0) if details is not None else 0,
    )


class TurnUsage:
    """The tokens of one turn of the program, and of the client's current request."""

    def __init__(self) -> None:
        self._calls = Usage()
        """The tokens of ended model calls."""
        self._before = Usage()
        self._begun = StreamTokens()

    def begin_turn(self) -> None:
        self._calls = self._before = Usage()
        self._begun = StreamTokens()

    def begin_request(self) -> None:
        self._before = self._calls

    def begin_call(self, tokens: StreamTokens | None) -> Usage | None:
        """Returns the tokens of the request so far, with the call's input, which is known at its beginning; None if
        the call has none.
        """
        self._begun = tokens or StreamTokens()
        begun = msgspec.structs.replace(usage_of(self._begun), output=0, reasoning=0)
        return self.request + begun if begun.input else None

    def end_call(self, tokens: StreamTokens | None) -> Usage:
        """Returns the call's tokens, from its `message_delta` or else its `message_start`."""
        begun, last = self._begun, tokens or StreamTokens()
        self._begun = StreamTokens()
        counts = zip(astuple(last), astuple(begun), strict=True)
        usage = usage_of(StreamTokens(*(earlier if count is None else count for count, earlier in counts)))
        self._calls += usage
        return usage

    def end_turn(self, tokens: StreamTokens | None) -> None:
        """Takes the total of the `result` if it is larger: a call may have broken off."""
        if tokens is None:
            return
        whole = usage_of(tokens)
        if whole.input + whole.output >= self._calls.input + self._calls.output:
            self._calls = whole

    @property
    def request(self) -> Usage:
        return self._calls.since(self._before)
