"""POST /v1/messages of a whole server: framing, pings, faults as Claude Code has to see them, tools, access, limits."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests import pdfs
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Answer, Proxy, fake_proxy
from tests.surfaces.messages.answering import fold, frames
from tests.surfaces.messages.asking import message_of as spoken
from tests.surfaces.messages.asking import recordings, result, tool, use

pytestmark = pytest.mark.sampled(every=2, first=1)

TEXT = "Hello from the deterministic fake agent."


@pytest.fixture(params=["proto", "app-server"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body(text: str = "Hello.", **fields: Any) -> dict[str, Any]:
    """A request with one message of the user's."""
    messages = [{"role": "user", "content": text}]
    return {"model": "codex-5", "max_tokens": 32000, "messages": messages, **fields}


async def post(proxy: Proxy, body: Any, path: str = "/v1/messages?beta=true", **more: Any) -> Answer:
    """As Claude Code asks."""
    given = more.pop("headers", {})
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,of-tomorrow",
        **given,
    }
    return await proxy.send("POST", path, body, headers=headers, **more)


def folded_answer(answer: Answer) -> dict[str, Any]:
    return fold(frames(answer.text.encode()))


# --- an answer ------------------------------------------------------------------------------------


async def test_a_whole_answer_is_a_message(proxy: Proxy) -> None:
    answer = await post(proxy, body())
    assert answer.status == 200
    assert answer.body["content"] == [{"type": "text", "text": TEXT}]
    assert (answer.body["stop_reason"], answer.body["model"]) == ("end_turn", "codex-5")
    assert answer.body["id"].startswith("msg_")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def _with_ids_of(whole: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """The answer with the ids of another one, and its state, in which there are ids."""
    pairs = zip(whole["content"], like["content"], strict=True)
    return {**whole, "content": [{**one, **_names_in(other)} for one, other in pairs]}


def _names_in(block: dict[str, Any]) -> dict[str, Any]:
    return {name: block[name] for name in ("id", "data") if name in block}


async def test_a_stream_is_server_sent_events_that_nobody_may_keep(proxy: Proxy) -> None:
    answer = await post(proxy, body(stream=True))
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["request-id"].startswith("req_")
    assert folded_answer(answer)["content"][0]["text"] == TEXT


async def test_parameters_without_effect_are_named(proxy: Proxy) -> None:
    answer = await post(proxy, body(metadata={"user_id": "x"}, of_tomorrow=1))
    assert answer.headers["x-codex-ignored-params"] == "metadata, of_tomorrow"


async def test_a_silent_stream_begins_and_is_kept_alive_by_pings(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body("[[fake:text first=150]]", stream=True))
    kinds = [frame["type"] for frame in frames(answer.text.encode())]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds.count("message_start") == 1
    assert folded_answer(answer)["stop_reason"] == "end_turn"


async def test_activity_that_is_not_shown_ends_no_silence(tmp_path: Path) -> None:
    """A call is told in one piece; until then the client hears pings, and not nothing."""
    async with fake_proxy(tmp_path, heartbeat_interval=0.03) as proxy:
        marker = '[[fake:tool_call delay=15 n=12 args=\'{"city": "' + "Rome " * 20 + "\"}']]"
        answer = await post(proxy, body(marker, tools=[tool()], stream=True))
    kinds = [frame["type"] for frame in frames(answer.text.encode())]
    assert "ping" in kinds
    assert folded_answer(answer)["content"][-1]["type"] == "tool_use"


async def test_a_stop_sequence_ends_the_answer_and_is_reported(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body('[[fake:text say="one two three"]]', stop_sequences=["two"]))
    assert answer.body["content"] == [{"type": "text", "text": "one "}]
    assert (answer.body["stop_reason"], answer.body["stop_sequence"]) == ("stop_sequence", "two")


async def test_max_tokens_cuts_the_answer(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await post(proxy, body("[[fake:long_text n=500]]", max_tokens=3))
    assert answer.body["stop_reason"] == "max_tokens"


# --- tools ----------------------------------------------------------------------------------------


async def test_a_call_and_its_result(tmp_path: Path, dialect: str) -> None:
    tools = [tool()]
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        first = await post(proxy, body("What is the weather in Rome?", tools=tools, stream=True))
        call = folded_answer(first)["content"][-1]
        assert (call["type"], call["name"]) == ("tool_use", "get_weather")
        messages = [
            *body("What is the weather in Rome?")["messages"],
            {"role": "assistant", "content": folded_answer(first)["content"]},
            spoken("user", result(call["id"], "sunny")),
        ]
        second = await post(proxy, body(tools=tools, messages=messages))
    assert folded_answer(first)["stop_reason"] == "tool_use"
    assert "sunny" in second.body["content"][0]["text"]


async def test_a_long_name_comes_back_as_the_client_wrote_it(tmp_path: Path, dialect: str) -> None:
    name = "mcp__server__" + "weather_" * 12
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body("[[fake:tool_call]]", tools=[tool(name)]))
    assert answer.body["content"][-1]["name"] == name


async def test_a_tool_of_anthropics_servers_is_refused_with_what_to_do(proxy: Proxy) -> None:
    answer = await post(proxy, body(tools=[{"type": "code_execution_20250825", "name": "code_execution"}]))
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert "custom tool" in answer.error["message"]


async def test_a_history_of_anything_is_answered(tmp_path: Path, dialect: str) -> None:
    messages = [
        spoken("user", "Hi.", {"type": "container_upload", "file_id": "f"}),
        spoken("assistant", {"type": "redacted_thinking", "data": "x"}, use("a"), use("b")),
        spoken("system", "Be brief."),
        spoken("user", result("b", [{"type": "of_tomorrow"}]), result("z")),
        spoken("assistant", {"type": "web_search_tool_result", "content": {"error_code": "unavailable"}}),
        spoken("user", "Well?"),
    ]
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        assert (await post(proxy, body(messages=messages, system="You are it."))).status == 200


RECORDED = ["01-print-session", "05-web", "09-signature-interleaved"]


async def test_recorded_sessions_are_answered(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}, fake_dialect="app-server") as proxy:
        for name, entry in recordings(*RECORDED):
            answer = await post(proxy, entry["body"], entry["path"])
            assert answer.status == 200, (name, answer.text)
            assert folded_answer(answer)["role"] == "assistant"


