"""The estimate of a turn that was cut, and of what agents add."""

from __future__ import annotations

from codex_proxy.core.events import Stop, TextDelta, TurnEnded, TurnStarted, Usage, UsageReported
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.runs.time_and_tokens import TokensAddedByAgents, TurnUsage

CUT = TurnEnded(Stop.INTERRUPTED)


def turn(max_tokens: int | None = None) -> Turn:
    history = (HistoryMessage("user", (TextPart("hi"),)),)
    return Turn(model="m", history=history, mode="model", max_tokens=max_tokens)


def learned() -> TokensAddedByAgents:
    added = TokensAddedByAgents()
    added.learn(turn(), "agent", 5000)
    return added


def said(text: str) -> TurnRepair:
    repair = TurnRepair()
    repair.feed([TurnStarted(), TextDelta("m", text)])
    return repair


def test_the_limit_of_a_second_attempt_takes_no_tokens_of_the_first_away() -> None:
    usage = TurnUsage(turn(max_tokens=2), "agent", learned())
    usage.add(UsageReported(Usage(input=5000, output=70), "provider"))
    usage.begin_attempt(begun=True)
    [estimate] = usage.at_end(CUT, [CUT], [CUT], said("one two three four"))
    assert isinstance(estimate, UsageReported)
    assert (estimate.usage.input, estimate.usage.output) == (10_000, 72)


def test_a_report_behind_the_cut_does_not_count() -> None:
    usage = TurnUsage(turn(), "agent", learned())
    report = UsageReported(Usage(input=7000, output=70), "provider")
    usage.add(report)
    [estimate] = usage.at_end(CUT, [report, CUT], [CUT], said("one"))
    assert isinstance(estimate, UsageReported)
    assert estimate.usage.input == 5000
    assert usage.at_end(CUT, [report, CUT], [report, CUT], said("one")) == []
