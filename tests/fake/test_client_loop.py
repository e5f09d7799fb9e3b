"""A client's tool loop over the fake agent: the same in both dialects, on kept threads and without, every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy

DIALECTS = pytest.mark.parametrize("dialect", ["proto", "app-server"])
KEPT = pytest.mark.parametrize("kept", [32, 0], ids=["kept", "replayed"])


def tool(*, strict: bool = False) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": "get_weather", "parameters": schema, "strict": strict}}


async def walk(folder: Path, prompt: str, *, dialect: str, kept: int, **request: Any) -> list[dict[str, Any]]:
    """The answers of a whole loop, whose tool says which city is sunny."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    answers: list[dict[str, Any]] = []
    given = {"model": "codex-5", "tools": [tool()]} | request
    async with fake_proxy(folder, fake_dialect=dialect, kept_threads=kept) as proxy:
        for _ in range(10):
            answer = await proxy.ask({"messages": messages} | given)
            assert answer.status == 200, answer.text
            [choice] = answer.body["choices"]
            answers.append(choice)
            message = choice["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return answers
            for call in message["tool_calls"]:
                city = json.loads(call["function"]["arguments"]).get("city")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"sunny in {city}"})
    raise AssertionError("the loop does not end")


@pytest.mark.sampled(every=7)
@DIALECTS
@KEPT
@pytest.mark.parametrize(
    ("prompt", "calls", "words"),
    [
        ("[[fake:tool_call]]", [1], "The tool said: sunny in Paris"),
        ("[[fake:tool_calls]]", [2], "It is sunny."),
        ("[[fake:tool_calls rounds=3]]", [2, 2, 2], "It is sunny."),
        ("[[fake:tool_calls_after_text]]", [1], "The tool said: sunny in Paris"),
    ],
    ids=["one call", "parallel calls", "three rounds", "text before"],
)
async def test_a_loop_ends_with_the_answer_and_is_the_same_every_time(
    tmp_path: Path, dialect: str, kept: int, prompt: str, calls: list[int], words: str
) -> None:
    walks = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        walks.append(await walk(folder, prompt, dialect=dialect, kept=kept))
    assert walks[0] == walks[1]
    *steps, last = walks[0]
    assert [len(step["message"]["tool_calls"]) for step in steps] == calls
    assert [step["finish_reason"] for step in steps] == ["tool_calls"] * len(calls)
    assert (last["message"]["content"], last["finish_reason"]) == (words, "stop")
    ids = [call["id"] for step in steps for call in step["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids)


@KEPT
async def test_a_call_that_breaks_a_strict_schema_is_hidden_twice_and_then_handed_on(
    tmp_path: Path, kept: int
) -> None:
    prompt = "[[fake:tool_call rounds=3 args='{\"town\": 1}']]"
    first, last = await walk(tmp_path, prompt, dialect="app-server", kept=kept, tools=[tool(strict=True)])
    [call] = first["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"town": 1}
    assert last["finish_reason"] == "stop"


@KEPT
async def test_without_parallel_calls_one_comes_at_a_time(tmp_path: Path, kept: int) -> None:
    first, last = await walk(
        tmp_path, "[[fake:tool_calls]]", dialect="app-server", kept=kept, parallel_tool_calls=False
    )
    assert len(first["message"]["tool_calls"]) == 1
    assert last["message"]["content"] == "It is sunny."


async def test_a_call_of_a_tool_that_was_not_offered_is_hidden(tmp_path: Path) -> None:
    [only] = await walk(tmp_path, "[[fake:tool_call name=launch]]", dialect="app-server", kept=32)
    assert only["message"]["content"].startswith("The tool said: ")
    assert not only["message"].get("tool_calls")


async def test_words_instead_of_a_required_call_are_a_502(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        asked = {"model": "codex-5", "tools": [tool()], "tool_choice": "required"}
        answer = await proxy.ask(asked | {"messages": [{"role": "user", "content": "[[fake:text]]"}]})
    assert (answer.status, answer.error["code"]) == (502, "tool_choice_not_honoured")
