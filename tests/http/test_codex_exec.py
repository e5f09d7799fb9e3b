"""The agent `codex-exec` through the whole server, with the fake agent in the place of Codex."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.agents.codex_exec.launch import MAX_PROMPT
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import Fault
from tests.codex_schemas import NEWEST, TOO_OLD
from tests.commands.codexes import codex
from tests.http.serving import ENVIRONMENT, Proxy, model_input, running_proxy, settings_of, until, user
from tests.pictures import PIXEL

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def signed_in(folder: Path) -> dict[str, Any]:
    """Settings with a home of Codex that somebody has signed in to."""
    home = folder / "codex-home"
    home.mkdir(exist_ok=True)
    (home / "auth.json").write_text("{}")
    return {"codex_home": home}


@asynccontextmanager
async def exec_proxy(
    folder: Path,
    agent: str = "codex-exec",
    *,
    schema: str | None = NEWEST,
    environment: dict[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[Proxy]:
    program = codex(folder, "9.0.0", schema=schema, exec=True)
    settings = settings_of(folder, agent=agent, codex_bin=str(program), **(signed_in(folder) | more))
    async with running_proxy(await make_server(settings, ENVIRONMENT | (environment or {}))) as proxy:
        yield proxy


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with exec_proxy(tmp_path) as proxy:
        yield proxy


async def test_an_answer_comes_whole_and_streamed(proxy: Proxy) -> None:
    whole = await proxy.ask(user("[[fake:text say='Hello there.']]"))
    assert whole.body["choices"][0]["message"]["content"] == "Hello there."
    assert whole.body["usage"]["prompt_tokens"] == 100
    streamed = await proxy.ask(user("[[fake:text say='Hello there.']]", stream=True))
    texts = [
        frame["choices"][0]["delta"].get("content") for frame in streamed.frames[:-1] if frame["choices"]
    ]
    assert "".join(filter(None, texts)) == "Hello there."
    assert whole.headers["x-codex-agent"] == "codex-exec"


async def test_a_conversation_is_flattened_and_the_answer_says_so(proxy: Proxy) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "[[fake:echo]]"}]
    answer = await proxy.ask({"model": "codex-5", "messages": messages})
    assert answer.headers["x-codex-history"] == "flattened"
    text = json.loads(answer.body["choices"][0]["message"]["content"])["history"][0]["text"]
    assert "[system]\nBe brief.\n\n[user]\n[[fake:echo]]" in text
    assert "x-codex-history" not in (await proxy.ask(user())).headers


async def test_images_and_a_schema_reach_it_as_files_that_are_gone_afterwards(proxy: Proxy) -> None:
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    content = [{"type": "text", "text": "[[fake:echo]]"}, image, image]
    told = await model_input(proxy, {"model": "codex-5", "messages": [{"role": "user", "content": content}]})
    assert told["images"] == 2
    answer = await proxy.ask(
        user(
            "Who?",
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            },
        )
    )
    assert json.loads(answer.body["choices"][0]["message"]["content"]) == {"name": "name"}
    await until(lambda: not list(proxy.server.settings.state_dir.glob("home-*")))


async def test_a_request_with_tools_is_refused_by_what_the_agent_cannot_do(proxy: Proxy) -> None:
    answer = await proxy.ask(user(tools=[TOOL]))
    assert (answer.status, answer.error["param"]) == (400, "tools")
    assert answer.error["code"] == "unsupported_by_agent"
    assert "codex-exec" in answer.error["message"]


@pytest.mark.exhaustive
async def test_a_prompt_longer_than_codex_exec_accepts_is_refused_before_anything_starts(
    proxy: Proxy,
) -> None:
    body = io.BytesIO(json.dumps(user("x" * (MAX_PROMPT + 1))).encode())
    headers = {"Content-Type": "application/json"}
    async with proxy.session.post(f"{proxy.url}/v1/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "context_length_exceeded"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("text misbehave=crash", 500, "agent_crashed"),
        ("text misbehave=eof_without_end", 500, "agent_crashed"),
        ("text misbehave=torn", 500, "agent_crashed"),
    ],
)
async def test_a_child_that_ends_before_its_turn_does_is_an_error(
    proxy: Proxy, marker: str, status: int, code: str
) -> None:
    answer = await proxy.ask(user(f"[[fake:{marker}]]"))
    assert (answer.status, answer.error["code"]) == (status, code)


async def test_without_a_sign_in_there_is_an_error_at_once(tmp_path: Path) -> None:
    async with exec_proxy(tmp_path) as proxy:
        (proxy.server.settings.codex_home / "auth.json").unlink()
        answer = await proxy.ask(user())
        assert answer.error["code"] == "agent_not_authenticated"
        assert (await proxy.send("GET", "/readyz")).status == 503


@pytest.mark.exhaustive
@pytest.mark.parametrize("schema", [TOO_OLD, None])
async def test_auto_takes_it_where_the_app_server_cannot_be_driven_and_says_so(
    tmp_path: Path, schema: str | None
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with exec_proxy(tmp_path, "auto", schema=schema) as proxy:
            assert proxy.server.agent.name == "codex-exec"
            health = (await proxy.send("GET", "/healthz")).body
            shown = banner(proxy.server)
            assert (await proxy.ask(user("[[fake:text]]"))).status == 200
    reason = "thread/inject_items" if schema else "could not be read"
    [logged] = [each for each in lines if each["event"] == "agent_limited"]
    for said in (health["warning"], shown, logged["reason"]):
        assert reason in said
        assert "through `codex exec` instead, with limitations" in said
    assert logged["log_level"] == "warning"


@pytest.mark.exhaustive
async def test_health_has_the_warning_of_an_agent_beside_that_of_the_fake_one(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"codex": {"agent": "auto"}, "fake": {}}
    async with exec_proxy(tmp_path, "codex", schema=TOO_OLD, agents=tables) as proxy:
        warning = (await proxy.send("GET", "/healthz")).body["warning"]
    assert "through `codex exec` instead, with limitations" in warning
    assert "The embedded fake agent serves: its answers are made up." in warning


@pytest.mark.exhaustive
async def test_auto_does_not_take_it_where_the_app_server_can_be_driven(tmp_path: Path) -> None:
    async with exec_proxy(tmp_path, "auto") as proxy:
        assert proxy.server.agent.name == "codex-app-server"
        assert "codex exec" not in proxy.server.agent.warning


async def test_where_no_protocol_can_be_driven_the_start_ends_with_what_is_missing(tmp_path: Path) -> None:
    program = codex(tmp_path, "9.0.0", schema=TOO_OLD)
    settings = settings_of(tmp_path, agent="auto", codex_bin=str(program), **signed_in(tmp_path))
    with pytest.raises(Fault, match=r"Codex 9\.0\.0 cannot be used with codex-app-server, which needs"):
        await make_server(settings, ENVIRONMENT)


async def test_a_release_without_the_options_is_refused_by_their_names(tmp_path: Path) -> None:
    program = codex(tmp_path, "0.42.0")
    settings = settings_of(tmp_path, agent="codex-exec", codex_bin=str(program), **signed_in(tmp_path))
    with pytest.raises(Fault, match=r"does not list --json, --ephemeral"):
        await make_server(settings, ENVIRONMENT)


@pytest.mark.exhaustive
async def test_doctor_warns_where_less_drives_the_release_than_could(tmp_path: Path) -> None:
    program = codex(tmp_path, "9.0.0", schema=TOO_OLD, exec=True)
    flags = {
        "port": 0,
        "workdir": tmp_path,
        "state_dir": tmp_path / "state",
        "codex_bin": str(program),
        **signed_in(tmp_path),
    }
    checks = {check.name: check for check in (await examine(flags, None, ENVIRONMENT)).checks}
    assert checks["protocol"].status == "warning"
    assert "thread/inject_items" in checks["protocol"].message
    assert checks["protocol"].facts == {"agent": "codex-exec"}
    assert checks["sign-in"].status == "ok"


async def test_a_turn_for_whose_files_there_is_no_room_is_a_503_that_says_why(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with exec_proxy(tmp_path, store="off", state_dir=state) as proxy:
        picture = {"type": "image_url", "image_url": {"url": PIXEL}}
        body = {"model": "codex-5", "messages": [{"role": "user", "content": [picture]}]}
        state.rename(tmp_path / "elsewhere")
        refused = await proxy.ask(body)
        assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
        assert "No such file or directory" in refused.error["message"]
        assert str(tmp_path) not in refused.text
        (tmp_path / "elsewhere").rename(state)
        assert (await proxy.ask(body)).status == 200
