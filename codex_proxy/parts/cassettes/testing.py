"""The pytest plugin's servers, each in a thread of the test's process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import structlog
from aiohttp import web

from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.app.logs import configure
from codex_proxy.app.server import Server, make_server
from codex_proxy.app.server_parts import ServerPart
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.json_values import without_surrogates
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import make_folder
from codex_proxy.http.body import read_body
from codex_proxy.http.endpoint import Handler, endpoint_of
from codex_proxy.http.middleware.content_log import watch_contents
from codex_proxy.parts.cassettes.faulty_answers import FAULT, spoil_answers
from codex_proxy.parts.cassettes.stream_faults import StreamFault, failure_of, fault_of
from codex_proxy.settings.fields import Settings

T = TypeVar("T")
START_SECONDS = 120.0


class ReceivedRequest(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: dict[str, str]
    json: Any


class Servers:
    """The servers of a test session, started when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="codex-proxy", daemon=True)
        self._thread.start()
        self._servers: dict[str, tuple[Server, TestServer]] = {}
        if not structlog.is_configured():  # the tests may be those of a program with a log of its own
            configure("error", "console")

    def fake(self) -> TestServer:
        return self._get_server("fake", agent="fake", fake_dialect="app-server")

    def cassette(self, folder: Path, mode: str, *, files: bool = False) -> TestServer:
        """Returns a server that replays the cassettes in `folder`, or records them with the settings' agent. `files`:
        whether the turns may write, in the server's own folder.
        """
        if mode == "replay":
            if not any(folder.glob("*.jsonl")):
                raise FileNotFoundError(
                    f"There is no cassette in {folder}. Record it with `pytest --cassettes=record`."
                )
            replay = {"replay": folder, "files": files}
            return self._get_server(f"replay {folder}", files=files, agent="fake", cassettes=replay)
        if mode == "missing":
            return self._get_server(
                f"missing {folder}",
                own=True,
                files=files,
                cassettes={"record": folder, "replay": folder, "files": files},
            )
        if f"record {folder}" not in self._servers:
            for old in folder.glob("*.jsonl"):
                old.unlink()
        record = {"record": folder, "files": files}
        return self._get_server(f"record {folder}", own=True, files=files, cassettes=record)

    def _get_server(self, name: str, *, own: bool = False, files: bool = False, **given: Any) -> TestServer:
        """Returns the server of this name. `own`: whether it reads the settings in the environment, as `codex-proxy
        serve` does. `files`: whether its turns may write, in a folder of its own.
        """
        work = self._folder / f"work-{len(self._servers)}" if files else None
        if name not in self._servers:
            state = self._folder / f"server-{len(self._servers)}"
            make_folder(state)
            more: dict[str, Any] = {} if own else {"workdir": state, "kept_thread_seconds": 0.001}
            if work is not None:
                make_folder(work)
                more |= {"workdir": work, "sandbox": "workspace-write"}
            settings = Settings(
                host="127.0.0.1", port=0, api_key=None, state_dir=state, store="memory", drain_ms=0, log_content=False,
                **more, **given,
            )  # fmt: skip
            environ = None if own else {"PATH": os.defpath, "FAKE_CODEX_MODELS": "any"}
            self._servers[name] = self._run(self._start(settings, environ, work))
        return self._servers[name][1]

    async def _start(
        self, settings: Settings, environ: dict[str, str] | None, work: Path | None
    ) -> tuple[Server, TestServer]:
        server = await make_server(settings, environ)
        seen = TestServer(work)
        seen.attach(server)
        try:
            await server.start()
        except BaseException:
            await server.stop()
            raise
        seen.root = f"http://127.0.0.1:{server.port}"
        return server, seen

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    def stop(self) -> None:
        for server, _ in self._servers.values():
            self._run(server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()


class TestServer:
    """A server for a test: `base_url` and `api_key` are for its SDK, `requests` are those for answers that it has
    received.
    """

    __test__ = False

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.root = ""
        """The server's address without a path."""
        self.base_url = ""
        """The address for an SDK."""
        self.api_key = "sk-test"
        self.requests: list[ReceivedRequest] = []
        """The test's requests, oldest first."""
        self._marker = ""
        self._said: list[str] = []
        """The markers of `say`; the last one repeats."""
        self._next = 0
        self._failures: list[Failure] = []
        self._faults: list[StreamFault] = []

    def for_test(self, path: str) -> TestServer:
        """Returns the server for a new test. `path` is its API's."""
        self.base_url = self.root + path
        self.requests.clear()
        self._marker, self._failures, self._faults = "", [], []
        self._said.clear()
        if self._folder is not None:
            _empty(self._folder)
        return self

    @property
    def folder(self) -> Path:
        """The folder in which the turns work, empty when the test begins. Raises `ValueError` for a test whose marker
        does not say `files=True`.
        """
        if self._folder is None:
            raise ValueError(
                "a folder has the server of a test with `@pytest.mark.cassette(NAME, files=True)`"
            )
        return self._folder

    def say(self, text: str) -> None:
        """Makes the fake agent answer with this text: several calls give the texts of the next turns, in order, and the
        last one repeats. `{outputs}` in it stands for what the turn's tools have returned. Raises `TypeError` for what
        is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"`say` takes a text, not {type(text).__name__}")
        self._next = min(self._next, len(self._said))
        self._said.append(f"[[fake:text say={json.dumps(without_surrogates(text))}]]")
        self._marker = ""

    def scenario(self, name: str, /, **options: Any) -> None:
        """Makes the fake agent play a scenario from now on, such as `tool_calls` with `name="get_weather"`. A dict or
        list, such as `args={"city": "Oslo"}`, is given as JSON.
        """
        texts = {
            key: json.dumps(value) if isinstance(value, dict | list) else str(value)
            for key, value in options.items()
        }
        given = "".join(f" {key}={json.dumps(text)}" for key, text in texts.items())
        self._marker = f"[[fake:{name}{given}]]"
        self._said.clear()

    def fail(self, status: int = 500, *, retry_after: float | None = None, message: str = "") -> None:
        """Makes the next turn's request fail with this status."""
        self._failures.append(failure_of(status, retry_after=retry_after, message=message))

    def spoil(self, fault: str) -> None:
        """Gives the answer to the next turn's request a fault, such as `cut; events=3`."""
        found = fault_of(fault)
        if found.kind == "refuse":
            raise ValueError("a request is refused by `fail`")
        self._faults.append(found)

    def attach(self, server: Server) -> None:
        """Attaches to a server that has not started, to see its requests and change its answers."""
        server.parts.insert(
            0, _Noted(self._middleware())
        )  # the first one adds its middleware last: innermost
        agent = server.agent
        opened = agent.open

        async def open_marked(turn: Turn) -> AgentSession:
            return await opened(self._add_marker(turn))

        agent.open = open_marked  # type: ignore[method-assign]

    def _middleware(self) -> Any:
        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            endpoint = endpoint_of(request)
            if endpoint is None or endpoint.kind != "turn" or request.method != "POST":
                return await handler(request)

            def on_content(what: Literal["request", "answer"], data: bytes) -> None:
                if what == "request":
                    headers = {name.lower(): value for name, value in request.headers.items()}
                    self.requests.append(ReceivedRequest(request.method, request.path, headers, _json(data)))

            watch_contents(request, on_content)
            if self._failures:
                await read_body(request)
                raise Fault(self._failures.pop(0))
            if self._faults:
                request[FAULT] = self._faults.pop(0)
            return await handler(request)

        return note

    def _add_marker(self, turn: Turn) -> Turn:
        history = list(turn.history)
        marker = self._marker
        if self._said:
            marker = self._said[min(self._next, len(self._said) - 1)]
            self._next += 1
        for index in range(len(history) - 1, -1, -1):
            item = history[index]
            if marker and isinstance(item, HistoryMessage) and item.role == "user":
                history[index] = HistoryMessage("user", (*item.parts, TextPart(f" {marker}")))
                break
        return msgspec.structs.replace(turn, history=tuple(history))


class _Noted(ServerPart):
    """Adds a test's middleware to a server."""

    def __init__(self, middleware: Any) -> None:
        self._middleware = middleware

    def add_to(self, app: web.Application) -> None:
        app.middlewares.append(self._middleware)
        spoil_answers(app)


def _empty(folder: Path) -> None:
    """Removes what is in a folder, which stays the same one for who works in it."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
