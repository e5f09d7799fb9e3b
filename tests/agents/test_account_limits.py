"""What agents tell of their account's limits, in both spellings and damaged in any way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.sessions.account_limits import NewestLimits, limits_in
from codex_proxy.core.account import AccountLimits, LimitWindow

APP_SERVER = {
    "limitId": "codex",
    "limitName": None,
    "primary": {"usedPercent": 43, "windowDurationMins": 300, "resetsAt": 1795221226},
    "secondary": {"usedPercent": 9, "windowDurationMins": 10080, "resetsAt": None},
    "planType": "plus",
    "rateLimitReachedType": None,
}
PRIMARY = LimitWindow(name="primary", used_percent=43, seconds=18000, resets_at=1795221226)
SECONDARY = LimitWindow(name="secondary", used_percent=9, seconds=604800)
LIMITS = AccountLimits(id="codex", plan="plus", windows=(PRIMARY, SECONDARY))


def limits(value: Any) -> tuple[AccountLimits, ...]:
    return limits_in(json.dumps(value).encode())


def test_app_server_reports_the_same_by_itself_and_on_request() -> None:
    assert limits(APP_SERVER) == (LIMITS,)
    assert limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": None}) == (LIMITS,)
    assert limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": {"codex": APP_SERVER}}) == (LIMITS,)


def test_several_limits_are_distinguished_by_their_ids() -> None:
    other = {"secondary": APP_SERVER["secondary"]}
    found = limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": {"codex": APP_SERVER, "other": other}})
    assert found == (LIMITS, AccountLimits(id="other", windows=(SECONDARY,)))


def test_proto_reports_in_how_many_seconds_a_window_ends() -> None:
    told = {
        "primary": {"used_percent": 12.5, "window_minutes": 300, "resets_in_seconds": 60},
        "secondary": None,
    }
    window = LimitWindow(name="primary", used_percent=12.5, seconds=18000, resets_in=60)
    assert limits(told) == (AccountLimits(windows=(window,)),)


CLAUDE = {
    "status": "allowed_warning",
    "resetsAt": 1800000000,
    "rateLimitType": "five_hour",
    "utilization": 0.82,
    "overageStatus": "rejected",
    "isUsingOverage": False,
    "surpassedThreshold": 0.75,
    "unifiedWindows": {
        "five_hour": {"utilization": 0.82, "resetsAt": 1800000000, "status": "allowed_warning"},
        "seven_day": {"utilization": 0.29, "resetsAt": 1800400000, "status": "allowed"},
    },
}


def test_claude_code_reports_shares_of_its_windows() -> None:
    five = LimitWindow(name="primary", used_percent=82, seconds=18000, resets_at=1800000000)
    seven = LimitWindow(name="secondary", used_percent=29, seconds=604800, resets_at=1800400000)
    assert limits(CLAUDE) == (AccountLimits(windows=(five, seven)),)
    older = {name: value for name, value in CLAUDE.items() if name != "unifiedWindows"}
    assert limits(older) == (AccountLimits(windows=(five,)),)
    assert limits({"status": "allowed", "resetsAt": 1, "rateLimitType": "five_hour"}) == ()
    refused = limits({"status": "rejected", "resetsAt": 1, "rateLimitType": "seven_day"})
    assert refused == (AccountLimits(reached="seven_day"),)


def test_a_window_of_claude_codes_for_one_model_is_a_limit_of_its_own() -> None:
    windows = {"seven_day_opus": {"utilization": 1.0, "resetsAt": 1800400000}}
    window = LimitWindow(name="primary", used_percent=100, resets_at=1800400000)
    assert limits({**CLAUDE, "unifiedWindows": windows}) == (
        AccountLimits(id="seven_day_opus", windows=(window,)),
    )


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "x", 1, {}, {"primary": None, "secondary": None}, {"rateLimits": None}),
        {"primary": {"usedPercent": None}},
        {"primary": {"usedPercent": True}},
        {"primary": {"usedPercent": -1}},
        {"primary": {"usedPercent": 1e300}},
        {"rateLimitsByLimitId": {"a": 1, "b": None}},
    ],
    ids=str,
)
def test_without_reports_no_limits_are_known(value: Any) -> None:
    assert limits(value) == ()


def test_a_limit_that_is_reached_is_reported_without_any_figure() -> None:
    (found,) = limits({"rateLimitReachedType": "rate_limit_reached"})
    assert found.reached == "rate_limit_reached"


def test_no_more_is_kept_than_an_account_has() -> None:
    many = {str(number): APP_SERVER for number in range(1000)}
    assert len(limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": many})) == 16
    (found,) = limits({**APP_SERVER, "planType": "x" * 10_000})
    assert found.plan == "x" * 200


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("primary", "secondary", "rateLimits", "rateLimitsByLimitId", "usedPercent", "resetsAt"),
                    *(
                        "windowDurationMins",
                        "limitId",
                        "planType",
                        "resets_in_seconds",
                        "rateLimitReachedType",
                    ),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(VALUES)
def test_nothing_that_an_agent_reports_raises(value: Any) -> None:
    limits(value)


@given(st.binary(max_size=50))
def test_limits_that_are_any_bytes_raise_nothing(data: bytes) -> None:
    limits_in(data)


def report_limits(limits: NewestLimits, **snapshot: Any) -> None:
    limits.update(json.dumps(snapshot).encode())


def window(percent: int) -> dict[str, int]:
    return {"usedPercent": percent}


async def test_an_update_replaces_the_fields_that_it_has_and_nothing_else() -> None:
    limits = NewestLimits()
    report_limits(limits, limitId="a", planType="plus", primary=window(1), secondary=window(2))
    report_limits(limits, limitId="a", primary=window(3))
    report_limits(limits, limitId="b", primary=window(4))
    first, second = limits.newest()[0]
    assert (first.plan, [each.used_percent for each in first.windows]) == ("plus", [3, 2])
    assert (second.id, second.plan) == ("b", None)


async def test_an_update_without_any_figure_changes_nothing() -> None:
    limits = NewestLimits()
    report_limits(limits, limitId="a", primary=window(1))
    report_limits(limits, limitId="a", primary=None)
    assert limits.newest()[0][0].windows[0].used_percent == 1


async def test_no_more_limits_are_kept_than_an_account_has() -> None:
    limits = NewestLimits()
    for number in range(100):
        report_limits(limits, limitId=str(number), primary=window(1))
    assert len(limits.newest()[0]) == 16


async def test_the_agent_is_asked_once_and_not_where_it_has_just_reported() -> None:
    limits = NewestLimits()
    assert limits.claim_request(60)
    assert not limits.claim_request(60)
    assert limits.claim_request(0)
    report_limits(limits, primary=window(1))
    limits = NewestLimits()
    report_limits(limits, primary=window(1))
    assert not limits.claim_request(60)


async def test_limits_that_an_agent_repeats_are_new_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((1.0, 5.0, 6.0))
    monkeypatch.setattr(f"{NewestLimits.__module__}._now", lambda: next(seconds))
    limits = NewestLimits()
    report_limits(limits, limitId="a", primary=window(1))
    report_limits(limits, limitId="a", primary=window(1))
    found, age = limits.newest()
    assert (len(found), age) == (1, 1.0)
