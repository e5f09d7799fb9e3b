"""The example of a one-shot agent, driven through the whole server by the official SDK."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from tests.http.serving import ENVIRONMENT, Proxy, running_proxy, settings_of
from tests.process.children import have_ended
from tests.waiting import PATIENCE, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "oneshot_agent"
PLUGIN = {"agent": "auto", "agent_plugin": "oneshot_agent.spec:SPEC"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the package were installed."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "oneshot_agent"]:
        del sys.modules[name]


@asynccontextmanager
async def proxy_and_client(
    folder: Path, script: str = "", **settings: Any
) -> AsyncIterator[tuple[Proxy, AsyncOpenAI]]:
    """A server whose agent runs this shell script for each turn; without one, the program of the example."""
    environ = {**ENVIRONMENT, **({"ONESHOT_PROGRAM": shlex.join(["sh", "-c", script])} if script else {})}
    server = await make_server(settings_of(folder, **PLUGIN, **settings), environ)
    async with (
        running_proxy(server) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client,
    ):
        yield proxy, client


def user(text: str = "Hello.") -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


async def test_the_example_gives_a_whole_answer(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (_, client):
        answer = await client.chat.completions.create(model="any", messages=user("How are you?"))
    assert answer.choices[0].message.content == "You wrote 3 words:\nHow are you?\n"
    assert answer.choices[0].finish_reason == "stop"


async def test_the_responses_api_gives_the_same_answer(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (_, client):
        response = await client.responses.create(model="any", input="How are you?")
    assert response.status == "completed"
    assert response.output_text == "You wrote 3 words:\nHow are you?\n"


async def test_text_is_streamed_while_the_program_still_runs(tmp_path: Path) -> None:
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"
    script = f"cat >prompt; printf 'one \\303'; {wait}; printf '\\251t\\303\\251'"
    async with proxy_and_client(tmp_path, script) as (_, client):
        stream = await client.chat.completions.create(model="any", messages=user(), stream=True)
        pieces: list[str] = []
        async for chunk in stream:
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            if pieces:
                (tmp_path / "go").touch()  # only what has come by now lets the program go on
    assert pieces[0] == "one "
    assert "".join(pieces) == "one été"
    assert (tmp_path / "prompt").read_text() == "Hello."


async def test_a_long_prompt_reaches_the_program_whole(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, "wc -c") as (_, client):
        answer = await client.chat.completions.create(model="any", messages=user("x" * 1_000_000))
    assert (answer.choices[0].message.content or "").strip() == "1000000"


async def test_a_conversation_goes_in_as_one_labelled_text(tmp_path: Path) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go on."},
    ]
    async with proxy_and_client(tmp_path, "cat") as (_, client):
        raw = await client.chat.completions.with_raw_response.create(model="any", messages=messages)
    text = "developer: Be brief.\n\nuser: Hello.\n\nassistant: Yes?\n\nuser: Go on."
    assert raw.parse().choices[0].message.content == text
    assert raw.headers["x-codex-history"] == "flattened"


async def test_when_the_client_leaves_the_program_is_ended(tmp_path: Path) -> None:
    script = "cat >/dev/null; echo $$ >pid; echo started; while :; do sleep 60; done"
    async with proxy_and_client(tmp_path, script) as (proxy, client):
        stream = await client.chat.completions.create(model="any", messages=user(), stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        pid = int((tmp_path / "pid").read_text())
        await eventually(lambda: have_ended([pid]))
        await proxy.settled()


async def test_a_program_that_fails_is_an_error_with_its_exit_code_and_its_last_words(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, "cat >/dev/null; echo 'no such model' >&2; exit 3") as (_, client):
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(model="any", messages=user())
    assert error.value.status_code == 500
    assert error.value.code == "agent_crashed"
    assert "exit code 3" in error.value.message
    assert "no such model" in error.value.message


async def test_a_program_that_fails_in_the_middle_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    pieces: list[str] = []
    async with proxy_and_client(tmp_path, "cat >/dev/null; echo half; exit 3") as (_, client):
        stream = await client.chat.completions.create(model="any", messages=user(), stream=True)

        async def read() -> None:
            async for chunk in stream:
                pieces.extend(choice.delta.content or "" for choice in chunk.choices)

        with pytest.raises(openai.APIError, match="exit code 3"):
            await read()
    assert "".join(pieces) == "half\n"


async def test_the_failure_of_a_program_that_does_not_read_its_prompt_is_reported(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, "echo 'bad flag' >&2; exit 2") as (_, client):
        with pytest.raises(openai.InternalServerError, match="bad flag"):
            await client.chat.completions.create(model="any", messages=user("x" * 1_000_000))


async def test_no_output_is_an_error_that_says_so(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, "cat >/dev/null") as (_, client):
        with pytest.raises(openai.InternalServerError, match="without an answer"):
            await client.chat.completions.create(model="any", messages=user())


async def test_a_request_for_what_the_plugin_cannot_do_is_refused_with_the_capability_to_declare(
    tmp_path: Path,
) -> None:
    async with proxy_and_client(tmp_path) as (_, client):
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(
                model="any",
                messages=user(),
                tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            )
    assert (error.value.param, error.value.code) == ("tools", "unsupported_by_agent")
    assert "The agent oneshot does not support tools" in error.value.message
    assert "must declare the capability 'client_tools'" in error.value.message


async def test_the_banner_says_that_nothing_confines_the_program(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        assert "no sandbox but the agent's own rules (read-only): its commands run as you" in banner(
            proxy.server
        )


async def test_health_and_metrics_name_the_plugins_agent(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path, metrics=True) as (proxy, _):
        assert (await proxy.send("GET", "/healthz")).body["agent"] == {
            "name": "oneshot",
            "fake": False,
            "version": Path(sys.executable).name,
        }
        assert 'agent="oneshot"' in (await proxy.send("GET", "/metrics")).text


async def test_a_program_that_is_not_there_ends_the_start_and_fails_in_doctor(tmp_path: Path) -> None:
    environ = {**ENVIRONMENT, "ONESHOT_PROGRAM": "/nowhere/at/all --quiet"}
    with pytest.raises(NoAgentError, match="ONESHOT_PROGRAM"):
        await make_server(settings_of(tmp_path, **PLUGIN), environ)
    flags = {**PLUGIN, "port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state"}
    checks = {check.name: check for check in (await examine(flags, None, environ)).checks}
    assert checks["agent plugin"].status == "ok"
    assert checks["agent"].status == "failed"
    assert "/nowhere/at/all" in checks["agent"].message


@pytest.mark.parametrize("word", ["", "two words"])
def test_the_program_of_the_example_works_by_hand(word: str) -> None:
    program = EXAMPLE / "oneshot_agent" / "program.py"
    done = subprocess.run(
        [sys.executable, str(program)], input=word, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == ((1, "") if not word else (0, f"You wrote 2 words:\n{word}\n"))


def test_the_entry_point_of_its_package_is_its_part() -> None:
    import tomllib

    from codex_proxy.agents.names import GROUP
    from codex_proxy.agents.registry import load_plugin

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, reference)] = project["entry-points"][GROUP].items()
    assert load_plugin(reference, source="the test", wanted=name).name == name
