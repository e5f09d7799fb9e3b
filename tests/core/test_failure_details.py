"""What is known here of a fault beside the agent's words: how long the context is, and when a limit is over."""

from __future__ import annotations

import pytest

from codex_proxy.core.account import AccountLimits, AgentModel, LimitWindow, with_context_length, with_reset
from codex_proxy.core.faults import Failure, FaultKind

MODELS = (
    AgentModel(id="small", context_window=1000),
    AgentModel(id="usual", context_window=272000, is_default=True),
)
TOO_LONG = Failure(kind=FaultKind.CONTEXT_LENGTH_EXCEEDED, message="It is too long.")
REACHED = Failure(kind=FaultKind.USAGE_LIMIT_REACHED, message="You have hit your usage limit.")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("small", "This model's maximum context length is 1000 tokens. "),
        ("", "This model's maximum context length is 272000 tokens. "),
        ("unheard-of", "This model's maximum context length is exceeded. "),
    ],
)
def test_a_context_that_is_too_long_is_reported_in_the_words_that_clients_look_for(
    model: str, words: str
) -> None:
    told = with_context_length(TOO_LONG, model, MODELS)
    assert told.message.startswith(words)
    assert "exceeds the context window" in told.message
    assert told.message.endswith(TOO_LONG.message)
    assert with_context_length(told, model, MODELS) == told


def window(used: float, resets_at: int | None = None, resets_in: float | None = None) -> LimitWindow:
    return LimitWindow(name="primary", used_percent=used, resets_at=resets_at, resets_in=resets_in)


@pytest.mark.parametrize(
    ("windows", "wait"),
    [
        ((window(100, 1060),), 60),
        ((window(100, 1060), window(100, 5000), window(40, 9000)), 4000),
        ((window(99.6, 1060), window(40, 9000)), 60),
        ((window(100, resets_in=90),), 80),
        ((window(100, 990),), None),
        ((window(100),), None),
        ((), None),
    ],
)
def test_a_usage_limit_says_when_the_fullest_of_its_windows_begins_anew(
    windows: tuple[LimitWindow, ...], wait: float | None
) -> None:
    told = with_reset(REACHED, [AccountLimits(windows=windows)], reported_at=990, now=1000)
    assert told.retry_after == wait


def test_other_faults_and_what_the_provider_itself_says_stay() -> None:
    limits = [AccountLimits(windows=(window(100, 1060),))]
    said = Failure(kind=FaultKind.USAGE_LIMIT_REACHED, message="No.", retry_after=5)
    other = Failure(kind=FaultKind.UPSTREAM_ERROR, message="No.")
    for failure in (said, other):
        assert with_reset(failure, limits, reported_at=990, now=1000) == failure
        assert with_context_length(failure, "", MODELS) == failure
