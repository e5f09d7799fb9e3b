"""This server's own faults: an exception in any function between the bytes of an upstream and the log of the turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from tests.faults.places import APIS, answer_at, assert_failed
from tests.faults.planting import Call, at_each_call, breaking, is_part, once, one_at_a_time
from tests.faults.test_upstreams import HEAD, WIRES, ScriptedScene, Wire, request_of, response
from tests.model_server import DONE, chunk, event

ENDS: Final = {
    "passed on": event(chunk({"content": " you"})) + event(chunk({}, "stop")) + DONE,
    "read": event(chunk({"content": " you"})) + event(chunk({}, "stop")) + DONE,
    "responses": event({"type": "response.output_text.delta", "item_id": "msg_1", "delta": " you"})
    + response("response.completed", "completed"),
}
"""What comes behind the first word."""
GOOD_ENDS: Final = {
    "chat": '"finish_reason":"stop"',
    "responses": "event: response.completed",
    "messages": "event: message_stop",
}
WAY: Final = ("/agents/", "/runs/run.py", "/runs/scheduler.py", "/tools/")
"""From the bytes of the upstream to the log of the turn."""


async def answer_with(
    there: ScriptedScene, name: str, api: str, found: Callable[[Call], None]
) -> tuple[int, str]:
    """The status and text of an answer. `found` is called as `at_each_call` does behind the first word."""
    wire: Wire = WIRES[name]
    path, body = request_of(api, wire, stream=True)
    there.before, there.then = HEAD + wire.begin + wire.word, ENDS[name]
    there.go.clear()
    with at_each_call(found) as begin:
        return await answer_at(there.proxy, path, body, "behind a word", once(there, begin))


@pytest.mark.part("upstream")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # where what was to await it is broken
@pytest.mark.parametrize(
    ("name", "api", "parts"),
    [
        ("passed on", "chat", ("/runs/",)),
        *(
            pytest.param(name, api, WAY, marks=pytest.mark.exhaustive, id=f"{name}, {api}")
            for name in WIRES
            for api in APIS
        ),
    ],
)
async def test_an_exception_in_the_middle_of_a_stream_ends_it_at_once_as_failed(
    name: str, api: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """In each call of a function of these parts of the package, one after the other; no time limit passes."""
    with capture_logs() as logged:
        async with one_at_a_time(WIRES[name].agent, tmp_path) as there:
            called: dict[Call, None] = {}
            status, _ = await answer_with(there, name, api, called.setdefault)
            assert status == 200
            broken = 0
            for call in called:
                if not is_part(call, parts):
                    continue
                status, text = await answer_with(there, name, api, breaking(call))
                if GOOD_ENDS[api] in text:  # the exception came behind it
                    assert " you" in text
                else:
                    assert_failed(api, status, text)
                    broken += 1
            assert broken
            assert "turn_internal_error" in {line["event"] for line in logged}
            await there.proxy.settled()
            assert (await answer_with(there, name, api, lambda _: None))[0] == 200
