"""An exchange, with events given by hand: what becomes a status and what a frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpClient

from codex_proxy.core.events import Event, ItemEnded, ItemStarted, Stop, TextDelta, TurnEnded, TurnStarted
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import McpTools, Message
from codex_proxy.http.exchange import LogReader, TurnTimings, stream_response, whole_response
from codex_proxy.http.sse import EventStream
from codex_proxy.runs.event_log import LONG_ANSWER, Push
from codex_proxy.surfaces.chat.render import ChatRenderer
from tests.http.serving import Hands
from tests.surfaces.responses import answering as responses

CRASH = TurnEnded(Stop.FAILED, "provider", Failure(kind=FaultKind.AGENT_CRASHED, message="It crashed."))
CUT_MESSAGE: list[Event] = [ItemStarted(Message("m")), TextDelta("m", "Half"), ItemEnded("m", "incomplete")]


class BatchSource:
    """A source of these batches."""

    continued = False
    has_long_answer = False

    def __init__(self, *batches: list[Event]) -> None:
        self._batches = list(batches)
        self.closed = False

    @property
    def finished(self) -> bool:
        return not self._batches

    async def wait(self, push: Push | None = None) -> None:
        """There is always something."""

    def take(self) -> list[Event]:
        return self._batches.pop(0)

    def close(self) -> None:
        self.closed = True


Ask = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def ask(aiohttp_client: AiohttpClient) -> Ask:
    """Puts a source behind a port and gets the answer; a fault is a status."""

    async def answer(source: BatchSource, *, stream: bool = True) -> tuple[int, str]:
        async def handler(request: web.Request) -> web.StreamResponse:
            renderer = ChatRenderer(id="chatcmpl-1", created=1, model="m", stream=stream)
            reader = LogReader(source, renderer, TurnTimings(Hands()))
            try:
                if not stream:
                    return await whole_response(reader, dict)
                given = EventStream(request, dict)
                return await stream_response(reader, given, keepalive=0, comment=bytes)
            except Fault:
                return web.Response(status=500)

        app = web.Application()
        app.router.add_get("/", handler)
        reply = await (await aiohttp_client(app)).get("/")
        return reply.status, await reply.text()

    return answer


async def test_a_failure_before_any_word_is_a_status(ask: Ask) -> None:
    source = BatchSource([TurnStarted()], [CRASH])
    assert await ask(source) == (500, "")
    assert source.closed


async def test_a_failure_in_the_batch_of_the_first_words_is_a_frame_behind_them(ask: Ask) -> None:
    status, text = await ask(BatchSource([*CUT_MESSAGE, CRASH]))
    assert status == 200
    assert text.index('"Half"') < text.index('"agent_crashed"') < text.index("[DONE]")


async def test_a_whole_answer_of_a_failed_turn_is_a_status_whatever_was_said(ask: Ask) -> None:
    source = BatchSource(CUT_MESSAGE, [CRASH])
    assert await ask(source, stream=False) == (500, "")
    assert source.closed


def test_metrics_count_from_the_first_word_and_a_rate_needs_time() -> None:
    clock = Hands()
    observed = TurnTimings(clock)
    clock.now += 0.25
    observed.record([TurnStarted(), ItemStarted(McpTools("l", "files")), ItemEnded("l")])
    assert observed.stream_metrics(10).time_to_first_token is None
    observed.record(CUT_MESSAGE)
    assert observed.stream_metrics(10).time_to_first_token == 250.0
    assert observed.stream_metrics(10).throughput_after_first_token is None
    clock.now += 2
    observed.record([TurnEnded("stop", "token_count")])
    assert observed.stream_metrics(10).time_to_first_token == 250.0
    assert observed.stream_metrics(10).throughput_after_first_token == 5.0
    assert observed.ended_by == "token_count"


async def test_frames_of_a_long_text_are_taken_one_at_a_time() -> None:
    text = "word " * (LONG_ANSWER // 5)
    answer: list[Event] = [
        ItemStarted(Message("m")),
        TextDelta("m", text),
        ItemEnded("m"),
        TurnEnded(Stop.STOP),
    ]
    source = BatchSource(answer)
    source.has_long_answer = True
    reader = LogReader(source, responses.renderer(stream=True), TurnTimings(Hands()))
    pieces: list[bytes] = []
    while not reader.finished:
        await reader.wait(lambda: False)
        pieces.append(reader.take())
    assert b"".join(pieces) == responses.renderer(stream=True).feed(answer)
    assert max(piece.count(b"event: ") for piece in pieces[-8:]) == 1


async def test_a_push_that_leaves_frames_wakes_the_task() -> None:
    class Pushing(BatchSource):
        async def wait(self, push: Push | None = None) -> None:
            assert push is not None
            pushed.append(push())

    pushed: list[bool] = []
    source = Pushing([ItemStarted(Message("m")), TextDelta("m", "Hi")], [ItemEnded("m")])
    reader = LogReader(source, responses.renderer(stream=True), TurnTimings(Hands()))
    for source.has_long_answer in (False, True):
        await reader.wait(lambda: bool(reader.take() or True))
    assert pushed == [True, False]
