"""What programs that speak ACP tell of the model's window and of costs, in the summaries of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.events import ContextReported
from codex_proxy.parts.acp.messages import Update
from codex_proxy.parts.acp.turn_end import ContextReader
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import AgentsClient, message
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_summaries import summary


async def test_the_summary_has_the_window_and_the_sum_of_the_costs(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        client, folder = AgentsClient(proxy), Path(proxy.server.settings.workdir)
        id = await client.idle_session("[[fake:text cost=0.25]]", **hosted(folder))
        told = await summary(client, id)
        assert told["context"] == {"used": 120, "window": 200_000}
        assert told["cost"] == {"amount": 0.25, "currency": "USD"}
        await client.turn(id, message("[[fake:text cost=0.5]]"))
        assert (await summary(client, id))["cost"]["amount"] == 0.75


async def test_a_program_that_tells_nothing_has_neither(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        client, folder = AgentsClient(proxy), Path(proxy.server.settings.workdir)
        told = await summary(client, await client.idle_session("Hello.", **hosted(folder)))
        assert (told["context"], told["cost"]) == (None, None)


def update(**fields: Any) -> Update:
    return Update("usage_update", **{"used": 10, "size": 100, **fields})


def test_a_session_that_was_opened_again_is_not_charged_for_what_came_before() -> None:
    reader = ContextReader()
    reader.reopened = True
    first, second = (update(cost={"amount": amount, "currency": "USD"}) for amount in (4.0, 4.5))
    assert reader.read(first) == ContextReported(10, 100)
    assert reader.read(second) == ContextReported(10, 100, 0.5, "USD")


@pytest.mark.parametrize("used", [0, -1, True, "10", None, 1 << 60, 1.5, [10]])
def test_a_number_of_tokens_that_is_none_is_not_believed(used: Any) -> None:
    assert ContextReader().read(update(used=used)) is None


@pytest.mark.parametrize(
    "cost",
    [
        {"amount": -1, "currency": "USD"},
        {"amount": float("inf"), "currency": "USD"},
        {"amount": float("nan"), "currency": "USD"},
        {"amount": "1", "currency": "USD"},
        {"amount": True, "currency": "USD"},
        {"amount": 1, "currency": "US\u202eD"},
        {"amount": 1, "currency": "USD" * 1000},
        {"amount": 1},
        [1],
        "1 USD",
    ],
)
def test_a_cost_that_is_none_is_not_told(cost: Any) -> None:
    assert ContextReader().read(update(size=-1, cost=cost)) == ContextReported(10)
