"""`PROXY_CHOICES=sample`: several choices are several turns, truly different answers to one request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.http.server import _Connection
from tests.http.serving import Mode, fake_agent, fake_proxy, proxy_of, until, user
from tests.weather_tool import CHAT_WEATHER


def sampling_proxy(folder: Path, *modes: Mode, **settings: Any) -> Any:
    return proxy_of(fake_agent(*modes), folder, choices="sample", **settings)


def text_and_finish(frames: list[Any], index: int) -> tuple[str, str | None]:
    """What one choice said, and how it ended."""
    choices = [c for frame in frames if frame != "[DONE]" for c in frame["choices"] if c["index"] == index]
    assert [c["delta"].get("role") for c in choices] == ["assistant", *[None] * (len(choices) - 1)]
    ends = [c["finish_reason"] for c in choices]
    assert ends[:-1] == [None] * (len(ends) - 1)
    return "".join(c["delta"].get("content", "") for c in choices), ends[-1]


async def test_the_choices_of_a_whole_answer_are_different_turns(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, "text", "length", "unicode") as proxy:
        with structlog.testing.capture_logs() as lines:
            answer = (await proxy.ask(user(n=3))).body
            await until(lambda: any(line["event"] == "request" for line in lines))
    ChatCompletion.model_validate(answer)
    by_reason = {c["finish_reason"]: c["message"]["content"] for c in answer["choices"]}
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert len({c["message"]["content"] for c in answer["choices"]}) == 3
    assert by_reason["length"] == "This answer was cut off because"
    assert [set(line["finish_reason"]) for line in lines if line["event"] == "request"] == [
        {"stop", "length"}
    ]


async def test_streamed_and_whole_choices_say_the_same(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, "text", "length") as proxy:
        whole = (await proxy.ask(user(n=2))).body["choices"]
        frames = (await proxy.ask(user(n=2, stream=True))).frames
    for frame in frames[:-1]:
        ChatCompletionChunk.model_validate(frame)
    streamed = {text_and_finish(frames, index) for index in range(2)}
    assert streamed == {(c["message"]["content"], c["finish_reason"]) for c in whole}


async def test_chunks_of_the_choices_are_interleaved_and_appear_in_ascending_order(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path) as proxy:
        frames = (await proxy.ask(user("[[fake:text delay=150]]", n=2, stream=True))).frames
    indices = [choice["index"] for frame in frames[:-1] for choice in frame["choices"]]
    assert indices[:2] == [0, 1]
    content = indices[2:-2]
    assert content not in (sorted(content), sorted(content, reverse=True))
    assert len({frame["id"] for frame in frames[:-1]}) == 1


async def test_usage_sums_the_answers_and_counts_the_prompt_once(tmp_path: Path) -> None:
    body = user("[[fake:text in=100 cached=40 out=7 reasoning=2]]", n=3)
    async with sampling_proxy(tmp_path) as proxy:
        whole = (await proxy.ask(body)).body["usage"]
        frames = (await proxy.ask({**body, "stream": True, "stream_options": {"include_usage": True}})).frames
    for usage in (whole, frames[-2]["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 21, 121)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 40
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 6


async def test_calls_belong_to_the_choice_whose_turn_made_them(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, "tool_call", "text") as proxy:
        answer = (await proxy.ask(user(n=2, tools=[CHAT_WEATHER]))).body
    by_reason = {c["finish_reason"]: c["message"] for c in answer["choices"]}
    assert len(by_reason["tool_calls"]["tool_calls"]) == 1
    assert "tool_calls" not in by_reason["stop"]


async def test_a_stop_sequence_ends_the_choice_that_meets_it_and_no_other(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, "text", "length") as proxy:
        answer = (await proxy.ask(user(n=2, stop="deterministic"))).body
    assert {(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]} == {
        ("Hello from the ", "stop"),
        ("This answer was cut off because", "length"),
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_one_failing_choice_fails_the_request_and_ends_its_siblings(
    tmp_path: Path, stream: bool
) -> None:
    never_ends = {"FAKE_CODEX_MISBEHAVE": "hang at=2"}
    async with sampling_proxy(tmp_path, never_ends, "error_500") as proxy:
        answer = await proxy.ask(user(n=2, stream=stream))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        await proxy.settled()


@pytest.mark.parametrize(("running", "wait"), [(1, 0), (2, 0), (2, 0.3)])
async def test_choices_of_a_request_end_where_one_of_them_cannot_begin(
    tmp_path: Path, running: int, wait: float
) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    limits = {"max_running_turns": running, "queue_wait": wait}
    async with fake_proxy(tmp_path, environment, choices="sample", **limits) as proxy:
        answer = await proxy.ask(user("[[fake:text hold=1]]", n=3, stream=True))
        assert (answer.status, answer.error["code"]) == (429, "concurrency_exceeded")
        await proxy.settled()
        assert proxy.server.runs.queued == 0
        assert (await proxy.ask(user())).status == 200


async def test_each_turn_is_asked_for_one_answer(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path) as proxy:
        answer = (await proxy.ask(user("[[fake:echo]]", n=2))).body
    heard = [json.loads(choice["message"]["content"]) for choice in answer["choices"]]
    assert [each.get("choices") or 1 for each in heard] == [1, 1]


async def test_each_choice_takes_a_run_slot_and_waits_for_it(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, max_running_turns=1) as proxy:
        answers = await asyncio.gather(*(proxy.ask(user(n=3)) for _ in range(2)))
    assert [answer.status for answer in answers] == [200, 200]
    assert all(len(answer.body["choices"]) == 3 for answer in answers)


async def test_a_client_that_leaves_ends_every_choice(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, environment, choices="sample") as proxy:
        async with proxy.open(user("[[fake:text hold=1]]", n=3, stream=True)) as reply:
            await reply.content.readline()
            await until(lambda: proxy.server.runs.running == 3)
        await proxy.settled()
        await until(lambda: not [task for task in asyncio.all_tasks() if "Cursor.wait" in repr(task)])


@pytest.mark.parametrize("sandbox", ["workspace-write", "danger-full-access"])
async def test_an_agent_that_may_write_is_not_sampled(tmp_path: Path, sandbox: str) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    async with sampling_proxy(tmp_path, sandbox=sandbox, workdir=workdir) as proxy:
        answer = await proxy.ask(user(n=2))
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert (await proxy.ask(user(n=1))).status == 200
        plain = await proxy.ask(user(n=2), headers={"X-Codex-Mode": "model"})
        assert len(plain.body["choices"]) == 2


async def test_by_default_one_turn_answers_every_choice(tmp_path: Path) -> None:
    async with proxy_of(fake_agent("text", "length"), tmp_path) as proxy:
        answer = (await proxy.ask(user(n=3))).body
    messages = {json.dumps(choice["message"]) for choice in answer["choices"]}
    assert len(messages) == 1


async def test_a_request_that_is_cancelled_repeatedly_leaves_no_choice_running(tmp_path: Path) -> None:
    async with sampling_proxy(tmp_path, max_running_turns=1) as proxy:
        scheduler, runner = proxy.server.runs, proxy.server.runner
        asking = asyncio.ensure_future(proxy.ask(user("[[fake:text misbehave=hang at=4]]", n=2)))
        await until(lambda: (scheduler.running, scheduler.queued) == (1, 1))
        assert runner is not None
        assert runner.server is not None
        [connection] = runner.server.connections
        assert isinstance(connection, _Connection)
        for _ in range(10):  # while it gives up the choices
            connection.cancel_request()
            await asyncio.sleep(0)
        await until(lambda: (scheduler.running, scheduler.queued) == (0, 0))
        asking.cancel()
