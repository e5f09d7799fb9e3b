"""Converts an agent's token counts. A count that covers more or less than the client's request (`AcpPreset.usage`)
is not used. `totalTokens` shows whether input includes cached, and output thought tokens.
"""

from __future__ import annotations

from msgspec.structs import astuple

from codex_proxy.core.events import Usage
from codex_proxy.core.json_values import count_at, value_at
from codex_proxy.parts.acp.presets import UsageRule

NO_TOKENS = Usage()


def usage_in(counts: object) -> Usage | None:
    """Reads token counts; None if input or output is missing, or all are 0."""
    given = _count(counts, "inputTokens", "input_tokens")
    output = _count(counts, "outputTokens", "output_tokens")
    if given is None or output is None:
        return None
    cached = _count(counts, "cachedReadTokens", "cached_tokens") or 0
    written = count_at(counts, "cachedWriteTokens") or 0
    thought = count_at(counts, "thoughtTokens") or 0
    total = count_at(counts, "totalTokens")
    apart = cached > given if total is None else given + output < total
    if apart:
        given += cached + written
        if total is not None and given + output < total:
            output += thought
    cached = min(cached, given)
    usage = Usage(given, cached, output, min(thought, output), min(written, given - cached))
    return None if usage == NO_TOKENS else usage


def _count(counts: object, name: str, other_name: str) -> int | None:
    count = count_at(counts, name)
    return count_at(counts, other_name) if count is None else count


def counts_output(result: object) -> bool:
    usage = usage_in(_count_in(result))
    return usage is not None and usage.output > 0


class UsageCounter:
    """The tokens of one session's turns. `rule`: see `AcpPreset.usage`."""

    def __init__(self, rule: UsageRule | None) -> None:
        self._rule = rule
        self._session = NO_TOKENS
        self._known = True
        """Whether `_session` is complete: not after a turn without a count."""
        self._turn = NO_TOKENS
        self._one_call = True
        self._whole = True
        """Whether the agent's turn has served only one request."""

    def start_turn(self) -> None:
        self._turn = NO_TOKENS
        self._one_call = self._whole = True

    def start_request(self) -> None:
        """Begins another request within the agent's turn, whose count is then not used."""
        self._turn = NO_TOKENS
        self._whole = False
        self._one_call = True

    def add_model_call(self) -> None:
        self._one_call = False

    def read_update(self, meta: object) -> Usage | None:
        """Returns the request's tokens so far; None without a count, or if the rule is not `chunks`."""
        usage = usage_in(value_at(meta, "usage")) if self._rule == "chunks" else None
        if usage is None:
            return None
        self._turn += usage
        return self._turn

    def read_result(self, result: object) -> Usage | None:
        """Returns the request's tokens; None if no count covers just this request."""
        if self._rule in (None, "chunks"):
            return None
        usage = usage_in(_count_in(result))
        if self._rule == "session":
            return self._since_last_total(usage)
        covered = self._one_call if self._rule == "last" else self._whole
        return usage if covered else None

    def _since_last_total(self, total: Usage | None) -> Usage | None:
        known, before = self._known, self._session
        self._known = total is not None
        if total is None:
            return None
        self._session = total
        turn = total - before
        complete = known and self._whole
        return turn if complete and min(astuple(turn)) >= 0 else None


def _count_in(result: object) -> object:
    usage = value_at(result, "usage")
    return usage if usage is not None else value_at(result, "_meta", "quota", "token_count")
