"""codex-proxy chat in a pipe: one message, and the text of the answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.commands.running_server import Server
from codex_proxy.core.faults import UserError
from codex_proxy.parts.terminal import plain
from codex_proxy.parts.terminal.conversation import Conversation
from tests.commands.codexes import CommandResult, command, environment
from tests.commands.other_servers import other_server
from tests.http.serving import Proxy, fake_proxy
from tests.model_server import proxy_before, upstream
from tests.waiting import PATIENCE, eventually

SAYS = "Hello from the deterministic fake agent."
sessions = pytest.mark.part("sessions")


async def pipe_into_chat(proxy: Proxy, home: Path, text: str, *arguments: str, **more: str) -> CommandResult:
    """`echo TEXT | codex-proxy chat`, with the port in the settings."""
    variables = {"PROXY_PORT": str(proxy.server.port)} | more
    return await command(home, "chat", *arguments, stdin=text.encode(), more=variables)


@sessions
async def test_a_pipe_gets_the_answer_and_nothing_else(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi\n")
        assert (done.status, done.out, done.err) == (0, f"{SAYS}\n", "")
        done = await pipe_into_chat(proxy, tmp_path, "", "hi")
        assert (done.status, done.out, done.err) == (0, f"{SAYS}\n", "")
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:reasoning]]")
        assert done.out == "The answer is 42.\n"
        done = await pipe_into_chat(proxy, tmp_path, '[[fake:text say="[bold]\\u001b[31m{x}"]]')
        assert done.out == "[bold]\x1b[31m{x}\n"


@sessions
async def test_what_the_agent_does_is_on_stderr(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:activity]]")
        assert (done.status, done.out) == (0, "All done.\n")
        assert "$ /bin/bash -lc 'ls'" in done.err


async def test_an_empty_pipe_asks_nothing(tmp_path: Path) -> None:
    done = await command(tmp_path, "chat")
    assert (done.status, done.out) == (1, "")
    assert "there is no question" in done.err


@pytest.mark.parametrize(
    "errors", ["strict", pytest.param("surrogateescape", marks=pytest.mark.part("sessions"))]
)
async def test_input_that_is_no_text_asks_nothing(tmp_path: Path, errors: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        variables = {"PROXY_PORT": str(proxy.server.port), "PYTHONIOENCODING": f"utf-8:{errors}"}
        done = await command(tmp_path, "chat", stdin=b"\xff\xfe", more=variables)
    assert (done.status, done.out) == (1, "")
    assert "not text" in done.err


async def test_without_a_server_chat_says_how_to_start_one(tmp_path: Path) -> None:
    done = await command(tmp_path, "chat", "--base-url", "http://127.0.0.1:9/v1", stdin=b"hi")
    assert (done.status, done.out) == (1, "")
    assert "codex-proxy serve" in done.err


async def test_a_base_url_that_is_none_is_named(tmp_path: Path) -> None:
    done = await command(tmp_path, "chat", "--base-url", "localhost/v1", stdin=b"hi")
    assert (done.status, done.out) == (1, "")
    assert "--base-url localhost/v1 is not an address like http://" in done.err


@sessions
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[fake:auth_401]]", "credentials"),
        ("[[fake:count n=9 misbehave=crash at=6]]", "agent"),
        ("[[fake:refusal]]", ""),
    ],
)
async def test_a_fault_before_or_in_the_answer_is_reported_with_the_servers_own_words(
    tmp_path: Path, text: str, says: str
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, text)
        assert done.status == (1 if says else 0)
        assert says in done.err.lower()
        assert bool(done.err) == bool(says)


@sessions
async def test_the_key_of_the_settings_goes_to_the_server_of_the_settings_only(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="mine") as proxy:
        assert (await pipe_into_chat(proxy, tmp_path, "hi", PROXY_API_KEY="mine")).status == 0
        assert (await pipe_into_chat(proxy, tmp_path, "hi", "--key", "mine")).status == 0
        without = await pipe_into_chat(proxy, tmp_path, "hi")
        assert without.status == 1
        assert "--key KEY or, without --base-url, in PROXY_API_KEY" in without.err
        url = ("--base-url", f"{proxy.url}/v1")
        assert (await pipe_into_chat(proxy, tmp_path, "hi", *url, PROXY_API_KEY="mine")).status == 1


@sessions
async def test_a_later_pipe_goes_on_with_the_newest_session(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        await pipe_into_chat(proxy, tmp_path, '[[fake:text say="first answer"]]')
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:echo]]", "--resume")
        assert "first answer" in done.out
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:echo]]")
        assert "first answer" not in done.out
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--resume", "sess_of_nobody")
        assert (done.status, done.out) == (1, "")
        assert "sess_of_nobody" in done.err


@sessions
async def test_a_session_has_the_folder_and_the_model_that_were_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    async with fake_proxy(tmp_path) as proxy:
        asked = ("--folder", "inner", "--model", "codex-5-high")
        done = await pipe_into_chat(proxy, tmp_path, "hi", *asked)
        assert (done.status, done.out) == (0, f"{SAYS}\n")
        async with Server(f"{proxy.url}/v1", None) as server:
            [summary] = await Conversation(server).newest()
        assert (summary["folder"], summary["model"]) == (str(tmp_path / "inner"), "codex-5-high")
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--folder", "/")
        assert (done.status, done.out) == (1, "")
        assert "PROXY_WORKDIR_ROOTS" in done.err
        assert "--folder" in done.err
        assert "environment" not in done.err
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--model", "nothing")
        assert "/model in a chat lists" in done.err


@sessions
async def test_an_agent_is_named_also_where_it_is_the_only_one(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--agent", "fake")
        assert (done.status, done.out) == (0, f"{SAYS}\n")
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--agent", "another")
        assert (done.status, done.out) == (1, "")
        assert "The server has no agent another. It has fake." in done.err
    tables = {"one": {"agent": "fake"}, "two": {"agent": "fake"}}
    async with fake_proxy(tmp_path, agent="one", agents=tables) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--agent", "two")
        assert (done.status, done.out) == (0, f"{SAYS}\n")
        async with Server(f"{proxy.url}/v1", None) as server:
            assert (await Conversation(server).newest())[0]["agent"] == "two"
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--agent", "another")
        assert "It has one, two." in done.err


@sessions
async def test_without_a_folder_the_current_one_is_used_where_the_server_allows_it(tmp_path: Path) -> None:
    (inner := tmp_path / "inner").mkdir()
    (outer := tmp_path / "outer").mkdir()
    async with fake_proxy(tmp_path, workdir=inner) as proxy:
        for current, expected in ((inner, str(inner)), (outer, ".")):
            more = {"PROXY_PORT": str(proxy.server.port)}
            done = await command(tmp_path, "chat", stdin=b"hi", more=more, cwd=current)
            assert done.status == 0, done.err
            async with Server(f"{proxy.url}/v1", None) as server:
                assert (await Conversation(server).newest())[0]["folder"] == expected


@sessions
async def test_what_an_agent_asks_is_declined_with_a_line(tmp_path: Path) -> None:
    asking: dict[str, Any] = {
        "sandbox": "danger-full-access",
        "approvals": "ask",
        "fake_dialect": "app-server",
    }
    async with fake_proxy(tmp_path, api_key="mine", **asking) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:approval]]", "--key", "mine")
        assert (done.status, done.out) == (0, "Thank you.\n")
        assert "Declined, because nobody can be asked: The agent wants to run a command" in done.err


@sessions
async def test_ctrl_c_stops_the_turn_and_is_told_by_the_exit_status(tmp_path: Path) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, release) as proxy:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "codex_proxy", "chat", "--base-url", f"{proxy.url}/v1"),
            "[[fake:count n=5 hold=1]]",
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readexactly(3) == b"..0"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        await eventually(lambda: proxy.server.runs.running == 0)


@sessions
@pytest.mark.parametrize("message", ["[[fake:count n=5]]", "[[fake:activity]]", "[[fake:auth_401]]"])
async def test_chat_ends_where_nobody_reads_the_answer(tmp_path: Path, message: str) -> None:
    unread, output = os.pipe()
    os.close(unread)
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "codex_proxy", "chat", "--base-url", f"{proxy.url}/v1", message),
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        os.close(output)
        async with asyncio.timeout(PATIENCE):
            _, told = await process.communicate()
        assert process.returncode == 1
        assert all(line.startswith(b"codex-proxy: ") for line in told.splitlines())


@sessions
async def test_a_server_without_a_store_is_told_with_what_to_do(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi")
        assert (done.status, done.out) == (1, "")
        assert "PROXY_STORE=memory" in done.err


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"<html>", 404, "404"),
        (b'{"error": {"message": "no such thing"}}', 404, "no such thing"),
        (b'{"error": {"message": "Invalid URL", "code": "not_found"}}', 404, "lacks the part `sessions`"),
        (b"data: <html>\n\n", 200, "Check the address"),
        (b"data: []\n\n", 200, "Check the address"),
        (b"", 200, "Check the address"),
    ],
)
async def test_a_server_without_sessions_is_an_error_in_words(
    tmp_path: Path, body: bytes, status: int, says: str
) -> None:
    async with other_server(body, status) as url:
        done = await command(tmp_path, "chat", "--base-url", url, stdin=b"hi")
        assert (done.status, done.out) == (1, "")
        assert says in done.err


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[]", b"{}", b'{"data": [1]}'])
async def test_a_list_of_models_that_is_none_is_a_fault_in_words(body: bytes) -> None:
    async with other_server(body) as url, Server(url, None) as server:
        with pytest.raises(UserError, match="Check the address"):
            await Conversation(server).models()


@pytest.mark.exhaustive
async def test_the_words_of_a_fault_send_a_terminal_nothing_either(tmp_path: Path) -> None:
    async with other_server(b'{"error": {"message": "No.\\u001b]0;owned\\u0007\\u202e"}}', 400) as url:
        done = await command(tmp_path, "chat", "--base-url", url, stdin=b"hi")
        assert done.err.endswith(": No.\\x1b]0;owned\\x07\\u202e\n")


@pytest.mark.part("upstream")
@sessions
async def test_a_model_server_answers_without_a_folder(tmp_path: Path) -> None:
    async with upstream() as model_server, proxy_before(model_server.url, tmp_path) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi", "--model", "small")
        assert (done.status, done.out, done.err) == (0, "Hello.\n", "")
        async with Server(f"{proxy.url}/v1", None) as server:
            [summary] = await Conversation(server).newest()
        assert (summary["mode"], summary["folder"]) == ("model", None)


async def test_a_pipe_ends_with_the_way_on_where_the_server_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "PATIENCE", 0.0)
    written, told = list[str](), list[str]()
    async with AsyncExitStack() as stack:
        async with fake_proxy(tmp_path) as proxy:
            server = await stack.enter_async_context(Server(f"{proxy.url}/v1", ""))
            conversation = Conversation(server)
            chat = plain.PlainChat(conversation, written.append, told.append)
            running = asyncio.create_task(chat.run("[[fake:count n=3000 delay=20]]", None))
            await eventually(lambda: written)
        async with asyncio.timeout(PATIENCE):
            assert await running == 1
    assert told[-1].endswith(f"The answer goes on in the session: --resume {conversation.id} shows it.")


@pytest.mark.parametrize(
    "flags",
    [("--sandbox", "read-only"), ("--worktree",), ("--folder", "."), ("--agent", "fake")],
    ids=lambda flags: flags[0],
)
async def test_what_is_chosen_when_a_session_begins_is_refused_for_one_that_goes_on(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    done = await command(tmp_path, "chat", "--resume", "last", *flags, "hi")
    assert (done.status, done.out) == (2, "")
    assert f"{flags[0]} is chosen when a session begins: leave it out, or --resume." in done.err


@sessions
@pytest.mark.parametrize("coding", ["latin-1", "ascii"])
async def test_a_character_that_the_output_does_not_have_is_written_as_its_escape(
    coding: str, tmp_path: Path
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        asked = '[[fake:text say="\\u65e5."]]'
        done = await pipe_into_chat(proxy, tmp_path, asked, PYTHONIOENCODING=coding)
    assert (done.status, done.err) == (0, "")
    assert done.out == "\\u65e5.\n"
