"""A background stream whose server stops behind any row of its log: what a client had got is where the resumed stream
begins, byte for byte, and it has an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import msgspec
import pytest

from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.responses import background
from codex_proxy.responses.background import BackgroundResponse, cancel_in_background
from codex_proxy.responses.follow import Follower
from codex_proxy.responses.saving import BEFORE_ALL
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs import event_log
from codex_proxy.store.store import Store
from codex_proxy.store.values import Frame, StoredResponse, StoreUnavailable
from codex_proxy.surfaces.responses.kept_log import LAST
from tests.http.serving import Proxy, fake_proxy, until
from tests.http_responses.asking import check_events, events_of, types_of
from tests.http_responses.killing import server_process

WEATHER: Final = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
TURNS: Final[dict[str, dict[str, Any]]] = {
    "a text": {"input": '[[fake:text say="one two three" delay=1]]'},
    "several messages": {"input": "[[fake:multi_message]]"},
    "halves of characters": {"input": "[[fake:unicode]]"},
    "thoughts": {"input": "[[fake:reasoning_raw]]"},
    "encrypted thoughts": {"input": "[[fake:reasoning]]", "include": ["reasoning.encrypted_content"]},
    "calls by turns": {"input": "[[fake:tool_calls_interleaved]]", "tools": WEATHER},
    "a call behind a text": {"input": "[[fake:tool_calls_after_text]]", "tools": WEATHER},
    "an agent at work": {"input": "[[fake:activity]]"},
    "a refusal": {"input": "[[fake:refusal]]"},
    "a text that is cut": {"input": "[[fake:length]]"},
    "a failure behind a text": {"input": "[[fake:error_mid_text]]"},
    "another text after a retry": {"input": "[[fake:retry_after_text_different]]"},
    "a refused request": {"input": "[[fake:error_500]]"},
}
STORES: Final = ["file", pytest.param("postgresql", marks=pytest.mark.exhaustive)]
DONE: Final = b"event: done\ndata: [DONE]\n\n"

Stops: TypeAlias = list["Stop"]


@dataclass(frozen=True)
class Stop:
    """What a store and a client have when a server stops in front of one of its writes, or at the end."""

    stored: StoredResponse
    rows: list[Frame]
    received: bytes

    def under(self, owner: str) -> StoredResponse:
        return msgspec.structs.replace(self.stored, owner=owner)

    @property
    def ended(self) -> bool:
        return self.rows[-1][0] == LAST


@pytest.fixture(params=STORES)
def store_setting(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {} if request.param == "file" else {"store": request.getfixturevalue("postgres_url")}


@pytest.fixture(autouse=True)
def row_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "EVENTS_AT_ONCE", 1)
    monkeypatch.setattr(background, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(background, "MAX_UNSTORED", 0)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)


class _StoppingStore:
    """A store that notes at each write of a log what would be left if its server stopped now."""

    def __init__(self, service: ResponsesService, received: bytearray) -> None:
        assert service.store is not None
        self.stops: Stops = []
        self._store: Store = service.store
        self._service = service
        self._received = received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_frames(self, owner: str, id: str, *given: Any, **more: Any) -> None:
        await self.note_stop(id)
        await self._store.append_frames(owner, id, *given, **more)

    async def update_response(self, owner: str, id: str, **more: Any) -> bool:
        await self.note_stop(id)
        return await self._store.update_response(owner, id, **more)

    async def note_stop(self, id: str) -> None:
        live = self._service.background.find("local", id)
        released = 0 if live is None else live.buffer.next
        await until(lambda: self._received.count(b"\n\n") >= released)
        stored = await self._store.response("local", id)
        assert stored is not None
        rows = await self._store.frames("local", id, after=BEFORE_ALL)
        self.stops.append(Stop(stored, rows, bytes(self._received)))


@contextmanager
def replaced_store(service: ResponsesService, other: Any) -> Iterator[None]:
    own = service.store
    msgspec.structs.force_setattr(service, "store", other)
    try:
        yield
    finally:
        msgspec.structs.force_setattr(service, "store", own)


async def receive(proxy: Proxy, fields: dict[str, Any], received: bytearray) -> None:
    """Creates a streamed response in the background, and adds its bytes as they come."""
    body = {"model": "codex-5", "background": True, "stream": True, **fields}
    async with proxy.session.post(f"{proxy.url}/v1/responses", json=body) as reply:
        assert reply.status == 200, await reply.text()
        async for data in reply.content.iter_any():
            received += data


async def stops_of(proxy: Proxy, fields: dict[str, Any]) -> Stops:
    service, received = proxy.app[RESPONSES], bytearray()
    store = _StoppingStore(service, received)
    with replaced_store(service, store):
        await receive(proxy, fields, received)
        await proxy.settled()
        await store.note_stop(store.stops[0].stored.id)
    assert store.stops[-1].ended
    return store.stops


async def stream_of(service: ResponsesService, owner: str, id: str, after: int = -1) -> bytes:
    follower, data = Follower(service, owner, id, after), b""
    while not follower.finished:
        await follower.wait()
        data += follower.take()
    follower.close()
    return data


async def check(service: ResponsesService, owner: str, stop: Stop, end: Sequence[str]) -> None:
    """Reads the stream of a response from its start, and behind each event."""
    id = stop.stored.id
    whole = await stream_of(service, owner, id)
    assert whole.startswith(stop.received), "what was sent stays as it is"
    events = check_events(events_of(whole.decode()))
    assert service.store is not None
    stored = await service.store.response(owner, id)
    assert stored is not None
    assert msgspec.json.decode(stored.json) == events[-1]["response"]
    if stop.ended:
        assert whole == stop.received
    else:
        assert types_of(events)[:2] == ["response.created", "response.in_progress"]
        assert tuple(types_of(events)[-len(end) :]) == tuple(end)
    frames = [
        f"{each}\n\n".encode() for each in whole.decode().removesuffix(DONE.decode()).split("\n\n")[:-1]
    ]
    for number in range(len(frames)):
        assert await stream_of(service, owner, id, number) == b"".join(frames[number + 1 :]) + DONE


LOST: Final = ("error", "response.failed")


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("turn", TURNS)
async def test_a_stream_whose_server_is_lost_behind_any_row_goes_on_where_it_was(
    tmp_path: Path, store_setting: dict[str, Any], turn: str
) -> None:
    async with fake_proxy(tmp_path, **store_setting) as proxy:
        stops = await stops_of(proxy, TURNS[turn])
        store = proxy.app[RESPONSES].store
        assert store is not None
        for number, stop in enumerate(stops):
            await store.add_response(stop.under(f"owner {number}"), frames=stop.rows)
    async with fake_proxy(tmp_path, **store_setting) as proxy:
        for number, stop in enumerate(stops):
            await check(proxy.app[RESPONSES], f"owner {number}", stop, LOST)


@pytest.mark.sampled(every=7, first=3)
@pytest.mark.parametrize("turn", TURNS)
async def test_a_stream_that_is_cancelled_elsewhere_behind_any_row_ends_behind_it(
    tmp_path: Path, store_setting: dict[str, Any], turn: str
) -> None:
    async with fake_proxy(tmp_path, **store_setting) as proxy:
        stops = await stops_of(proxy, TURNS[turn])
        service = proxy.app[RESPONSES]
        assert service.store is not None
        for number, stop in enumerate(stops):
            stored = stop.under(f"owner {number}")
            await service.store.add_response(stored, frames=stop.rows)
            if not stop.ended:
                await cancel_in_background(service, service.store, stored)
            await check(service, f"owner {number}", stop, ["response.incomplete"])


class _ForgetfulStore(_StoppingStore):
    """A store whose every other write fails: before it is on disk, or (`written`) behind it."""

    def __init__(self, service: ResponsesService, *, written: bool) -> None:
        super().__init__(service, bytearray())
        self.failed = 0
        self._written = written
        self._fails = False

    async def append_frames(self, owner: str, id: str, *given: Any, **more: Any) -> None:
        await self._fail_or(self._store.append_frames, owner, id, *given, **more)

    async def update_response(self, owner: str, id: str, **more: Any) -> Any:
        return await self._fail_or(self._store.update_response, owner, id, **more)

    async def _fail_or(self, write: Any, *given: Any, **more: Any) -> Any:
        self._fails = not self._fails
        if not self._fails:
            return await write(*given, **more)
        if self._written:
            await write(*given, **more)
        self.failed += 1
        raise StoreUnavailable("the connection was lost")


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.sampled(every=7, first=5)
@pytest.mark.parametrize("turn", TURNS)
async def test_a_stream_whose_writes_fail_now_and_then_loses_and_repeats_nothing(
    tmp_path: Path, store_setting: dict[str, Any], turn: str, written: bool
) -> None:
    async with fake_proxy(tmp_path, **store_setting) as proxy:
        service, received = proxy.app[RESPONSES], bytearray()
        store = _ForgetfulStore(service, written=written)
        with replaced_store(service, store):
            await receive(proxy, TURNS[turn], received)
            await proxy.settled()
        assert store.failed
        events = check_events(events_of(received.decode()))
        id = events[0]["response"]["id"]
        rows = await store.frames("local", id, after=BEFORE_ALL)
        stored = await store.response("local", id)
        await check(service, "local", Stop(stored, rows, bytes(received)), [])


async def _release_before_writing(self: BackgroundResponse) -> None:
    self._release([])
    await self._store.append_frames(self.owner, self.id, self._log.rows(), epoch=self.epoch)
    self._log.note_stored()


async def _release_before_saving(self: BackgroundResponse, final: Any, ended: Any) -> None:
    self._release(self._renderer.take_frames())
    await SAVE(self, final, ended)


SAVE: Final = BackgroundResponse._save


@pytest.mark.parametrize(
    ("method", "fault"), [("_store_events", _release_before_writing), ("_save", _release_before_saving)]
)
async def test_what_is_sent_before_it_is_stored_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, fault: Any
) -> None:
    monkeypatch.setattr(BackgroundResponse, method, fault)
    async with fake_proxy(tmp_path) as proxy:
        stops = await stops_of(proxy, TURNS["a text"])
        service = proxy.app[RESPONSES]
        assert service.store is not None
        found = 0
        for number, stop in enumerate(stops):
            stored = stop.under(f"owner {number}")
            await service.store.add_response(stored, frames=stop.rows)
            if not stop.ended:
                await cancel_in_background(service, service.store, stored)
                found += not (await stream_of(service, stored.owner, stored.id)).startswith(stop.received)
        assert found


@pytest.mark.exhaustive
@pytest.mark.parametrize("commit", range(2, 12, 3))
async def test_a_stream_whose_server_is_killed_behind_a_commit_goes_on_where_it_was(
    tmp_path: Path, commit: int
) -> None:
    received = bytearray()
    async with (
        server_process(tmp_path, dies_at_commit=commit) as (url, process),
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.ClientError):
            await receive(Proxy(None, session, url), {"input": HELD}, received)  # type: ignore[arg-type]
        await process.wait()
    async with fake_proxy(tmp_path) as proxy:
        service = proxy.app[RESPONSES]
        assert service.store is not None
        (stored,) = (await service.store.newest_responses("local")).items
        rows = await service.store.frames("local", stored.id, after=BEFORE_ALL)
        await check(service, "local", Stop(stored, rows[:-1], bytes(received)), LOST)


# On a busy machine several words are one commit: so there are more than twice the commits that are asked for.
HELD: Final = f'[[fake:text say="{" ".join(map(str, range(25)))}" delay=60]]'
