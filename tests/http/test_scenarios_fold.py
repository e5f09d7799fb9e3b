"""Whatever the agent does, the streamed and the whole answer are one: the same message, end and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import fake_proto
from tests.http.serving import WEATHER, Answer, Proxy, fake_proxy, user

SCENARIOS = sorted(path.stem for path in Path(fake_proto.__file__ or "").parent.glob("scenarios/*.json"))


WAYS = [
    ("app-server", 1, "broadcast"),
    ("app-server", 2, "broadcast"),
    ("app-server", 2, "sample"),
    ("proto", 1, "broadcast"),
    pytest.param(("proto", 2, "broadcast"), marks=pytest.mark.exhaustive),
    pytest.param(("proto", 2, "sample"), marks=pytest.mark.exhaustive),
]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=WAYS, ids=lambda way: " ".join(map(str, way))
)
async def proxy_and_n(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy of either dialect and either way to make choices, and how many to ask for."""
    dialect, n, choices = request.param
    folder = tmp_path_factory.mktemp("proxy")
    async with fake_proxy(folder, fake_dialect=dialect, choices=choices) as running:
        yield running, n


def fold(frames: list[Any]) -> list[dict[str, Any]]:
    """The choices that a client puts together from a stream, by the plainest reading of the contract."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in [choice for frame in frames for choice in frame["choices"]]:
        index, delta = choice["index"], choice["delta"]
        folded = choices.setdefault(index, {"message": {}, "finish_reason": None})
        assert folded["finish_reason"] is None, "nothing follows a finish reason"
        merge(folded["message"], delta)
        folded["finish_reason"] = choice["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def merge(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Texts are appended, objects merged, lists of indexed objects merged by their index."""
    for key, value in delta.items():
        if key == "index":
            continue
        if isinstance(value, dict):
            merge(whole.setdefault(key, {}), value)
        elif isinstance(value, list):
            calls = whole.setdefault(key, [])
            for each in value:
                while len(calls) <= each["index"]:
                    calls.append({})
                merge(calls[each["index"]], each)
        else:
            whole[key] = whole.get(key, "") + value


def without_call_ids(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two turns on one process never have the same call ids. Every call has one, and no two are alike."""
    for choice in choices:
        ids = [call.pop("id") for call in choice["message"].get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
        assert all(ids)
    return choices


def without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


@pytest.mark.sampled(every=8)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_stream_folds_to_the_whole_answer(proxy_and_n: tuple[Proxy, int], scenario: str) -> None:
    proxy, n = proxy_and_n
    body = user(f"[[fake:{scenario}]]", n=n, tools=[WEATHER], stream_options={"include_usage": True})
    streamed = await proxy.ask({**body, "stream": True})
    del body["stream_options"]
    whole = await proxy.ask(body)
    if streamed.headers["Content-Type"].startswith("application/json"):
        assert (streamed.status, streamed.text) == (whole.status, whole.text)
        assert whole.status >= 400
        return
    *frames, done = streamed.frames
    assert done == "[DONE]"
    if "error" in frames[-1]:
        assert_same_failure(frames, whole)
        return
    *chunks, usage = frames
    assert whole.status == 200
    expected = [
        {"message": without_nulls(choice["message"]), "finish_reason": choice["finish_reason"]}
        for choice in whole.body["choices"]
    ]
    assert without_call_ids(fold(chunks)) == without_call_ids(expected)
    streaming_only = {"time_to_first_token", "throughput_after_first_token", "emission_trigger"}
    assert {key: value for key, value in usage["usage"].items() if key not in streaming_only} == whole.body[
        "usage"
    ]


def assert_same_failure(frames: list[Any], whole: Answer) -> None:
    """What ends a stream with a frame is the status of a whole answer, in the same words."""
    failed = frames[-1]["error"]
    assert whole.status >= 400
    assert {key: failed[key] for key in ("message", "type", "code")} == {
        key: whole.error[key] for key in ("message", "type", "code")
    }
    assert all(choice["finish_reason"] is None for frame in frames[:-1] for choice in frame["choices"])


def test_there_are_scenarios_of_every_kind() -> None:
    assert {"text", "tool_calls", "function_call", "error_mid_text", "multi_choice", "unicode"} <= set(
        SCENARIOS
    )
