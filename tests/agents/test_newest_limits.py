"""What is known of the account's limits: updates merged, asked again only now and then."""

from __future__ import annotations

import json
from typing import Any

from codex_proxy.agents.newest_limits import NewestLimits


def told(limits: NewestLimits, **snapshot: Any) -> None:
    limits.update(json.dumps(snapshot).encode())


def window(percent: int) -> dict[str, int]:
    return {"usedPercent": percent}


async def test_an_update_replaces_what_it_tells_of_and_nothing_else() -> None:
    limits = NewestLimits()
    told(limits, limitId="a", planType="plus", primary=window(1), secondary=window(2))
    told(limits, limitId="a", primary=window(3))
    told(limits, limitId="b", primary=window(4))
    first, second = limits.newest()[0]
    assert (first.plan, [each.used_percent for each in first.windows]) == ("plus", [3, 2])
    assert (second.id, second.plan) == ("b", None)


async def test_an_update_without_any_figure_changes_nothing() -> None:
    limits = NewestLimits()
    told(limits, limitId="a", primary=window(1))
    told(limits, limitId="a", primary=None)
    assert limits.newest()[0][0].windows[0].used_percent == 1


async def test_no_more_limits_are_kept_than_an_account_has() -> None:
    limits = NewestLimits()
    for number in range(100):
        told(limits, limitId=str(number), primary=window(1))
    assert len(limits.newest()[0]) == 16


async def test_the_agent_is_asked_once_and_not_where_it_has_just_told() -> None:
    limits = NewestLimits()
    assert limits.due(60)
    assert not limits.due(60)
    assert limits.due(0)
    told(limits, primary=window(1))
    limits = NewestLimits()
    told(limits, primary=window(1))
    assert not limits.due(60)
