"""This server's own faults: an exception in any function between the log of a turn and the bytes for its client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest
from structlog.testing import capture_logs

from codex_proxy.responses.running import FrameReader
from codex_proxy.runs.event_log import Cursor
from codex_proxy.store.values import UNFINISHED
from tests.faults.places import APIS, WORD, answer_at, assert_failed
from tests.faults.planting import Call, at_each_call, breaking, is_part, once, one_at_a_time
from tests.faults.test_own_faults import ENDS, GOOD_ENDS
from tests.faults.test_upstreams import HEAD, WIRES, ScriptedScene, request_of
from tests.http.serving import Proxy, fake_proxy, until
from tests.waiting import PATIENCE, poll

TO_CLIENT: Final = ("/surfaces/", "/responses/", "/http/", "/runs/", "/store/", "/admission/", "/workers/")
RESPONSE_ID: Final = re.compile(r'"(resp_[0-9a-f]{32})"')


class Way(NamedTuple):
    """A way to ask. `fields` go into the body."""

    api: str
    stream: bool
    fields: Mapping[str, Any] = MappingProxyType({})


WAYS: Final = {
    **{
        f"{api}, {'streamed' if stream else 'whole'}": Way(api, stream)
        for api in (*APIS, "ollama")
        for stream in (True, False)
    },
    "not stored, streamed": Way("responses", True, {"store": False}),
    "background, streamed": Way("responses", True, {"background": True}),
    "background, whole": Way("responses", False, {"background": True}),
    "WebSocket": Way("websocket", True),
}


async def answer_in(there: ScriptedScene, way: Way, found: Callable[[Call], None]) -> tuple[int, str]:
    """The status and text of an answer. `found` is called as `at_each_call` does: behind the first word of a stream,
    else from the request on."""
    wire, proxy = WIRES["read"], there.proxy
    path, body = request_of("responses" if way.api == "websocket" else way.api, wire, stream=way.stream)
    if way.api == "ollama":
        path = "/api/chat"
    body |= way.fields
    there.before, there.then = HEAD + wire.begin + wire.word, ENDS["read"]
    there.go.clear()
    with at_each_call(found) as begin:
        go = once(there, begin)
        if way.api == "websocket":
            return 200, await answer_on_socket(proxy, body, go)
        if way.stream or not way.fields:
            return await answer_at(proxy, path, body, "behind a word" if way.stream else "at once", go)
        created = await proxy.send("POST", path, body)
        go()
        return 200, await end_of_response(proxy, created.body["id"])


async def answer_on_socket(proxy: Proxy, body: dict[str, Any], go: Callable[[], None]) -> str:
    """The messages of one turn, one on each line."""
    text, last = "", ""
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", **body})
        while last not in ("error", "response.failed", "response.completed"):
            message = await socket.receive_str(timeout=PATIENCE)
            last = json.loads(message)["type"]
            text += message + "\n"
            if WORD in text:
                go()
    return text


async def end_of_response(proxy: Proxy, id: str) -> str:
    """What is stored of a response when it has ended."""

    async def wait_for_end() -> str:
        stored = await proxy.send("GET", f"/v1/responses/{id}")
        return "" if stored.status == 200 and stored.body["status"] in UNFINISHED else stored.text

    return await poll(wait_for_end)


def status_in(stored: str) -> str:
    """The status of what `end_of_response` has found; empty if that is an error."""
    return str(json.loads(stored).get("status", ""))


def has_failed(way: Way, status: int, text: str) -> bool:
    """Whether the answer ends with an error in the form of its API. If not, it is whole."""
    if status == 200 and (not way.stream or way.api in ("ollama", "websocket")):
        last = json.loads(text.splitlines()[-1])
        if "error" in last and last["error"] is not None:
            return True
        if last.get("type") == "response.failed":
            return True
        assert '"done":false' not in text.splitlines()[-1]
        assert " you" in text
        return False
    if status != 200 and way.api == "ollama":
        assert json.loads(text)["error"]
        return True
    if GOOD_ENDS.get(way.api, "no API") in text:
        assert " you" in text
        return False
    if way.fields.get("background") and way.stream and "event: response.failed" not in text:
        assert "event: error" in text.split("\n\n")[-2]  # of the stream alone: the response goes on
        return True
    assert_failed(way.api, status, text)
    return True


@pytest.mark.part("upstream")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # a coroutine for a broken function
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("responses, streamed", ("/responses/", "/surfaces/responses/render.py")),
        *(pytest.param(name, TO_CLIENT, marks=pytest.mark.exhaustive, id=name) for name in WAYS),
    ],
)
async def test_an_exception_behind_the_log_ends_the_answer_with_an_error_and_leaves_nothing_open(
    name: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """In each call of a function of these parts, one after the other. A stored response has ended too."""
    way, broken = WAYS[name], 0
    with capture_logs() as logged:
        async with one_at_a_time("openai-chat", tmp_path) as there:
            called: dict[Call, None] = {}
            for found in (lambda _: None, called.setdefault):  # what is done only once has been done then
                await answer_in(there, way, found)
                await there.proxy.settled()
            for call in called:
                if not is_part(call, parts):
                    continue
                logged.clear()
                try:
                    status, text = await answer_in(there, way, breaking(call))
                    await there.proxy.settled()
                    ids = dict.fromkeys(RESPONSE_ID.findall(text))
                    stored = [await end_of_response(there.proxy, id) for id in ids]
                    if has_failed(way, status, text):
                        broken += 1
                        # That of a response in the background goes on.
                        assert way.fields.get("background") or "completed" not in map(status_in, stored)
                        assert len([line for line in logged if line["log_level"] == "error"]) == 1, logged
                except BaseException as error:
                    error.add_note(f"broken: {call}")
                    raise
    assert broken


HANGING_PROMPT: Final = "[[fake:text misbehave=hang at=4]]"


@pytest.mark.parametrize(
    ("path", "fields", "broken"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HANGING_PROMPT}]}, "detach"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": HANGING_PROMPT}], "n": 2},
            "detach",
        ),
        ("/v1/responses", {"input": HANGING_PROMPT}, "close"),
    ],
)
async def test_a_turn_ends_with_its_client_also_if_its_reader_cannot_be_closed(
    path: str, fields: dict[str, Any], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object) -> None:
        raise ZeroDivisionError

    async with fake_proxy(tmp_path, choices="sample") as proxy:
        body = {"model": "codex-5", "stream": True, **fields}
        async with proxy.session.post(proxy.url + path, json=body) as reply:
            await reply.content.readuntil(b"delta")
            monkeypatch.setattr(Cursor if broken == "detach" else FrameReader, broken, fails)
        await until(lambda: proxy.server.runs.running == 0)
