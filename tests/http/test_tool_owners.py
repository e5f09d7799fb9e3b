"""What was remembered of a step of calls serves the client that made it, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy
from tests.weather_tool import CHAT_WEATHER

STRICT = {"type": "function", "function": {**CHAT_WEATHER["function"], "strict": True}}
ASKED: dict[str, Any] = {
    "model": "codex-5",
    "tools": [STRICT],
    "messages": [{"role": "user", "content": "[[fake:tool_call_corrected]]"}],
}
KEY = "k" * 40


async def one_step(
    folder: Path, request: dict[str, Any], key: str | None, **settings: Any
) -> list[dict[str, Any]]:
    """The choices of one answer of a proxy of its own, which knows nothing but what lies on disk."""
    chosen = {"fake_dialect": "app-server", "api_key": key, **settings}
    async with fake_proxy(folder, **chosen) as proxy:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = await proxy.ask(request, headers=headers)
        assert answer.status == 200, answer.text
        choices: list[dict[str, Any]] = answer.body["choices"]
        return choices


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("count", [1, 2], ids=["one choice", "sampled"])
@pytest.mark.parametrize(
    ("first", "second", "end"),
    [(KEY, KEY, "stop"), (None, None, "stop"), (KEY, None, "tool_calls"), (None, KEY, "tool_calls")],
    ids=["the same key", "no keys", "then without the key", "then with a key"],
)
async def test_a_hidden_call_is_put_back_for_the_client_that_it_was_hidden_from_alone(
    tmp_path: Path, first: str | None, second: str | None, end: str, count: int
) -> None:
    [choice] = await one_step(tmp_path, ASKED, first)
    [call] = choice["message"]["tool_calls"]
    output = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    request = {**ASKED, "n": count, "messages": [*ASKED["messages"], choice["message"], output]}
    choices = await one_step(tmp_path, request, second, choices="sample")
    # A model that is not told of its wrong call has made one call so far, and makes the next one.
    assert [choice["finish_reason"] for choice in choices] == [end] * count
