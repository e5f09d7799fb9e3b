"""`codex-proxy chat`: a conversation with a server over HTTP, and its terminal; in a pipe it prints one answer as plain
text. Ctrl-C ends the turn, or clears the prompt's line.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO, Any, Literal, TextIO

import aiohttp
import msgspec
from rich.console import Console
from rich.text import Text

from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import escape_lines, without_controls

CONNECT_SECONDS = 5.0
"""Seconds to connect; the server is usually on this machine."""

SILENCE_SECONDS = 900.0
"""Seconds without a byte until an answer is given up: more than a server allows a turn."""

NOT_OURS = "The answer is not from a codex-proxy server. Check the address."


class Piece(msgspec.Struct, frozen=True):
    """A piece of an answer: `text` or reasoning (`thought`), such as `[command] ls`."""

    kind: Literal["text", "thought"]
    text: str


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Error(msgspec.Struct, frozen=True):
    message: str = "The server failed."


class _Frame(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: _Error | None = None


class ChatSession:
    """A conversation with a server, and the model for the next message. Methods raise `UserError`."""

    def __init__(self, base_url: str, model: str, key: str | None) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        self._messages.clear()

    async def ask(self, text: str) -> AsyncGenerator[Piece, None]:
        """Sends a message, and yields the answer; what was received stays in the conversation. Closing the generator
        ends the turn.
        """
        self._messages.append({"role": "user", "content": text})
        texts: list[str] = []
        body = {"model": self.model, "messages": self._messages, "stream": True}
        try:
            async with self._request("POST", "/chat/completions", json=body) as reply:
                async for piece in _pieces(reply):
                    if piece.kind == "text":
                        texts.append(piece.text)
                    yield piece
        finally:
            if texts:
                self._messages.append({"role": "assistant", "content": "".join(texts)})
            else:
                self._messages.pop()

    async def models(self) -> list[str]:
        listed = await self.read("/models")
        try:
            return [str(entry["id"]) for entry in listed["data"]]
        except (KeyError, TypeError) as error:
            raise UserError(NOT_OURS) from error

    async def read(self, path: str) -> Any:
        """Returns the JSON of a GET request."""
        async with self._request("GET", path) as reply:
            try:
                return await reply.json(content_type=None)
            except ValueError as error:
                raise UserError(NOT_OURS) from error

    @asynccontextmanager
    async def _request(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self.base_url + path, **more) as reply,
            ):
                if reply.status != 200:
                    raise UserError(_refusal(reply.status, await reply.text()))
                yield reply
        except aiohttp.ClientConnectorError as error:
            raise UserError(
                f"No server is running at {self.base_url}. Start one with `codex-proxy serve`, "
                "or set --base-url."
            ) from error
        except aiohttp.InvalidURL as error:
            raise UserError(
                f"--base-url {self.base_url} is not an address like http://127.0.0.1:11435/v1."
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UserError(
                f"The connection broke: {error or 'the server sent nothing for too long'}."
            ) from error


async def _pieces(reply: aiohttp.ClientResponse) -> AsyncIterator[Piece]:
    rest = b""
    async for chunk in reply.content.iter_any():
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            if not block.startswith(b"data: "):
                continue  # a comment that keeps the line alive
            if block == b"data: [DONE]":
                return
            try:
                frame = msgspec.json.decode(block.removeprefix(b"data: "), type=_Frame)
            except msgspec.DecodeError as error:
                raise UserError(
                    "The answer is not a stream of chat completions. Check the address."
                ) from error
            if frame.error is not None:
                raise UserError(frame.error.message)
            for choice in frame.choices:
                if choice.delta.reasoning_content:
                    yield Piece("thought", choice.delta.reasoning_content)
                text = choice.delta.content or choice.delta.refusal
                if text:
                    yield Piece("text", text)
    raise UserError("The answer was cut off.")


def _refusal(status: int, text: str) -> str:
    try:
        error = json.loads(text)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"The server answered with HTTP status {status}. Check the address."
    return f"{message} Pass it with --key KEY." if code == "invalid_api_key" else message


HELP = """\
/new          start a new conversation
/model        list the models; /model NAME switches to that one
/quit         leave (so does Ctrl-D)
Ctrl-C stops the current answer."""

STYLES = {"text": "", "thought": "dim", "activity": "cyan"}
ACTIVITY = re.compile(r"\[\w+\] ")


class Screen:
    """Prints the pieces of an answer; a piece of another kind begins a new line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind = ""
        self._at_line_start = True

    def show(self, piece: Piece) -> None:
        text = without_controls(piece.text)
        if self._kind not in ("", piece.kind) and not self._at_line_start:
            text = "\n" + text
        self._kind = piece.kind
        for part, is_activity in self._parts(text, piece.kind == "thought"):
            style = STYLES["activity" if is_activity else piece.kind]
            self._console.print(Text(part, style=style), end="", soft_wrap=True)

    def end(self) -> None:
        if not self._at_line_start:
            self._console.print()
        self._kind, self._at_line_start = "", True

    def _parts(self, text: str, thought: bool) -> Iterator[tuple[str, bool]]:
        for line in text.splitlines(keepends=True):
            yield line, thought and self._at_line_start and ACTIVITY.match(line) is not None
            self._at_line_start = line.endswith("\n")


