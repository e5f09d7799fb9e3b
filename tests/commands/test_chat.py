"""codex-proxy chat: in a pipe, and at a terminal with a person who changes their mind."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from codex_proxy.commands.chat import ChatSession, Piece, Screen
from codex_proxy.core.faults import UserError
from tests.commands.codexes import CommandResult, command, environment
from tests.http.serving import Proxy, fake_proxy, until
from tests.waiting import PATIENCE, eventually
from tests.web_application import serve_application

SAYS = "Hello from the deterministic fake agent."


async def pipe_into_chat(proxy: Proxy, home: Path, text: str, *arguments: str, **more: str) -> CommandResult:
    """`echo TEXT | codex-proxy chat`, with the port in the settings."""
    variables = {"PROXY_PORT": str(proxy.server.port)} | more
    return await command(home, "chat", *arguments, stdin=text.encode(), more=variables)


async def test_a_pipe_gets_the_answer_and_nothing_else(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await pipe_into_chat(proxy, tmp_path, "hi\n")
        assert (done.status, done.out, done.err) == (0, f"{SAYS}\n", "")
        done = await pipe_into_chat(proxy, tmp_path, "[[fake:reasoning]]")
        assert "thinking" not in done.out.lower()
        done = await pipe_into_chat(proxy, tmp_path, '[[fake:text say="[bold]\\u001b[31m{x}"]]')
        assert done.out == "[bold]\x1b[31m{x}\n"


async def test_an_empty_pipe_asks_nothing(tmp_path: Path) -> None:
    done = await command(tmp_path, "chat")
    assert (done.status, done.out) == (1, "")
    assert "there is no question" in done.err


@pytest.mark.exhaustive
async def test_input_that_is_no_text_asks_nothing(tmp_path: Path) -> None:
    done = await command(tmp_path, "chat", stdin=b"\xff\xfe", more={"PYTHONIOENCODING": "utf-8:strict"})
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


async def test_the_key_of_the_settings_goes_to_the_server_of_the_settings_only(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="mine") as proxy:
        assert (await pipe_into_chat(proxy, tmp_path, "hi", PROXY_API_KEY="mine")).status == 0
        assert (await pipe_into_chat(proxy, tmp_path, "hi", "--key", "mine")).status == 0
        without = await pipe_into_chat(proxy, tmp_path, "hi")
        assert without.status == 1
        assert "--key KEY" in without.err
        url = ("--base-url", f"{proxy.url}/v1")
        assert (await pipe_into_chat(proxy, tmp_path, "hi", *url, PROXY_API_KEY="mine")).status == 1


async def test_a_conversation_remembers_what_was_said_until_it_is_forgotten(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        conversation = ChatSession(f"{proxy.url}/v1", "codex-5", None)
        await chat_answer(conversation, '[[fake:text say="first answer"]]')
        assert "first answer" in await chat_answer(conversation, "[[fake:echo]]")
        conversation.forget()
        assert "first answer" not in await chat_answer(conversation, "[[fake:echo]]")


async def chat_answer(conversation: ChatSession, text: str) -> str:
    return "".join([piece.text async for piece in conversation.ask(text) if piece.kind == "text"])


async def test_a_question_that_failed_is_not_part_of_the_next(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        conversation = ChatSession(f"{proxy.url}/v1", "codex-5", None)
        with pytest.raises(UserError):
            await chat_answer(conversation, "[[fake:auth_401]] the failed question")
        assert "the failed question" not in await chat_answer(conversation, "[[fake:echo]]")


@asynccontextmanager
async def other_server(body: bytes, status: int = 200) -> AsyncIterator[str]:
    """A server that is not ours."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with serve_application(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"<html>", 404, "404"),
        (b'{"error": {"message": "no such thing"}}', 404, "no such thing"),
        (b"data: <html>\n\n", 200, "not a stream"),
        (b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n', 200, "cut off"),
        (b"", 200, "cut off"),
    ],
)
async def test_an_answer_that_is_no_chat_stream_is_an_error_in_words(
    body: bytes, status: int, says: str
) -> None:
    async with other_server(body, status) as url:
        with pytest.raises(UserError, match=says):
            await chat_answer(ChatSession(url, "codex-5", None), "hi")


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[]", b"{}", b'{"data": [1]}'])
async def test_a_list_of_models_that_is_none_is_a_fault_in_words(body: bytes) -> None:
    async with other_server(body) as url:
        with pytest.raises(UserError, match="Check the address"):
            await ChatSession(url, "codex-5", None).models()


# --- at a terminal --------------------------------------------------------------------------------


