"""Programs that speak ACP send text behind the end of a turn, or give ids again: no text is lost, doubled, or in the
answer of another turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import ItemStarted, Notice, ReasoningDelta, TextDelta, TurnEnded
from codex_proxy.core.items import HistoryMessage, Message, TextPart
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.messages import Message as AcpMessage
from codex_proxy.parts.acp.messages import request, request_id
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.process import AcpProcess
from codex_proxy.parts.acp.updates import MAX_EARLIER, MAX_LATE
from codex_proxy.process.child import Command
from tests.http.serving import until, user
from tests.parts.acp.replayer import PlayedTurn, begin_and_open
from tests.parts.acp.test_agent import RecordingReader, acp, continued_request, message_of, text_in

TEXT: Final = "agent_message_chunk"
THOUGHT: Final = "agent_thought_chunk"
ANSWERS: Final = (
    ("One, ", "two."),
    ("Three, ", "four, ", "five."),
    ("Six, ", "again."),
    ("Seven, ", "eight."),
)
NAMES: Final[dict[str, Callable[[int, int], str | None]]] = {
    "own": lambda turn, number: f"message-{turn}-{number}",
    "anew": lambda turn, number: f"m{number}",
    "constant": lambda turn, number: "assistant-message-stream",
    "missing": lambda turn, number: None,
}
LATE: Final = ("never", "in one write", "between turns", "in the next turn")


def chunk(text: str, name: str | None, kind: str = TEXT) -> dict[str, Any]:
    update: dict[str, Any] = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return update | ({} if name is None else {"messageId": name})


class Conversation:
    """Several turns of one session."""

    def __init__(self) -> None:
        self.played: PlayedTurn = begin_and_open("claude-acp-text")
        self.prompt = self.played.last_request("session/prompt")
        self.tell({"sessionUpdate": "available_commands_update", "availableCommands": []})

    def tell(self, *updates: dict[str, Any], end: bool = False, late: dict[str, Any] | None = None) -> None:
        """What the agent writes: each update alone; the end and what is late in one write."""
        for update in updates:
            self._write(self._notification(update))
        if end:
            answer = {"id": self.prompt["id"], "result": {"stopReason": "end_turn", "usage": {}}}
            self._write(answer, *(() if late is None else (self._notification(late),)))

    def _notification(self, update: dict[str, Any]) -> dict[str, Any]:
        params = {"sessionId": self.prompt["params"]["sessionId"], "update": update}
        return {"method": "session/update", "params": params}

    def _write(self, *messages: dict[str, Any]) -> None:
        lines = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
        for _, given in self.played.connection.receive(lines).messages_by_channel:
            self.played.take(self.played.turn.receive(given))

    def begin_next(self) -> None:
        assert self.played.turn.can_resume
        self.played.events.clear()
        self.played.log.clear()
        self.played.repair = TurnRepair()
        said = (HistoryMessage("user", (TextPart("next"),)),)
        self.played.take(self.played.turn.resume(Turn(model="", history=said), said))
        self.prompt = self.played.last_request("session/prompt")

    @property
    def answer(self) -> str:
        """The text of the current turn, which has ended."""
        assert isinstance(self.played.log[-1], TurnEnded)
        assert self.played.log[-1].failure is None
        return "".join(event.text for event in self.played.log if isinstance(event, TextDelta))

    @property
    def messages(self) -> int:
        begun = [event.item for event in self.played.log if isinstance(event, ItemStarted)]
        return sum(isinstance(item, Message) for item in begun)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("names", NAMES)
def test_late_text_is_in_its_own_turn_or_nowhere(names: str, late: str) -> None:
    if late == "in the next turn" and names != "own":
        return  # nobody can tell
    talk = Conversation()
    for turn, pieces in enumerate(ANSWERS):
        name = NAMES[names](turn, 1)
        *early, last = (chunk(piece, name) for piece in pieces)
        if late == "never":
            early.append(last)
        talk.tell(*early, end=True, late=last if late == "in one write" else None)
        whole = late in ("never", "in one write")
        assert talk.answer == "".join(pieces if whole else pieces[:-1])
        if late == "between turns":
            talk.tell(last)
            if names == "missing":
                assert not talk.played.turn.can_resume
                assert talk.played.turn.reopen_id == ""
                return
        talk.begin_next()
        if late == "in the next turn":
            talk.tell(last)


def test_late_text_is_noted_and_does_not_take_the_next_message_apart() -> None:
    talk = Conversation()
    talk.tell(chunk("Hel", "a"), end=True)
    talk.begin_next()
    talk.tell(chunk("lo", "a"), chunk("x", "a", THOUGHT), chunk("By", "b"), chunk("e", "b"), end=True)
    assert talk.answer == "Bye"
    assert talk.messages == 1
    assert not [event for event in talk.played.log if isinstance(event, ReasoningDelta)]
    assert [event.code for event in talk.played.log if isinstance(event, Notice)] == ["late_text"]


def test_ids_that_are_given_again_hold_an_answer_back_once() -> None:
    talk = Conversation()
    talk.tell(chunk("One", "m1"), end=True)
    talk.begin_next()
    talk.tell(chunk("Think", "m1", THOUGHT), chunk("Two", "m1"))
    assert not [event for event in talk.played.log if isinstance(event, TextDelta)]
    talk.tell(end=True)
    assert talk.answer == "Two"
    assert [event.text for event in talk.played.log if isinstance(event, ReasoningDelta)] == ["Think"]
    talk.begin_next()
    talk.tell(chunk("Three", "m1"))
    assert [event.text for event in talk.played.log if isinstance(event, TextDelta)] == ["Three"]


def test_a_long_text_is_an_answer_and_is_held_no_longer() -> None:
    talk = Conversation()
    talk.tell(chunk("One", "m1"), end=True)
    talk.begin_next()
    for _ in range(3):
        talk.tell(chunk("x" * (MAX_LATE // 2), "m1"))
    talk.tell(chunk("y", "m2"), end=True)
    assert talk.answer == "x" * 3 * (MAX_LATE // 2) + "y"


def test_only_the_newest_ids_are_kept() -> None:
    talk = Conversation()
    talk.tell(*(chunk("x", f"m{number}") for number in range(MAX_EARLIER + 1)), end=True)
    talk.begin_next()
    assert len(talk.played.turn._reader._names._earlier) == MAX_EARLIER


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", ["", ",no_ids"])
async def test_the_last_text_behind_the_end_of_a_turn_is_part_of_its_answer(
    tmp_path: Path, ids: str, stream: bool
) -> None:
    async with acp(tmp_path) as proxy:
        asked = user(f"[[fake:text say='one two three' misbehave=late_text,joined{ids}]]", stream=stream)
        answer = await proxy.ask(asked)
        assert (text_in(answer) if stream else message_of(answer)["content"]) == "one two three"


@pytest.mark.parametrize("late", ["0", "next"])
async def test_late_text_is_in_no_other_answer(tmp_path: Path, late: str) -> None:
    async with acp(tmp_path) as proxy:
        asked = user(f"[[fake:text say='one two three' misbehave=late_text late={late}]]")
        first = await proxy.ask(asked)
        assert "one two three".startswith(message_of(first)["content"].strip())
        again = continued_request(asked, first, {"role": "user", "content": "[[fake:text say='four five']]"})
        assert message_of(await proxy.ask(again))["content"] == "four five"


ENDS_EARLY: Final = """
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    prompt = asked["method"] == "session/prompt"
    say(id=asked["id"], result={"stopReason": "end_turn"} if prompt else {"protocolVersion": 1, "sessionId": "s"})
    if prompt:
        for update in ({"sessionUpdate": "other"}, {"sessionUpdate": "late"}):
            say(method="session/update", params={"sessionId": "s", "update": update})
        open(sys.argv[1], "w").close()
