"""The query of `GET /v1/usage`, and its pages."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.core.tokens import DAY, HOUR, Figures, UsageSum
from codex_proxy.surfaces.answers.usage_report import UsagePage, UsageReport, page_of, report_of

MIDNIGHT = 19_675 * DAY
NOW = MIDNIGHT + 10 * HOUR + 17.5


def report_for(**query: Any) -> UsageReport:
    return report_of([(name, str(value)) for name, value in query.items()], now=NOW)


def refusal(*query: tuple[str, str]) -> tuple[str | None, str]:
    with pytest.raises(Fault) as raised:
        report_of(query, now=NOW)
    return raised.value.failure.param, raised.value.failure.message


def row(start: int, model: str = "") -> UsageSum:
    figures = Figures(turns=3, failed=1, estimated=1, input=100, cached=40, output=50, reasoning=20)
    return UsageSum(start, model, figures)


def page(report: UsageReport, *rows: UsageSum, **more: Any) -> UsagePage:
    given: dict[str, Any] = {"key": "me", "durable": True, "since": 5}
    return page_of(report, rows, **given | more)


def starts(answer: UsagePage) -> list[int]:
    return [bucket["start_time"] for bucket in answer["data"]]


def test_without_any_parameter_it_is_the_last_seven_days_with_today() -> None:
    answer = page(report_for())
    assert starts(answer) == [MIDNIGHT - day * DAY for day in range(6, -1, -1)]
    assert (answer["has_more"], answer["next_page"]) == (False, None)


def test_hours_are_the_last_24_with_this_one() -> None:
    answer = page(report_for(bucket_width="1h"))
    assert len(answer["data"]) == 24
    assert answer["data"][-1]["start_time"] == MIDNIGHT + 10 * HOUR
    assert answer["data"][-1]["end_time"] == MIDNIGHT + 11 * HOUR


def test_a_bucket_that_is_only_touched_is_there_as_a_whole() -> None:
    report = report_for(start_time=MIDNIGHT - 1, end_time=MIDNIGHT + 1)
    assert starts(page(report)) == [MIDNIGHT - DAY, MIDNIGHT]
    assert starts(page(report_for(start_time=MIDNIGHT - DAY, end_time=MIDNIGHT))) == [MIDNIGHT - DAY]


def test_pages_join_without_a_gap_and_the_last_says_that_it_is_the_last() -> None:
    question: dict[str, Any] = {"start_time": MIDNIGHT - 9 * DAY, "end_time": MIDNIGHT, "limit": 4}
    seen: list[int] = []
    answer = page(report_for(**question))
    for _ in range(2):
        assert answer["has_more"]
        seen += starts(answer)
        answer = page(report_for(**question, page=answer["next_page"]))
    assert not answer["has_more"]
    assert seen + starts(answer) == [MIDNIGHT - day * DAY for day in range(9, 0, -1)]


def test_a_result_has_every_figure() -> None:
    (result,) = page(report_for(), row(MIDNIGHT))["data"][-1]["results"]
    assert result == {
        "object": "usage.result",
        "input_tokens": 100,
        "input_cached_tokens": 40,
        "output_tokens": 50,
        "output_reasoning_tokens": 20,
        "num_model_requests": 3,
        "num_failed_requests": 1,
        "num_estimated_requests": 1,
        "estimated": True,
        "key": None,
        "model": None,
    }


@pytest.mark.parametrize(
    "query",
    [
        [("group_by", "key,model")],
        [("group_by", "key"), ("group_by", "model")],
        [("group_by[]", "model,key")],
    ],
)
def test_groups_are_named_in_each_result(query: list[tuple[str, str]]) -> None:
    report = report_of(query, now=NOW)
    results = page(report, row(MIDNIGHT, "a"), row(MIDNIGHT, "b"))["data"][-1]["results"]
    assert [(result["key"], result["model"]) for result in results] == [("me", "a"), ("me", "b")]


def test_the_answer_names_where_usage_is_stored_and_since_when() -> None:
    kept = [page(report_for(), durable=durable) for durable in (True, False)]
    assert [(each["kept"], each["kept_since"]) for each in kept] == [("disk", None), ("memory", 5)]


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("start_time", "-1"),
        ("start_time", "1_000"),
        ("start_time", "١"),
        ("start_time", "1e9"),
        ("end_time", "9" * 30),
        ("end_time", ""),
        ("bucket_width", "1m"),
        ("group_by", "project_id"),
        ("group_by", ""),
        ("limit", "0"),
        ("limit", "32"),
        ("page", "page_1"),
        ("page", f"page_{MIDNIGHT + DAY}"),
        ("page", "next"),
        ("models", "gpt"),
        ("x" * 500, "1"),
    ],
)
def test_a_wrong_parameter_is_named(param: str, value: str) -> None:
    named, message = refusal((param, value))
    assert named == param[:80]
    assert len(message) < 300


def test_an_end_before_the_start_is_refused() -> None:
    assert refusal(("start_time", "7200"), ("end_time", "7200"))[0] == "end_time"


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    assert refusal(("limit", "1"), ("limit", "2"))[0] == "limit"
