"""What goes wrong upstream, as the official SDK sees it: a status before the first byte, a frame after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.model_server import ModelServer, model_server
from tests.real.proxy import Proxy, chat_request, proxy
from tests.waiting import out_of_patience


class Wire(NamedTuple):
    """An error as the client gets it."""

    status: int
    type: str
    code: str | None
    message: str
    """Some of its words."""


UPSTREAM = "127.0.0.1"

NOT_LET_IN = Wire(502, "server_error", "upstream_unauthorized", "credentials")
FAILED = Wire(502, "server_error", "upstream_error", "")
BUSY = Wire(503, "server_error", "service_unavailable", "")
# Codex says of a response that failed that the stream was disconnected, whatever the reason.
BROKEN_OFF = Wire(502, "server_error", "upstream_disconnected", "broke off")

BEFORE_TEXT = {
    # Codex keeps the provider's code to itself.
    "http status=400 code=invalid_prompt msg=Forbidden": Wire(
        400, "invalid_request_error", "rejected_by_provider", "Forbidden"
    ),
    "http status=401 msg=no": NOT_LET_IN,
    "http status=403 msg=no": NOT_LET_IN,
    "http status=429 code=rate_limit_exceeded msg=slow": Wire(
        429, "rate_limit_error", "rate_limit_exceeded", ""
    ),
    "failed code=insufficient_quota": Wire(429, "rate_limit_error", "insufficient_quota", ""),
    "failed code=context_length_exceeded": Wire(
        400, "invalid_request_error", "context_length_exceeded", "This model's maximum context length is "
    ),
    "http status=500 msg=broken": FAILED,
    "http status=503 msg=broken": BUSY,
    "failed code=server_error msg=broken": BROKEN_OFF,
    "failed code=server_is_overloaded msg=busy": BUSY,
    "drop n=0": BROKEN_OFF,
}

AFTER_TEXT = {
    "failed": ("failed n=3 code=server_error msg=broken", "server_error", "upstream_disconnected"),
    "dropped": ("drop n=3", "server_error", "upstream_disconnected"),
    "overloaded": ("failed n=3 code=server_is_overloaded", "server_error", "service_unavailable"),
    "context": (
        "failed n=3 code=context_length_exceeded",
        "invalid_request_error",
        "context_length_exceeded",
    ),
}

BOTH_MODES = pytest.mark.parametrize("system", [None, "Be brief."], ids=["agent", "plain model"])


async def read_to_error(
    proxy: Proxy, *, patient_until: str | None = None, **request: Any
) -> tuple[str, openai.APIError]:
    """The text of a stream up to its error, and the error. The next sign of life comes too late behind the text
    `patient_until`."""
    text = ""
    stream = await proxy.client.chat.completions.create(stream=True, **request)
    try:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            assert chunk.choices[0].finish_reason is None
            if text == patient_until:
                out_of_patience(proxy.server.runs)
    except openai.APIError as error:
        return text, error
    raise AssertionError("the stream ended well")


async def chunks_of(proxy: Proxy, **request: Any) -> AsyncIterator[ChatCompletionChunk]:
    stream = await proxy.client.chat.completions.create(stream=True, **request)
    async for chunk in stream:
        yield chunk


@pytest.mark.exhaustive
@BOTH_MODES
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_fault_before_any_text_is_a_plain_status(
    proxy: Proxy, system: str | None, stream: bool
) -> None:
    for scenario, wire in BEFORE_TEXT.items():
        request = chat_request(f"[[model:{scenario}]]", system=system)
        with pytest.raises(openai.APIStatusError) as caught:
            await proxy.client.chat.completions.create(stream=stream, **request)
        error = caught.value
        assert (scenario, error.status_code, error.type, error.code) == (scenario, *wire[:3])
        assert wire.message in error.message
        assert UPSTREAM not in error.message, scenario
        assert set(error.body) == {"message", "type", "param", "code"}  # type: ignore[call-overload]


@BOTH_MODES
async def test_a_fault_after_some_text_is_a_frame_and_the_end(proxy: Proxy, system: str | None) -> None:
    for name, (scenario, kind, code) in AFTER_TEXT.items():
        request = chat_request(f"[[model:{scenario}]]", system=system)
        text, error = await read_to_error(proxy, **request)
        assert (name, text) == (name, "word0 word1 word2 ")
        assert (name, error.type, error.code, error.param) == (name, kind, code, None)
        assert UPSTREAM not in error.message


async def test_a_fault_after_some_text_is_a_plain_status_where_the_answer_is_whole(proxy: Proxy) -> None:
    for scenario, kind, code in AFTER_TEXT.values():
        with pytest.raises(openai.APIStatusError) as caught:
            await proxy.client.chat.completions.create(
                **chat_request(f"[[model:{scenario}]]", system="Be brief.")
            )
        assert (caught.value.type, caught.value.code) == (kind, code)


async def test_a_usage_limit_says_when_it_ends(proxy: Proxy) -> None:
    body = '{"error":{"type":"usage_limit_reached","message":"limit","plan_type":"pro","resets_in_seconds":3600}}'
    request = chat_request(f"[[model:http status=429 raw='{body}']]", system="Be brief.")
    with pytest.raises(openai.RateLimitError) as caught:
        await proxy.client.chat.completions.create(**request)
    assert caught.value.code == "usage_limit_reached"
    assert caught.value.type == "rate_limit_error"


@BOTH_MODES
@pytest.mark.parametrize(
    ("why", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_an_incomplete_answer_says_why_it_ended(
    proxy: Proxy, system: str | None, why: str, finish: str
) -> None:
    request = chat_request(f"[[model:incomplete n=3 why={why}]]", system=system)
    whole = await proxy.client.chat.completions.create(**request)
    assert whole.choices[0].finish_reason == finish
    assert whole.choices[0].message.content == "word0 word1 word2 "
    chunks = [chunk async for chunk in chunks_of(proxy, **request)]
    assert chunks[-1].choices[0].finish_reason == finish


@BOTH_MODES
async def test_a_refusal_is_a_refusal_and_not_an_empty_answer(proxy: Proxy, system: str | None) -> None:
    """Codex keeps the text of a refusal to itself, so there is a standing one."""
    answer = await proxy.client.chat.completions.create(**chat_request("[[model:refusal]]", system=system))
    assert answer.choices[0].message.refusal
    assert not answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.exhaustive
async def test_a_provider_that_cannot_be_reached_is_an_error_at_once(tmp_path: Path) -> None:
    async with model_server() as gone:
        home = make_codex_home(tmp_path, gone.base_url)
    async with proxy(home) as running:
        with pytest.raises(openai.APIStatusError) as caught:
            await running.client.chat.completions.create(**chat_request("Hello", system="Be brief."))
        assert (caught.value.status_code, caught.value.code) == (502, "upstream_unreachable")


async def test_without_a_sign_in_the_error_comes_at_once(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    codex_home.config.write_text("")
    async with proxy(codex_home) as running:
        processes = {process.pid for process in running.processes}
        for system in (None, "Be brief.", None):
            request = chat_request("Hello", system=system) | {"model": "codex-5"}
            with pytest.raises(openai.AuthenticationError) as caught:
                await running.client.chat.completions.create(**request)
            assert caught.value.code == "agent_not_authenticated"
            assert "codex login" in caught.value.message
        assert processes <= {process.pid for process in running.processes}, (
            "no new process for a sign-in that never came"
        )
        assert running.idle
    assert model_server.calls == []


@pytest.mark.exhaustive
async def test_a_sign_in_is_seen_without_a_restart(codex_home: CodexHome, model_server: ModelServer) -> None:
    config = codex_home.config.read_text()
    codex_home.config.write_text(
        config.replace('env_key = "SCRIPTED_MODEL_KEY"', "requires_openai_auth = true")
    )
    async with proxy(codex_home) as running:
        with pytest.raises(openai.AuthenticationError):
            await running.client.chat.completions.create(**chat_request("Hello"))
        (codex_home.path / "auth.json").write_text('{"OPENAI_API_KEY": "sk-of-the-user", "tokens": null}')
        for system in (None, "Be brief."):
            answer = await running.client.chat.completions.create(
                **chat_request("[[model:text say=Hi.]]", system=system)
            )
            assert answer.choices[0].message.content == "Hi."
    keys = {call.headers["authorization"] for call in model_server.calls}
    assert keys == {"Bearer sk-of-the-user"}


@pytest.mark.parametrize(
    "agent", ["codex-app-server", pytest.param("codex-exec", marks=pytest.mark.exhaustive)]
)
async def test_a_server_whose_codex_home_was_removed_is_not_ready(codex_home: CodexHome, agent: str) -> None:
    async with proxy(codex_home, agent=agent) as running, aiohttp.ClientSession() as session:

        async def ready() -> tuple[int, str]:
            async with session.get(f"{running.url}/readyz") as answer:
                return answer.status, await answer.text()

        assert (await ready())[0] == 200
        codex_home.path.rename(codex_home.path.with_name("elsewhere"))
        status, text = await ready()
        assert (status, "was removed" in text) == (503, True)
        codex_home.path.with_name("elsewhere").rename(codex_home.path)
        assert (await ready())[0] == 200
