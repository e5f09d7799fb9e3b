from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import HistoryCall, HistoryMessage, HistoryOutput, ImagePart, TextPart
from codex_proxy.surfaces.ollama.parse import FillInRequest, PreloadRequest
from tests.pictures import png_of
from tests.surfaces.catalogs import catalog_of
from tests.surfaces.messages.asking import texts
from tests.surfaces.ollama.asking import HELLO, chat, generate, parse_body, refusal_of

PICTURE = base64.b64encode(png_of()).decode()
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


def calls_message(*names: str, **more: Any) -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": {"n": n}}, **more} for n, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def tool_message(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


# --- the model and the stream -----------------------------------------------------------------------


def test_an_answer_is_streamed_unless_the_body_says_otherwise() -> None:
    assert chat().stream
    assert generate(stream=None).stream
    assert not chat(stream=False).stream


@pytest.mark.parametrize("name", ["gpt-5.5", "gpt-5.5:latest"])
def test_the_tag_latest_is_that_of_a_name_without_a_tag(name: str) -> None:
    found = chat(model=name)
    assert found.turn.model == "gpt-5.5"
    assert found.model_asked == name


def test_a_model_with_the_tag_in_its_name_is_meant_as_it_is_written() -> None:
    catalog = catalog_of(models=(AgentModel(id="llama3:latest"), AgentModel(id="llama3")), any_model=True)
    assert chat(catalog, model="llama3:latest").turn.model == "llama3:latest"
    assert chat(catalog, model="qwen3:8b").turn.model == "qwen3:8b"


def test_a_model_that_does_not_exist_is_not_found() -> None:
    assert refusal_of(model="llama3:latest").kind is FaultKind.MODEL_NOT_FOUND


def test_a_body_without_a_model_is_refused() -> None:
    assert refusal_of(model=None).param == "model"


@pytest.mark.parametrize(
    ("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload"), ("0s", "unload")]
)
def test_a_request_without_a_prompt_loads_a_model(keep_alive: object, reason: str) -> None:
    for path, empty in (("chat", {"messages": []}), ("generate", {"prompt": ""})):
        found = parse_body(path, keep_alive=keep_alive, **empty)
        assert found == PreloadRequest(model_asked="codex-5", stream=True, reason=reason)  # type: ignore[arg-type]


# --- the conversation -------------------------------------------------------------------------------


def test_a_completion_is_a_message_of_the_user_after_the_system_prompt() -> None:
    found = generate(system="Be short.", prompt="Hi")
    assert texts(found.turn.history) == ["developer: Be short.", "user: Hi"]
    assert found.turn.mode == "model"
    assert generate().turn.mode == "agent"


def test_images_are_base64_of_any_type() -> None:
    found = chat(messages=[{**HELLO, "images": [PICTURE]}]).turn.history[0]
    assert isinstance(found, HistoryMessage)
    assert found.parts == (TextPart("hello"), ImagePart(f"data:image/png;base64,{PICTURE}"))
    assert generate(prompt="", images=[PICTURE]).turn.history[0] == HistoryMessage("user", found.parts[1:])


@pytest.mark.parametrize("data", ["not base64!", base64.b64encode(b"text").decode(), ""])
def test_an_image_that_is_none_is_refused(data: str) -> None:
    failure = refusal_of(messages=[HELLO, {**HELLO, "images": [PICTURE, data]}])
    assert failure.kind is FaultKind.INVALID_REQUEST
    assert failure.param == "messages[1].images[1]"


def test_what_the_model_has_said_is_part_of_the_history() -> None:
    said = {"role": "assistant", "content": "Hi."}
    assert chat(messages=[HELLO, said, HELLO]).turn.history[1] == HistoryMessage(
        "assistant", (TextPart("Hi."),)
    )


def test_a_call_without_an_id_is_answered_by_the_name_of_its_tool() -> None:
    history = chat(
        messages=[
            HELLO,
            calls_message("a", "b"),
            tool_message("B", tool_name="b"),
            tool_message("A", tool_name="a"),
        ]
    ).turn.history
    calls = [item for item in history if isinstance(item, HistoryCall)]
    outputs = [item for item in history if isinstance(item, HistoryOutput)]
    assert [call.call_id for call in calls] == [output.call_id for output in outputs]
    assert texts(tuple(outputs)) == ["call_1_0: A", "call_1_1: B"]
    assert calls[1].arguments == '{"n":1}'


def test_a_call_is_answered_by_its_id_or_by_the_order_of_the_outputs() -> None:
    history = chat(
        messages=[HELLO, calls_message("a", id="call_x"), tool_message("A", tool_call_id="call_x")]
    ).turn.history
    assert texts(history)[-1] == "call_x: A"
    history = chat(
        messages=[HELLO, calls_message("a", "a"), tool_message("1"), tool_message("2")]
    ).turn.history
    assert texts(history)[-2:] == ["call_1_0: 1", "call_1_1: 2"]