# --- faults before the first byte -------------------------------------------------------------------

FAULTS: dict[str, tuple[int, str, bool]] = {
    "auth_401": (500, "api_error", True),
    "quota": (402, "billing_error", True),
    "model_not_found": (404, "not_found_error", False),
    "invalid_prompt": (400, "invalid_request_error", False),
    "context_length": (400, "invalid_request_error", False),
    "usage_limit": (429, "rate_limit_error", True),
    "error_rate_limit": (429, "rate_limit_error", False),
    "error_500": (500, "api_error", False),
    "overloaded": (529, "overloaded_error", False),
}
"""By scenario of the fake agent: the status and type, and whether the client must not try again."""


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scenario", FAULTS)
async def test_a_fault_before_the_first_byte_is_a_plain_status(
    tmp_path: Path, scenario: str, stream: bool, dialect: str
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body(f"[[fake:{scenario}]]", stream=stream))
    status, kind, lasting = FAULTS[scenario]
    assert (answer.status, answer.error["type"]) == (status, kind), answer.text
    assert answer.headers["Content-Type"].startswith("application/json")
    assert (answer.headers.get("x-should-retry") == "false") is lasting
    assert answer.body["request_id"] == answer.headers["request-id"]


async def test_too_long_a_context_is_reported_in_the_words_by_which_clients_compact(
    tmp_path: Path, dialect: str
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body("[[fake:context_length]]", stream=True))
    words = answer.error["message"].split()
    assert words[:4] == ["prompt", "is", "too", "long:"]
    assert words[5:7] == ["tokens", ">"]
    assert int(words[4]) > int(words[7])


async def test_a_body_that_is_no_request_is_refused_in_anthropics_shape(proxy: Proxy) -> None:
    for body in (b"{", b"[]", b'{"messages": 5}'):
        answer = await post(proxy, body)
        assert (answer.status, answer.body["type"]) == (400, "error")
    wrong = await proxy.send("GET", "/v1/messages", headers={"anthropic-version": "2026-10-21"})
    assert (wrong.status, wrong.error["type"]) == (405, "invalid_request_error")


async def test_a_body_that_is_too_large_is_413_in_anthropics_shape(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, body_limit=2000) as proxy:
        answer = await post(proxy, body("x" * 3000))
    assert (answer.status, answer.error["type"]) == (413, "request_too_large")