async def show_answer(conversation: ChatSession, text: str, screen: Screen) -> None:
    """Shows the answer as it arrives. Raises `UserError`."""
    try:
        async with contextlib.aclosing(conversation.ask(text)) as pieces:
            async for piece in pieces:
                screen.show(piece)
    finally:
        screen.end()


class Chat:
    def __init__(self, conversation: ChatSession, console: Console) -> None:
        self._conversation = conversation
        self._console = console
        self._screen = Screen(console)

    def run(self) -> int:
        """Answers lines until /quit or the end of input. Returns 0."""
        with contextlib.suppress(ImportError):  # not every Python has it; lines can then not be edited
            importlib.import_module("readline")
        self._print(f"{self._conversation.model} at {self._conversation.base_url}; /help lists the commands.")
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                self._console.print()
                return 0
            except KeyboardInterrupt:
                self._print("\n/quit leaves.")
                continue
            if line == "/quit":
                return 0
            if line:
                self._handle_line(line)

    def _handle_line(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.split(maxsplit=1))
            else:
                asyncio.run(show_answer(self._conversation, line, self._screen))
        except UserError as error:
            self._console.print(Text(escape_lines(str(error)), style="red"))
        except KeyboardInterrupt:
            self._print("(interrupted)")

    def _command(self, name: str, argument: str = "") -> None:
        if name == "/new":
            self._conversation.forget()
            self._print("A new conversation.")
        elif name == "/model" and argument:
            self._conversation.model = argument.strip()
            self._print(f"Now using {self._conversation.model}.")
        elif name == "/model":
            self._print("\n".join(asyncio.run(self._conversation.models())))
        else:
            self._print(HELP)

    def _print(self, text: str) -> None:
        self._console.print(Text(escape_lines(text), style="dim"))


def answer_once(conversation: ChatSession, stdin: TextIO, console: Console, errors: Console) -> int:
    """Answers the question on stdin; messages go to `errors`. Returns the exit status: 0, 1 after an error, 130 after
    Ctrl-C.
    """
    try:
        question = stdin.read().strip()
    except UnicodeDecodeError:
        errors.print("codex-proxy: the input is not text.", markup=False)
        return 1
    if not question:
        errors.print("codex-proxy: there is no question: the input is empty.", markup=False)
        return 1
    try:
        if console.is_terminal:
            asyncio.run(show_answer(conversation, question, Screen(console)))
        else:
            asyncio.run(_print_text(conversation, question, console.file))
    except UserError as error:
        errors.print(escape_lines(f"codex-proxy: {error}"), markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _print_text(conversation: ChatSession, question: str, out: IO[str]) -> None:
    last = "\n"
    async with contextlib.aclosing(conversation.ask(question)) as pieces:
        async for piece in pieces:
            if piece.kind == "text":
                last = piece.text
                print(piece.text, end="", flush=True, file=out)
    if not last.endswith("\n"):
        print(file=out)