def test_outputs_answer_all_calls_of_an_answer_that_is_sent_as_several_messages() -> None:
    messages = [HELLO, calls_message("a", "a"), calls_message("a"), *map(tool_message, "123")]
    history = chat(messages=[*messages, calls_message("a"), tool_message("4")]).turn.history
    outputs = texts(tuple(item for item in history if isinstance(item, HistoryOutput)))
    assert outputs == ["call_1_0: 1", "call_1_1: 2", "call_2_0: 3", "call_6_0: 4"]


def test_calls_that_are_sent_again_before_each_output_are_the_same_calls() -> None:
    calls = calls_message("a", id="call_x") | {"content": ""}
    calls["tool_calls"] += calls_message("a", id="call_y")["tool_calls"]
    history = chat(messages=[HELLO, calls, tool_message("X"), calls, tool_message("Y"), calls]).turn.history
    outputs = texts(tuple(item for item in history if isinstance(item, HistoryOutput)))
    # The last message is another answer, which has no outputs yet.
    assert outputs[:2] == ["call_x: X", "call_y: Y"]
    assert len(outputs) == 4


def test_a_call_without_an_output_and_an_output_without_a_call_are_reported() -> None:
    history = texts(
        chat(messages=[HELLO, calls_message("a"), tool_message("X", tool_name="z"), HELLO]).turn.history
    )
    assert history[2] == "call_1_0: (This call has no output.)"
    assert history[3].startswith("user: Output of the tool z, whose call is not in the conversation:\nX")
    (_, orphan) = texts(chat(messages=[HELLO, tool_message("X")]).turn.history)
    assert orphan == "user: Output of a tool, whose call is not in the conversation:\nX"


def test_the_same_conversation_has_the_same_ids() -> None:
    messages = [HELLO, calls_message("a"), tool_message("A")]
    assert chat(messages=messages).turn.history == chat(messages=[*messages, HELLO]).turn.history[:3]


def test_tools_make_the_model_answer_plainly_and_keep_their_names() -> None:
    tool = {"type": "function", "function": {"name": "get.weather", "parameters": {"type": "object"}}}
    found = chat(tools=[tool])
    assert found.turn.mode == "model"
    (offered,) = found.turn.tools
    assert found.client_names == {offered.name: "get.weather"}


def test_two_tools_with_one_name_are_refused() -> None:
    assert refusal_of(tools=[WEATHER, WEATHER]).param == "tools[1].function.name"


# --- the answer -------------------------------------------------------------------------------------


def test_a_format_is_json_or_a_schema() -> None:
    assert chat(format="").turn.output_schema is None
    found = chat(format="json").turn
    assert bytes(found.output_schema or b"") == b'{"type":"object"}'
    assert bytes(chat(format=SCHEMA).turn.output_schema or b"").endswith(b'"integer"}}}')
    for wrong in ("yaml", ["json"], 1):
        assert refusal_of(format=wrong).param == "format"


def test_options_are_followed_or_named() -> None:
    found = chat(
        options={"temperature": 1, "num_predict": 5, "stop": ["x", "", "x"], "num_ctx": 4096}, keep_alive="5m"
    )
    assert found.turn.sampling == {"temperature": 1}
    assert (found.turn.max_tokens, found.turn.stop) == (5, ("x",))
    assert found.ignored == ("num_ctx",)
    assert chat(options={"num_predict": -1, "stop": "end"}).turn.max_tokens is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "hot"),
        *((name, 10**30) for name in ("num_predict", "seed", "top_k", "temperature", "presence_penalty")),
        ("top_p", 7),
    ],
)
def test_an_option_of_the_wrong_type_or_beyond_its_range_is_refused(option: str, value: Any) -> None:
    assert refusal_of(options={option: value}).param == f"options.{option}"


def test_fields_that_change_nothing_are_named() -> None:
    found = generate(raw=True, context=[1, 2], logprobs=True, of_tomorrow=1)
    assert set(found.ignored) == {"raw", "context", "logprobs", "of_tomorrow"}


def test_thinking_is_shown_unless_it_is_switched_off() -> None:
    assert chat().thinking
    assert (chat(think=True).turn.summary, chat(think=True).turn.effort) == ("auto", None)
    assert not chat(think=False).thinking
    assert chat(model="gpt-5.5", think=False).turn.effort == "low"
    assert chat(model="gpt-5.5", think="medium").turn.effort == "low"
    for wrong in ("hard", 1, ["high"]):
        assert refusal_of(think=wrong).param == "think"


def test_a_suffix_is_for_an_upstream_that_fills_in() -> None:
    found = parse_body(
        "generate", prompt="def f(", suffix="return x", options={"num_predict": 9, "stop": "x"}
    )
    assert isinstance(found, FillInRequest)
    body = {"model": "codex-5", "prompt": "def f(", "suffix": "return x", "max_tokens": 9, "stop": ["x"]}
    assert json.loads(found.body) == body
