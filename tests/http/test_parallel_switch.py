"""PROXY_ENABLE_PARALLEL_TOOL_CALLS forwards Codex's own switch, and the stream stays serialised all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.server import make_server
from tests.http.serving import ENVIRONMENT, fake_proxy, running_proxy, settings_of, user
from tests.weather_tool import CHAT_WEATHER

SWITCH = "--config parallel_tool_calls=true"


@pytest.mark.parametrize(("enabled", "times"), [(True, 1), (False, 0)])
async def test_the_switch_is_forwarded_to_codex_only_where_the_operator_sets_it(
    tmp_path: Path, codex: Path, enabled: bool, times: int
) -> None:
    settings = settings_of(
        tmp_path,
        agent="codex-proto",
        codex_bin=str(codex),
        codex_home=tmp_path,
        enable_parallel_tool_calls=enabled,
    )
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        assert (await proxy.ask(user())).status == 200
    assert (tmp_path / "started").read_text().count(SWITCH) == times


@pytest.mark.parametrize("enabled", [True, False])
async def test_calls_that_come_interleaved_are_serialised_call_after_call(
    tmp_path: Path, enabled: bool
) -> None:
    settings = settings_of(tmp_path, enable_parallel_tool_calls=enabled)
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        answer = await proxy.ask(user("[[fake:tool_calls_interleaved]]", stream=True, tools=[CHAT_WEATHER]))
    assert indices(answer.frames[:-1]) == [0, 0, 0, 1, 1]


def indices(chunks: list[Any]) -> list[int]:
    """The index of every call delta, in order."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return [call["index"] for delta in deltas for call in delta.get("tool_calls", ())]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dialect", ["proto", "app-server"])
@pytest.mark.parametrize("prompt", ["[[fake:tool_calls]]", "[[fake:tool_calls calls=3]]"])
async def test_parallel_tool_calls_false_gives_one_call_at_a_time(
    tmp_path: Path, dialect: str, prompt: str
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await proxy.ask(user(prompt, tools=[CHAT_WEATHER], parallel_tool_calls=False))
    assert len(answer.body["choices"][0]["message"]["tool_calls"]) == 1
