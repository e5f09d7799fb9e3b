"""`--log-content`: what is said is in the log, keys are not, and nobody can overlook that it is on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from codex_proxy.commands.serve import banner
from codex_proxy.http.middleware.content_log import MAX_CHARS, mask_secrets
from tests.cpu_time import assert_cpu_time_below
from tests.http.serving import Proxy, fake_proxy, user

KEY = "the-right-key"
PROMPT = "[[fake:text say='the answer']] the question"


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, log_content=True, api_key=KEY) as running:
        yield running


@pytest.fixture
def log_lines() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


def logged_text(lines: list[Any], of: str) -> str:
    return "".join(line["said"] for line in lines if line["event"] == "content" and line["of"] == of)


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_logged_with_its_answer(proxy: Proxy, log_lines: list[Any], stream: bool) -> None:
    await proxy.ask(user(f"{PROMPT} {KEY}", stream=stream), headers=bearer())
    assert "the question" in logged_text(log_lines, "request")
    assert "answer" in logged_text(log_lines, "answer")
    assert KEY not in repr(log_lines)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": KEY},
        {"x-api-key": KEY, "Authorization": "Bearer the-key-for-anthropic"},
        {"Authorization": f"Bearer {KEY}", "x-api-key": "the-key-for-anthropic"},
    ],
)
async def test_a_key_in_a_prompt_is_masked_whichever_header_has_it(
    proxy: Proxy, log_lines: list[Any], headers: dict[str, str]
) -> None:
    await proxy.ask(user(f"{PROMPT} {KEY} the-key-for-anthropic"), headers=headers)
    assert "the question" in logged_text(log_lines, "request")
    assert KEY not in repr(log_lines)
    assert headers.get("Authorization") is None or "the-key-for-anthropic" not in repr(log_lines)


async def test_a_request_that_is_refused_is_logged_as_it_came(proxy: Proxy, log_lines: list[Any]) -> None:
    await proxy.ask(b'{"messages": no json', headers=bearer())
    assert logged_text(log_lines, "request") == '{"messages": no json'
    assert "invalid_request_error" in logged_text(log_lines, "answer")


async def test_the_body_of_an_unknown_client_is_not_read_for_the_log(
    proxy: Proxy, log_lines: list[Any]
) -> None:
    await proxy.ask(user("the question"), headers=bearer("a-wrong-key"))
    assert logged_text(log_lines, "request") == ""
    assert "a-wrong-key" not in repr(log_lines)


async def test_frames_of_a_socket_are_logged(proxy: Proxy, log_lines: list[Any]) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{proxy.url}/v1/responses", headers=bearer()) as socket,
    ):
        await socket.send_json({"type": "response.create", "model": "codex-5", "input": PROMPT})
        while "response.completed" not in await socket.receive_str():
            pass
    assert "the question" in logged_text(log_lines, "request")
    assert "response.completed" in logged_text(log_lines, "answer")


async def test_a_supervisors_questions_are_not_logged(proxy: Proxy, log_lines: list[Any]) -> None:
    await proxy.send("GET", "/healthz")
    assert logged_text(log_lines, "answer") == ""


async def test_without_log_content_nothing_is_logged_and_with_it_the_banner_says_so(
    tmp_path: Path, proxy: Proxy, log_lines: list[Any]
) -> None:
    assert "PROMPTS AND ANSWERS ARE LOGGED" in banner(proxy.server)
    async with fake_proxy(tmp_path, store="off") as quiet:
        assert "LOGGED" not in banner(quiet.server)
        await quiet.ask(user(PROMPT))
    assert [line for line in log_lines if line["event"] == "content"] == []


@pytest.mark.parametrize(
    "text",
    [
        '{"authorization": "SECRET", "a": 1}',
        '{"headers": {"X-Api-Key": "SECRET"}}',
        json.dumps({"arguments": json.dumps({"access_token": "SECRET", "q": "kept"})}),
        json.dumps({"arguments": json.dumps({"inner": json.dumps({"client_secret": "SECRET"})})}),
        '{"headers": {"Authorization": "Bearer SECRET"}}',
        '{"headers": {"X-Team": "SECRET}", "X-Other": "SECRET\\\\", "X-More": "SECRET"}, "a": 1}',
        '{"transport": {"type": "http", "http_headers" : {"a": "SECRET"}}, "kept": {"env": {"B": "SECRET"}}}',
        json.dumps({"arguments": json.dumps({"headers": {"X-Team": "SECRET"}, "q": "kept"})}),
        "curl -H 'Authorization: Bearer SECRET' kept",
        "OPENAI_API_KEY=sk-SECRET-1234",
        '{"password": "a \\"quoted\\" SECRET"}',
    ],
)
def test_what_stands_where_keys_stand_is_masked(text: str) -> None:
    shown = mask_secrets(text)
    assert "SECRET" not in shown
    if text.startswith("{"):
        assert json.loads(shown).keys() == json.loads(text).keys()


def test_a_client_without_a_real_key_leaves_words_readable() -> None:
    for key in ("x", "none"):
        assert mask_secrets("There is none: next.", [key]) == "There is none: next."
    assert mask_secrets("It is secret-1.", ["secret-1"]) == "It is ***."


def test_of_a_key_that_begins_like_another_nothing_is_left() -> None:
    assert mask_secrets("It is secret-12.", ["secret-1", "secret-12"]) == "It is ***."


def test_a_value_that_never_ends_is_masked_to_the_end() -> None:
    assert mask_secrets('{"token": "SECRET') == '{"token": "***'
    assert mask_secrets('{"headers": {"a": "SECRET') == '{"headers": "***"'


@pytest.mark.parametrize(
    "text",
    [
        "\\" * 200_000,
        '"token' + "\\" * 200_000 + '"',
        '"' + "a-" * 100_000,
        "data:" * 200_000,
        "Bearer" + " " * 200_000,
        '"headers": {' * 20_000,
        '"headers":{"' * 20_000,
        '"env\\":{' * 20_000,
        '"headers": {' + '"' * 200_001,
        '"headers"' + " " * 200_000,
    ],
)
def test_no_text_keeps_the_mask_busy(text: str) -> None:
    assert_cpu_time_below(0.2, lambda: mask_secrets(text))


def test_images_are_left_out_and_long_texts_are_cut() -> None:
    picture = "data:image/png;base64," + "iVBORw0KGgo" * 1000
    assert mask_secrets(f'{{"url": "{picture}"}}') == '{"url": "data:image/png;base64,..."}'
    assert mask_secrets("x " * MAX_CHARS).endswith(f"... ({MAX_CHARS} more)")
