"""How a turn on a session ends: its states, the result of `session/prompt`, and its token counts. Without IO.

A count that covers more or less than the client's request (`AcpPreset.usage`) is not used. `totalTokens` shows whether
input includes cached, and output thought tokens.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, TypeGuard

from msgspec.structs import astuple

from codex_proxy.agents.shared.conversation import ConversationStates
from codex_proxy.agents.shared.failures import BAD_ANSWER, stop_from_text
from codex_proxy.core.events import PERMISSION_DECLINED, ContextReported, Notice, Stop, TurnEnded, Usage
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import count_at, text_at, value_at
from codex_proxy.core.states import StateTable
from codex_proxy.parts.acp.failures import failure_of_session, failure_of_text
from codex_proxy.parts.acp.messages import Update
from codex_proxy.parts.acp.presets import AcpPreset, UsageRule
from codex_proxy.parts.acp.updates import INFO, UpdateReader, session_failure


class TurnState(Enum):
    OPENING = "the session is being opened and set up, and nothing was asked yet"
    PROMPTING = "the agent works on the prompt, or waits for outputs of its calls"
    REUSABLE = "the agent's turn ended well: the session takes another prompt"
    UNUSABLE = "the agent's turn has ended, and no other is begun on the session"
    CANCELLING = "the turn is not wanted any more, and the agent has yet to stop"
    DONE = "nothing is left to read or write"


class TurnChange(Enum):
    PROMPTED = "the prompt was sent"
    ENDED_WELL = "the agent has answered the prompt, and that was a success"
    ENDED_BADLY = "the session could not be opened, or the agent's turn ended in any other way, or goes on"
    UNWANTED = "the session is no longer needed"
    STOPPED = "after UNWANTED, the agent has answered all requests that were still open"
    PROCESS_ENDED = "the agent's process has ended"


TABLE = StateTable(
    TurnState.OPENING,
    {
        TurnState.OPENING: {
            TurnChange.PROMPTED: TurnState.PROMPTING,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.CANCELLING,
        },
        TurnState.PROMPTING: {
            TurnChange.ENDED_WELL: TurnState.REUSABLE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.CANCELLING,
        },
        TurnState.REUSABLE: {
            TurnChange.PROMPTED: TurnState.PROMPTING,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.DONE,
        },
        TurnState.UNUSABLE: {TurnChange.UNWANTED: TurnState.CANCELLING},  # the prompt may be unanswered
        TurnState.CANCELLING: {TurnChange.STOPPED: TurnState.DONE},
        TurnState.DONE: {TurnChange.UNWANTED: TurnState.DONE},
    },
    always={TurnChange.PROCESS_ENDED: TurnState.DONE},
)

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.OPENING, TurnState.PROMPTING}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.PROCESS_ENDED,
)


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

    def counts_turn(self, result: object) -> bool:
        """Whether the result has a count for its turn: one of the whole session must be another one than before."""
        if value_at(result, "usage") is None:
            return False
        return self._rule != "session" or usage_in(_count_in(result)) != self._session

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


MAX_COUNT: Final = 1 << 40
"""Maximum tokens, and units of a currency; what is more is not believed."""


class ContextReader:
    """Reads the `usage_update`s of one session: how full the model's window is, and what the session has cost.
    `reopened`: whether the session may have cost something before its first report.
    """

    def __init__(self) -> None:
        self.reopened = False
        self._cost = 0.0
        self._currency = ""

    def read(self, update: Update) -> ContextReported | None:
        """Returns the event of an update; None if it tells no tokens."""
        if not _is_count(update.used):
            return None
        window = update.size if _is_count(update.size) else 0
        return ContextReported(update.used, window, *self._added_cost(update.cost))

    def _added_cost(self, given: object) -> tuple[float, str]:
        """Returns what the session has cost since the last report, in which currency: the agent tells the sum."""
        amount, currency = value_at(given, "amount"), text_at(given, "currency")
        known = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not known or not 0 <= amount <= MAX_COUNT or not _CURRENCY.fullmatch(currency):
            return 0.0, ""
        before = self._cost if currency == self._currency and amount >= self._cost else 0.0
        is_first = self.reopened and not self._currency
        self._cost, self._currency = float(amount), currency
        return (0.0, "") if is_first else (amount - before, currency)


_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT


def _count_in(result: object) -> object:
    usage = value_at(result, "usage")
    return usage if usage is not None else value_at(result, "_meta", "quota", "token_count")


STOPS: Final = {
    "end_turn": Stop.STOP,
    "max_tokens": Stop.LENGTH,
    "max_turn_requests": Stop.LENGTH,
    "refusal": Stop.CONTENT_FILTER,
    "cancelled": Stop.INTERRUPTED,
}
ENDED_WITHOUT_ANSWER: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The agent ended its turn without an answer or a reason. Try again."
)


def turn_end(
    result: dict[str, Any], reader: UpdateReader, preset: AcpPreset, *, rejected: bool, counted: bool
) -> TurnEnded | Failure:
    """Converts the result. `rejected`: a permission was rejected, so the turn has failed if the model has written
    nothing since. `counted`: see `UsageCounter.counts_turn`.
    """
    failure = _failure_in(result, reader, preset, rejected=rejected, counted=counted)
    if failure is not None:
        return failure
    word = result.get("stopReason")
    if not (word and isinstance(word, str)):
        return BAD_ANSWER
    # A word of a later version says at least that the turn did not end as one that is complete.
    return TurnEnded(_cut_in(result) or STOPS.get(word, Stop.INTERRUPTED), "provider")


def _failure_in(
    result: dict[str, Any], reader: UpdateReader, preset: AcpPreset, *, rejected: bool, counted: bool
) -> Failure | None:
    reported = session_failure(result.get("_meta"))
    if reported is not None and reported.get("severity") == "error" and _cut_in(result) is None:
        return failure_of_session(reported, preset)
    held = reader.drop_held()
    # A failed turn ends like a good one: behind any other end such a text is the model's.
    is_told = bool(held) and not counted
    if is_told and not held.startswith(INFO) and result.get("stopReason") == "end_turn":
        return failure_of_text(held, preset)
    if is_told and held.startswith(INFO):
        reader.events.append(Notice("agent_info", held.removeprefix(INFO)[:200]))
    elif held:
        reader.held = held
    if result.get("stopReason") != "end_turn":
        return None
    if rejected and not (reader.spoke or reader.held) and _cut_in(result) is None:
        return PERMISSION_DECLINED  # the text before a request for permission announces something, and answers nothing
    # A count of the whole session that is as before says nothing of an answer that was given.
    if counted or reported is not None or (reader.spoke and usage_in(_count_in(result)) is not None):
        return None
    untold = preset.errors_as_text and not rejected
    return ENDED_WITHOUT_ANSWER if untold or (preset.null_usage_fails and "usage" in result) else None


def _cut_in(result: dict[str, Any]) -> str | None:
    reported = session_failure(result.get("_meta"))
    return None if reported is None else stop_from_text(str(reported.get("title")))
