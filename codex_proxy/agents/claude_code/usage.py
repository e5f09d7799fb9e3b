"""Counts the tokens of each model call when it ends, and of the whole turn from its `result`. Anthropic's
`input_tokens` exclude the cache; here they include it, as OpenAI's do. If a turn waits for a tool's output, each
request reports the tokens since the one before.
"""

from __future__ import annotations

from codex_proxy.agents.claude_code.messages import StreamTokens
from codex_proxy.core.events import Usage


def usage_of(tokens: StreamTokens) -> Usage:
    """Converts the token counts of Anthropic's API to `Usage`, whose input includes cached tokens."""
    details = tokens.output_tokens_details
    cached = tokens.cache_read_input_tokens or 0
    return Usage(
        input=(tokens.input_tokens or 0) + cached + (tokens.cache_creation_input_tokens or 0),
        cached=cached,
        output=tokens.output_tokens or 0,
        reasoning=(details.thinking_tokens or 0) if details is not None else 0,
    )


class TurnUsage:
    """Counts the tokens of one turn of the program, and those of them that belong to the client's current request."""

    def __init__(self) -> None:
        self._calls = Usage()
        """The usage of the model calls that have ended, since the program's turn began."""
        self._before = Usage()
        """The usage that was reported to earlier client requests of the same turn."""
        self._begun = StreamTokens()
        """The counts of the running model call."""

    def begin_turn(self) -> None:
        """Resets all counts for another turn of the program."""
        self._calls = self._before = Usage()
        self._begun = StreamTokens()

    def begin_request(self) -> None:
        """Sets the tokens of the client's current request to 0. Called when the client's next request continues the
        same turn.
        """
        self._before = self._calls

    def call_began(self, tokens: StreamTokens | None) -> None:
        """Records the beginning of a model call, with the `usage` of its `message_start`, if any."""
        self._begun = tokens or StreamTokens()

    def call_ended(self, tokens: StreamTokens | None) -> Usage:
        """Adds the tokens of a model call, and returns them: those of its `message_delta`, where missing those of
        `message_start`.
        """
        begun, last = self._begun, tokens or StreamTokens()
        self._begun = StreamTokens()
        usage = usage_of(
            StreamTokens(
                _either(last.input_tokens, begun.input_tokens),
                _either(last.cache_read_input_tokens, begun.cache_read_input_tokens),
                _either(last.cache_creation_input_tokens, begun.cache_creation_input_tokens),
                _either(last.output_tokens, begun.output_tokens),
                last.output_tokens_details or begun.output_tokens_details,
            )
        )
        self._calls += usage
        return usage

    def turn_ended(self, tokens: StreamTokens | None) -> None:
        """Replaces the sum of the model calls by the total of the `result`, if that is larger, as it is if a call broke
        off.
        """
        if tokens is None:
            return
        whole = usage_of(tokens)
        if whole.input + whole.output >= self._calls.input + self._calls.output:
            self._calls = whole

    @property
    def request(self) -> Usage:
        """The tokens of the client's current request so far."""
        return self._calls.since(self._before)


def _either(value: int | None, otherwise: int | None) -> int | None:
    return otherwise if value is None else value
