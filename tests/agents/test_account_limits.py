"""What agents tell of their account's limits, in both spellings and damaged in any way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.account_limits import limits_in
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
READ = AccountLimits(id="codex", plan="plus", windows=(PRIMARY, SECONDARY))


def limits(value: Any) -> tuple[AccountLimits, ...]:
    return limits_in(json.dumps(value).encode())


def test_what_app_server_tells_by_itself_and_when_asked_is_the_same() -> None:
    assert limits(APP_SERVER) == (READ,)
    assert limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": None}) == (READ,)
    assert limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": {"codex": APP_SERVER}}) == (READ,)


def test_several_limits_are_told_apart_by_their_ids() -> None:
    other = {"secondary": APP_SERVER["secondary"]}
    found = limits({"rateLimits": APP_SERVER, "rateLimitsByLimitId": {"codex": APP_SERVER, "other": other}})
    assert found == (READ, AccountLimits(id="other", windows=(SECONDARY,)))


def test_proto_tells_in_how_many_seconds_a_window_ends() -> None:
    told = {
        "primary": {"used_percent": 12.5, "window_minutes": 300, "resets_in_seconds": 60},
        "secondary": None,
    }
    window = LimitWindow(name="primary", used_percent=12.5, seconds=18000, resets_in=60)
    assert limits(told) == (AccountLimits(windows=(window,)),)


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
def test_where_nothing_is_told_nothing_is_known(value: Any) -> None:
    assert limits(value) == ()


def test_a_limit_that_is_reached_is_told_without_any_figure() -> None:
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
def test_nothing_that_an_agent_tells_raises(value: Any) -> None:
    limits(value)


@given(st.binary(max_size=50))
def test_nor_do_any_bytes(data: bytes) -> None:
    limits_in(data)