async def test_a_server_without_room_is_a_rate_limit(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=1) as proxy:
        await post(proxy, body())
        answer = await post(proxy, body())
    assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
    assert int(answer.headers["Retry-After"]) >= 1


# --- faults behind it -------------------------------------------------------------------------------


async def test_a_fault_in_mid_stream_is_an_error_event_and_no_end(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body("[[fake:error_mid_text]]", stream=True))
        whole = await post(proxy, body("[[fake:error_mid_text]]"))
    events = frames(answer.text.encode())
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "error"
    assert events[-1]["request_id"] == answer.headers["request-id"]
    assert "message_stop" not in [event["type"] for event in events]
    assert (whole.status, whole.body["type"]) == (events_status(events[-1]), "error")


def events_status(event: dict[str, Any]) -> int:
    return {"api_error": 500, "timeout_error": 504, "overloaded_error": 529}[event["error"]["type"]]


async def test_an_agent_that_dies_in_mid_stream_is_an_error_event(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        answer = await post(proxy, body("[[fake:long_text n=200 misbehave=crash at=8]]", stream=True))
    last = frames(answer.text.encode())[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


async def test_after_a_ping_a_fault_is_an_event(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, heartbeat_interval=0.02, first_event_timeout=0.3) as proxy:
        answer = await post(proxy, body("[[fake:text misbehave=hang at=1]]", stream=True))
    kinds = [event["type"] for event in frames(answer.text.encode())]
    assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "ping", "error")


# --- access -----------------------------------------------------------------------------------------


async def test_a_key_that_may_not_use_a_model_gets_an_error_that_says_so(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"bob": {"models": ["codex-5-low"]}}) as proxy:
        answer = await post(proxy, body(), headers=key_header("bob"))
        low = await post(proxy, body(output_config={"effort": "low"}), headers=key_header("bob"))
    assert (answer.status, answer.error["type"]) == (403, "permission_error")
    assert low.status == 200


async def test_the_log_names_the_session_and_no_word_of_it(tmp_path: Path, log_lines: list[Any]) -> None:
    session = "ffdb129f-e764-453f-a8bf-4f9c5fe6955b"
    async with fake_proxy(tmp_path) as proxy:
        await post(proxy, body("secret words"), headers={"x-claude-code-session-id": session})
        await post(proxy, body("secret words"), headers={"x-claude-code-session-id": "not one"})
    lines = [line for line in log_lines if line["event"] == "request" and line["path"] == "/v1/messages"]
    assert [line.get("session") for line in lines] == [session, None]
    assert "secret" not in json.dumps(log_lines, default=str)


# --- what a history may bring -----------------------------------------------------------------------


def document(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, "title": "a.pdf"}


async def test_a_pdf_is_read_and_one_that_cannot_be_is_a_note(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        for data in (pdfs.pdf("Hello from the file."), pdfs.encrypted_pdf("Hello.", "secret")):
            answer = await post(proxy, body(messages=[spoken("user", document(data), "[[fake:echo]]")]))
            assert answer.status == 200
            readable = "Hello from the file." in answer.text
            assert readable is ("cannot read it" not in answer.text)
            assert readable is ("document" not in answer.headers.get("x-codex-ignored-params", ""))


async def test_an_address_that_may_not_be_fetched_is_refused_in_the_newest_message_only(
    tmp_path: Path,
) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.invalid/a.png"}}
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        newest = await post(proxy, body(messages=[spoken("user", image, "Look.")]))
        messages = [
            spoken("user", image, "Look."),
            spoken("assistant", "I see."),
            spoken("user", "[[fake:echo]]"),
        ]
        earlier = await post(proxy, body(messages=messages))
        both = await post(proxy, body(messages=[*messages, spoken("user", image)]))
    assert (newest.status, both.status) == (400, 400)
    assert "messages[0].content[0].source.url" in newest.error["message"]
    assert "messages[3].content[0].source.url" in both.error["message"]
    assert earlier.status == 200
    assert "An image was left out" in earlier.text


async def test_messages_that_say_nothing_are_refused(proxy: Proxy) -> None:
    answer = await post(proxy, body(""))
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


async def test_the_reason_of_an_end_is_counted(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, metrics=True) as proxy:
        await post(proxy, body())
        counted = await proxy.send("GET", "/metrics")
    (line,) = [
        line for line in counted.text.splitlines() if line.startswith("codex_proxy_finish_reasons_total{")
    ]
    assert 'reason="end_turn"' in line
    assert line.endswith(" 1.0")