@dataclass
class Terminal:
    """A chat at a terminal of 80 columns; what it has shown so far is in `shown`."""

    process: asyncio.subprocess.Process
    master: int
    shown: bytearray

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    async def shows(self, text: str, times: int = 1) -> None:
        await until(lambda: self.shown.count(text.encode()) >= times)

    async def press(self, key: Callable[[], object], seen: Callable[[], bool]) -> None:
        """Python's readline misses a key between its prompt and its wait; a person presses again."""
        async with asyncio.timeout(PATIENCE):
            while not seen():
                key()
                with suppress(AssertionError):
                    await eventually(seen, within=1.0)


@asynccontextmanager
async def terminal(proxy: Proxy, home: Path) -> AsyncIterator[Terminal]:
    master, slave = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "codex_proxy", "chat"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=home,
        env=environment(home, {"PROXY_PORT": str(proxy.server.port), "TERM": "xterm", "COLUMNS": "200"}),
    )
    os.close(slave)
    shown = bytearray()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            shown.extend(os.read(master, 65536))
        except OSError:  # the other side is closed
            loop.remove_reader(master)

    loop.add_reader(master, read)
    try:
        yield Terminal(process, master, shown)
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(master)


async def test_a_person_asks_changes_the_model_begins_anew_and_leaves(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, terminal(proxy, tmp_path) as chat:
        await chat.shows("codex-5 at http://127.0.0.1")
        chat.type("hello")
        await chat.shows(SAYS)
        chat.type("/model")
        await chat.shows("codex-5-minimal")
        chat.type("/model codex-5-high")
        await chat.shows("Now using codex-5-high.")
        chat.type("/new")
        await chat.shows("A new conversation.")
        chat.type("/what")
        await chat.shows("Ctrl-C stops the current answer")
        chat.type("[[fake:auth_401]]")
        await chat.shows("credentials")
        chat.type("/quit")
    assert chat.process.returncode == 0


async def test_ctrl_c_ends_the_turn_and_not_the_program(tmp_path: Path) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, release) as proxy, terminal(proxy, tmp_path) as chat:
        await chat.shows("> ")
        chat.type("[[fake:count n=5 hold=1]]")
        await chat.shows("..0")
        assert proxy.server.runs.running == 1
        chat.process.send_signal(signal.SIGINT)
        await chat.shows("(interrupted)")
        await proxy.settled()
        chat.type("hello")
        await chat.shows(SAYS)
        await chat.shows("> ", times=3)  # not before: until then it would end the turn
        await chat.press(
            lambda: chat.process.send_signal(signal.SIGINT), lambda: b"/quit leaves." in chat.shown
        )
        await chat.press(lambda: os.write(chat.master, b"\x04"), lambda: chat.process.returncode is not None)
    assert chat.process.returncode == 0


def test_reasoning_is_dim_activity_is_coloured_and_each_kind_has_its_own_lines() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, color_system="standard", width=200))
    for piece in (
        Piece("thought", "I see [now] "),
        Piece("thought", "what\n[command] ls\n"),
        Piece("text", "It is "),
        Piece("text", "[this]\x1b]0;owned\x07\x1b[2J."),
    ):
        screen.show(piece)
    screen.end()
    shown = out.getvalue()
    assert "\x1b[2mI see [now] \x1b[0m\x1b[2mwhat\x1b[0m\n\x1b[36m[command] ls\x1b[0m\n" in shown
    assert shown.endswith("It is [this]]0;owned[2J.\n")
    assert "\x07" not in shown


@given(st.lists(st.tuples(st.sampled_from(["text", "thought"]), st.text())))
def test_no_answer_sends_a_terminal_anything_but_text_lines_and_tabs(
    pieces: list[tuple[Literal["text", "thought"], str]],
) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, color_system=None, width=200))
    for kind, text in pieces:
        screen.show(Piece(kind, text))
    screen.end()
    shown = set(out.getvalue()) - set("\n\t\u200c\u200d")
    assert not [char for char in shown if not char.isprintable() and unicodedata.category(char) != "Zs"]


@pytest.mark.exhaustive
async def test_the_words_of_a_fault_send_a_terminal_nothing_either(tmp_path: Path) -> None:
    async with other_server(b'{"error": {"message": "No.\\u001b]0;owned\\u0007\\u202e"}}', 400) as url:
        for name in ("chat", "usage"):
            done = await command(tmp_path, name, "--base-url", url, stdin=b"hi")
            assert done.err.endswith(": No.\\x1b]0;owned\\x07\\u202e\n")
