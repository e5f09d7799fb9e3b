"""`PROXY_CHAT_PROFILE=codex-completions-api`: chunks as that server sends them."""

from __future__ import annotations

from typing import Any

from codex_proxy.core.events import Event
from tests.surfaces.chat.answering import CREATED, ID, MODEL, renderer, stream_events
from tests.surfaces.chat.turns import failed_turn, text_item, tool_call, turn, usage

PROFILE = "codex-completions-api"


def in_profile(events: list[Event], **options: Any) -> list[Any]:
    return stream_events(events, profile=PROFILE, **options)


def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
    head = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
    return {**head, "choices": list(choices), "usage": None}


def choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason}


def test_usage_is_null_on_every_chunk_without_include_usage_too() -> None:
    assert in_profile(turn(text_item("Hi"), usage())) == [
        chunk(choice(0, {"role": "assistant"})),
        chunk(choice(0, {"content": "Hi"})),
        chunk(choice(0, {}, "stop")),
        "[DONE]",
    ]


def test_every_chunk_has_all_choices() -> None:
    assert in_profile(turn(text_item("H", "i")), choices=2) == [
        chunk(choice(0, {"role": "assistant"}), choice(1, {"role": "assistant"})),
        chunk(choice(0, {"content": "H"}), choice(1, {"content": "H"})),
        chunk(choice(0, {"content": "i"}), choice(1, {"content": "i"})),
        chunk(choice(0, {}, "stop"), choice(1, {}, "stop")),
        "[DONE]",
    ]


def test_the_usage_chunk_comes_after_the_chunk_with_the_finish_reasons() -> None:
    frames = in_profile(turn(text_item("Hi"), usage()), choices=3, include_usage=True)
    assert [len(frame["choices"]) for frame in frames[:-1]] == [3, 3, 3, 0]


def test_calls_go_to_all_choices_in_one_chunk_each() -> None:
    frames = in_profile(turn(tool_call('{"a":', "1}")), choices=2, whole_calls=True)
    first, second = frames[1]["choices"]
    assert first["delta"] == second["delta"]
    assert first["delta"]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert [each["finish_reason"] for each in frames[2]["choices"]] == ["tool_calls", "tool_calls"]


def test_an_answer_without_a_word_ends_all_choices_in_one_chunk() -> None:
    frames = in_profile(turn(), choices=2)
    assert [[each["delta"] for each in frame["choices"]] for frame in frames[:-1]] == [
        [{"role": "assistant"}] * 2,
        [{"content": ""}] * 2,
        [{}, {}],
    ]


def test_choices_that_the_agent_reports_itself_have_chunks_of_their_own() -> None:
    events = turn(
        text_item("one", id="a", choice=0), text_item("two", id="b", choice=1), choice_stops={1: "length"}
    )
    frames = in_profile(events, choices=2)
    assert frames[1] == chunk(choice(0, {"content": "one"}))
    assert frames[2] == chunk(choice(1, {"content": "two"}))
    assert frames[3] == chunk(choice(0, {}, "stop"), choice(1, {}, "length"))


def test_a_failure_is_the_same_frame_as_in_the_other_profile() -> None:
    assert (
        in_profile(failed_turn(text_item("Hel")), choices=2)[-2:]
        == stream_events(failed_turn(text_item("Hel")))[-2:]
    )


def test_the_role_of_all_choices_comes_with_the_first_keepalive_in_one_chunk() -> None:
    assert renderer(stream=True, profile=PROFILE, choices=2).open().count(b"data: ") == 1