"""


class Reader(RecordingReader):
    """Also keeps the end of the process."""

    def on_end(self, ended: Ended) -> None:
        self.messages.append(ended)

    @property
    def heard(self) -> list[Any]:
        """What is known of the turn: kinds of updates, `end` of the turn, the end of the process."""
        return [
            each.params.update.session_update if each.params.update else "end"
            for each in self.messages
            if isinstance(each, AcpMessage) and each.session is None
        ] + [type(each) for each in self.messages if isinstance(each, Ended)]


async def started(preset: AcpPreset, folder: Path, *argv: str) -> tuple[AcpProcess, Reader, int]:
    """A process with an open session."""
    process, reader = AcpProcess(preset), Reader()
    await process.start(Command((sys.executable, *argv), {}, str(folder)))
    channel = process.open_channel()
    process.attach(channel, reader)
    params = {"cwd": str(folder), "mcpServers": []}
    process.write(request(request_id(channel, 1), "session/new", params))
    await until(lambda: bool(reader.messages))
    return process, reader, channel


async def test_what_is_in_the_pipe_is_read_before_a_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.process.pipes.READ_BYTES", 64)
    told = tmp_path / "told"
    os.mkfifo(told)
    preset = AcpPreset(name="x", title="X", argv=())
    process, reader, channel = await started(preset, tmp_path, "-c", ENDS_EARLY, str(told))
    try:
        process.write(request(request_id(channel, 2), "session/prompt", {"sessionId": "s"}))
        asyncio.get_running_loop().call_soon(
            lambda: told.open().close()
        )  # the loop waits for all three lines
        await until(lambda: "end" in reader.heard)
        assert reader.heard == ["other", "late", "end"]
    finally:
        await process.end()


LATE_PRESET: Final = AcpPreset(name="x", title="X", argv=(), late_seconds=30.0)
FAKE: Final = ("-P", "-m", "fake_proto", "acp")


def prompt(reader: Reader, channel: int, text: str) -> bytes:
    session = next(each.session for each in reader.messages)
    params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
    return request(request_id(channel, 2), "session/prompt", params)


async def test_the_end_of_a_turn_waits_for_a_program_that_is_known_to_be_late(tmp_path: Path) -> None:
    preset = msgspec.structs.replace(LATE_PRESET, late_seconds=0.3)
    process, reader, channel = await started(preset, tmp_path, *FAKE)
    try:
        process.write(prompt(reader, channel, "[[fake:text say='a b' misbehave=late_text late=20]]"))
        await until(lambda: "end" in reader.heard)
        assert reader.heard == [TEXT, TEXT, "end"]
    finally:
        await process.end()


async def test_a_process_that_ends_after_a_turn_does_not_take_the_turns_end_away(tmp_path: Path) -> None:
    process, reader, channel = await started(LATE_PRESET, tmp_path, *FAKE)
    process.write(prompt(reader, channel, "[[fake:text say='a b']]"))
    await until(lambda: bool(process._late_ends))
    await process.end()
    assert reader.heard == [TEXT, TEXT, "end", Ended]


async def test_a_channel_that_closes_has_no_end_of_a_turn_to_wait_for(tmp_path: Path) -> None:
    process, reader, channel = await started(LATE_PRESET, tmp_path, *FAKE)
    process.write(prompt(reader, channel, "[[fake:text say='a b']]"))
    await until(lambda: bool(process._late_ends))
    process.close_channel(channel)
    assert process._late_ends == {}
    await process.end()
