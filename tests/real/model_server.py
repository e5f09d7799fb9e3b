"""A scripted Responses API on loopback: the model provider of the real binary under test.

It performs what ``model_scenarios`` says, records every request, and tells how each stream ended, so that a
test awaits what it means ("the client hung up") instead of sleeping. It binds 127.0.0.1 and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.real.model_events import Act, Drop, Event, Gate, Headers, HttpAnswer, Pause, Reply
from tests.real.model_scenarios import choose, play
from tests.waiting import PATIENCE
from tests.web_application import serve_application

Ending = Literal["completed", "client_gone", "dropped", "refused", "shut_down"]


@dataclass
class Request:
    """One request as it came in, and what became of its answer."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    scenario: str = ""
    step: int = 0
    arrived_at: float = 0.0
    first_delta_at: float | None = None
    ended: asyncio.Future[Ending] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def ending(self) -> Ending:
        """How the answer ended, as soon as it has."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.shield(self.ended)


class ModelServer:
    """The server and its memory. Make one with ``model_server()``."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[Request] = []
        self._attempts: Counter[tuple[str, int]] = Counter()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._arrived = asyncio.Condition()
        self._closing = False

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> list[Request]:
        """The model calls among the requests."""
        return [request for request in self.requests if request.path == "/v1/responses"]

    @property
    def open(self) -> list[Request]:
        """The requests whose answer has not ended."""
        return [request for request in self.requests if not request.ended.done()]

    async def call(self, index: int) -> Request:
        """The model call of this index, as soon as it has arrived."""
        async with asyncio.timeout(PATIENCE), self._arrived:
            await self._arrived.wait_for(lambda: len(self.calls) > index)
        return self.calls[index]

    def open_gate(self, name: str) -> None:
        """Lets every response that waits at this gate, now or later, go on."""
        self._gates[name].set()

    def forget(self) -> None:
        """Begins anew for another test: no request has come, no gate is open."""
        self.requests.clear()
        self._attempts.clear()
        self._gates.clear()

    def close(self) -> None:
        """From here on a stream that is cut was cut by us."""
        self._closing = True

    async def other(self, http: web.Request) -> web.Response:
        """Everything that is not a model call."""
        request = await self._record(http, (await http.read()).decode("utf-8", "replace"))
        request.ended.set_result("refused")
        return web.json_response({"error": {"message": f"no route {http.path}"}}, status=404)

    async def responses(self, http: web.Request) -> web.StreamResponse:
        """One model call."""
        body = json.loads(await http.read())
        chosen = choose(body)
        request = await self._record(http, body, chosen.name, chosen.step)
        self._attempts[chosen.marker, chosen.step] += 1
        reply = Reply(request.number, body.get("model", ""), chosen.options)
        acts = play(chosen, reply, body, self._attempts[chosen.marker, chosen.step])
        ending: Ending = "client_gone"
        try:
            answer, ending = await self._perform(acts, http, request)
            return answer
        except asyncio.CancelledError:
            ending = "shut_down" if self._closing else "client_gone"
            raise
        finally:
            request.ended.set_result(ending)

    async def _record(self, http: web.Request, body: Any, scenario: str = "", step: int = 0) -> Request:
        headers = {name.lower(): value for name, value in http.headers.items()}
        request = Request(
            len(self.requests), http.method, http.path, headers, body, scenario, step, time.time()
        )
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        return request

    async def _perform(
        self, acts: Iterator[Act], http: web.Request, request: Request
    ) -> tuple[web.StreamResponse, Ending]:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        for act in acts:
            match act:
                case Event():
                    if not stream.prepared:
                        await stream.prepare(http)
                    if request.first_delta_at is None and act.type.endswith(".delta"):
                        request.first_delta_at = time.time()
                    await stream.write(act.encode())
                case Pause(seconds) if seconds:
                    await asyncio.sleep(seconds)
                case Pause():
                    pass
                case Gate(name):
                    await (self._gates[name] if name else asyncio.Event()).wait()
                case Headers(values):
                    stream.headers.update(values)
                case HttpAnswer(status, text, headers):
                    kind = "application/json" if text[:1] == "{" else "text/plain"
                    answer = web.Response(status=status, text=text, headers=headers, content_type=kind)
                    return answer, "refused"
                case Drop():
                    assert http.transport is not None
                    http.transport.abort()
                    return stream, "dropped"
        return stream, "completed"


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    """A running server on a free port of loopback."""
    server = ModelServer()
    application = web.Application(client_max_size=1 << 28)  # a whole history arrives in one body
    application.router.add_post("/v1/responses", server.responses)
    application.router.add_route("*", "/{path:.*}", server.other)
    async with serve_application(application) as server.port:
        try:
            yield server
        finally:
            server.close()
