"""Hubs and child lanes over real child processes of the fake agent, well-behaved and not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerProcess
from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.sessions import session
from codex_proxy.agents.sessions.child_per_turn import ChildTransport
from codex_proxy.agents.sessions.session import ChunkFramer, LineFramer
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command, SpawnError
from codex_proxy.process.own_process import children_of, seconds_since_boot
from tests.process.children import have_ended, shell
from tests.waiting import PATIENCE, eventually

ROOT = str(Path(__file__).parents[2])


def fake(dialect: str, **environment: str) -> Command:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, **environment}
    return Command((sys.executable, "-m", "fake_proto", dialect), env, "/", 0.2, 0.2)


class Reader:
    """Who hears a lane, and remembers."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.sizes = 0
        self.failures: list[Failure] = []
        self.ends: list[Ended] = []
        self.over = asyncio.Event()

    def on_messages(self, messages: Sequence[Any], size: int) -> None:
        assert not self.ends
        self.messages += messages
        self.sizes += size

    def on_end(self, ended: Ended) -> None:
        self.ends.append(ended)
        self.over.set()

    def fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.over.set()

    def on_long_line(self, fault: session.LineTooLong) -> None:
        self.fail(session.broken_protocol(str(fault)))

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.over.wait()


@pytest.fixture
async def process() -> AsyncIterator[AppServerProcess]:
    """A process that is not started yet; whatever it starts must be gone in the end."""
    made = AppServerProcess()
    yield made
    await made.end()
    assert not made.alive
    assert made.pid is None or have_ended([made.pid])


async def refusal_of(process: AppServerProcess, command: Command, timeout_seconds: float = PATIENCE) -> str:
    with pytest.raises(Fault) as caught:
        await process.start(command, timeout_seconds=timeout_seconds)
    assert caught.value.failure.kind is FaultKind.SPAWN_FAILED
    return caught.value.failure.message


async def test_a_process_is_ready_when_its_agent_has_answered_initialize(process: AppServerProcess) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    assert process.alive
    assert process.connection.ready
    assert process.connection.signed_in
    assert not process.has_orphans


async def test_an_agent_nobody_has_signed_in_to_says_so_at_its_start(process: AppServerProcess) -> None:
    await process.start(fake("app-server", FAKE_CODEX_ACCOUNT="none"), timeout_seconds=PATIENCE)
    assert not process.connection.signed_in


async def test_an_agent_that_never_answers_initialize_is_ended_in_time(process: AppServerProcess) -> None:
    began = time.monotonic()
    message = await refusal_of(
        process, fake("app-server", FAKE_CODEX_MISBEHAVE="hang_start"), timeout_seconds=0.5
    )
    assert "0.5 s" in message
    assert time.monotonic() - began < PATIENCE
    assert not process.alive


async def test_an_agent_that_dies_in_its_start_reports_its_last_line_of_stderr(
    process: AppServerProcess,
) -> None:
    assert "no such flag" in await refusal_of(process, shell("echo no such flag >&2; exit 2"))
    assert process.exit is not None
    assert process.exit.code == 2


async def test_an_agent_that_cannot_be_started_is_named(process: AppServerProcess) -> None:
    assert "/nowhere/codex" in await refusal_of(process, Command(("/nowhere/codex",), {}, "/"))


async def test_a_start_that_is_broken_off_leaves_no_process(process: AppServerProcess) -> None:
    starting = asyncio.create_task(
        process.start(fake("app-server", FAKE_CODEX_MISBEHAVE="hang_start"), timeout_seconds=PATIENCE)
    )
    await eventually(lambda: process.pid is not None)
    assert process.pid is not None
    pids = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await process.end()
    assert have_ended(pids)


async def test_every_channel_is_informed_of_the_end_of_its_process_once(process: AppServerProcess) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    readers = [Reader(), Reader()]
    changes: list[bool] = []
    process.on_change = lambda: changes.append(process.alive)
    for reader in readers:
        process.open_channel().attach(reader)
    assert process.pid is not None
    [agent] = psutil.Process(process.pid).children()
    agent.send_signal(signal.SIGKILL)
    for reader in readers:
        await reader.end()
        assert [ended.signal for ended in reader.ends] == [signal.SIGKILL]
    assert changes == [False]


async def test_a_line_without_an_end_fails_every_turn_and_the_process_is_not_used_again(
    process: AppServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    process._framer = LineFramer(100)
    changes: list[bool] = []
    process.on_change = lambda: changes.append(process.unhealthy)
    reader = Reader()
    process.open_channel().attach(reader)
    process.on_output(b"x" * 1000)
    assert [failure.kind for failure in reader.failures] == [FaultKind.AGENT_PROTOCOL]
    assert changes == [True]
    await eventually(lambda: not process.alive)
    assert session.MAX_LINE_BYTES > 12 << 20


async def test_a_childs_lines_arrive_complete_and_an_unfinished_last_one_too() -> None:
    reader = await start_reader(shell("printf 'one\\ntw'; sleep 0.1; printf 'o\\nthree'; exit 3"))
    await reader.end()
    assert reader.messages == [b"one", b"two", b"three"]
    assert reader.sizes >= len(b"one\ntwo\nthree") - 2
    assert [ended.code for ended in reader.ends] == [3]


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":',
        b'{"method":"turn/comp',
        b'{"id":null,"error":{"message":"Parse error"}}',
        b'{"id":[1],"result":{}}',
    ],
)
async def test_a_line_of_which_nobody_knows_whose_it_is_fails_every_turn_of_its_process(
    process: AppServerProcess, line: bytes
) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    reader = Reader()
    process.open_channel().attach(reader)
    process.on_output(b'{"id":null}\n{"level":"info"}\n{ a: 1 }\nnpm warn {"x"\n')
    assert (reader.failures, process.unhealthy) == ([], False)
    process.on_output(line + b"\n")
    assert [failure.kind for failure in reader.failures] == [FaultKind.AGENT_PROTOCOL]
    assert process.unhealthy
    await eventually(lambda: not process.alive)


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        (r'{"a":{"b":1}', False),
        (r'{"a":"\302', False),
        (r'{"a":"\ud83d"}', True),
        (r'{"a":"\377"}', True),
        ("plain {", True),
    ],
)
async def test_an_unfinished_last_line_of_json_is_left_to_the_end_of_a_child_that_died_in_it(
    printed: str, read: bool
) -> None:
    for code in (3, 0):
        reader = await start_reader(shell(f"printf '%b' 'one\n{printed}'; exit {code}"))
        await reader.end()
        assert len(reader.messages) == (2 if read or code == 0 else 1)


async def test_the_unfinished_last_line_of_a_process_of_several_turns_is_read_if_it_is_whole(
    process: AppServerProcess,
) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    reader, transport = Reader(), process.open_channel()
    transport.attach(reader)
    process.on_output(b'{"id":"%d.1","result":{}}' % transport.channel)
    assert process.pid is not None
    [agent] = psutil.Process(process.pid).children()
    agent.send_signal(signal.SIGKILL)
    await reader.end()
    assert [message.id for message in reader.messages] == [f"{transport.channel}.1"]


async def start_reader(command: Command) -> Reader:
    transport, reader = ChildTransport(), Reader()
    await transport.start(command)
    transport.attach(reader)
    return reader


async def test_a_child_that_is_gone_before_its_first_word_is_reported() -> None:
    reader = await start_reader(shell("echo sorry >&2; exit 4"))
    await reader.end()
    assert reader.messages == []
    [ended] = reader.ends
    assert ended.code == 4
    assert "sorry" in ended.stderr_tail


async def test_a_child_that_reads_to_the_end_of_stdin_gets_that_end() -> None:
    transport, reader = ChildTransport(), Reader()
    await transport.start(shell("cat"))
    transport.attach(reader)
    transport.send(b"x" * 300_000 + b"\n")  # more than the pipe takes at once
    transport.send(b"the end\n")
    transport.close_stdin()
    await reader.end()
    assert [len(message) for message in reader.messages] == [300_000, len("the end")]
    assert [ended.code for ended in reader.ends] == [0]


async def test_a_childs_text_comes_as_it_is_where_it_is_not_read_by_lines() -> None:
    transport, reader = ChildTransport(ChunkFramer()), Reader()
    await transport.start(shell("printf 'one\n\n'; printf two"))
    transport.attach(reader)
    await reader.end()
    assert b"".join(reader.messages) == b"one\n\ntwo"


async def test_a_process_that_serves_several_turns_keeps_its_stdin_open(process: AppServerProcess) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    with pytest.raises(RuntimeError, match="several turns"):
        process.open_channel().close_stdin()


async def test_a_child_with_a_line_without_an_end_breaks_its_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, reader = ChildTransport(), Reader()
    transport._framer = LineFramer(1000)
    await transport.start(shell("echo fine; head -c 5000 /dev/zero; sleep 60"))
    transport.attach(reader)
    await reader.end()
    assert reader.messages in ([b"fine"], [])
    assert reader.failures[0].kind is FaultKind.AGENT_PROTOCOL
    await transport.release(finished=False)


async def test_a_release_ends_a_child_that_ignores_its_stdin() -> None:
    transport, reader = ChildTransport(), Reader()
    await transport.start(shell("trap '' TERM; echo $$; while :; do sleep 100; done"))
    transport.attach(reader)
    await eventually(lambda: bool(reader.messages))
    await transport.release(finished=True)
    assert have_ended([int(reader.messages[0])])
    assert len(reader.ends) == 1


async def test_a_paused_child_waits_and_loses_nothing() -> None:
    transport, reader = ChildTransport(), Reader()
    await transport.start(shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"))
    transport.attach(reader)
    await eventually(lambda: bool(reader.messages))
    transport.pause_reading()
    held = len(reader.messages)
    await asyncio.sleep(0)
    assert len(reader.messages) == held
    transport.resume_reading()
    await reader.end()
    assert reader.messages[-1] == b"line 19999"
    assert len(reader.messages) == 20000


async def test_a_channel_that_never_started_can_be_used_without_harm() -> None:
    transport = ChildTransport()
    with pytest.raises(SpawnError, match="no such file"):
        await transport.start(Command(("/nowhere/at/all",), {}, "/"))
    transport.send(b"x")
    transport.close_stdin()
    transport.pause_reading()
    transport.resume_reading()
    transport.kill()
    await transport.release(finished=False)


async def test_an_orphan_is_what_is_older_than_every_turn_and_not_the_agent_itself(
    process: AppServerProcess,
) -> None:
    await process.start(fake("app-server"), timeout_seconds=PATIENCE)
    transport = process.open_channel()
    reader = Reader()
    transport.attach(reader)
    assert process.pid is not None
    said = HistoryMessage("user", (TextPart("[[fake:text misbehave=grandchild]]"),))
    turn = Turn(model="m", history=(said,), mode="model")
    transport.send(transport.dialect.begin(turn).writes)

    def pump() -> bool:
        messages, reader.messages = reader.messages, []
        step = transport.dialect.receive(messages)
        if step.writes:
            transport.send(step.writes)
        return len(children_of(process.pid or 0)) > 1

    await eventually(pump)
    assert not process.has_orphans, "it may belong to the turn that runs"
    await eventually(lambda: seconds_since_boot() > max(children_of(process.pid or 0).values()))
    later = process.open_channel()
    assert not process.has_orphans
    await transport.release(finished=True)
    assert process.has_orphans, "the turn that runs began after it"
    await later.release(finished=True)
    assert process.has_orphans, "nobody is there to whom it could belong"


async def test_the_children_of_a_process_have_their_start_times() -> None:
    before = seconds_since_boot()
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        born = children_of(os.getpid())[process.pid]
        assert before <= born <= seconds_since_boot()
        assert children_of(process.pid) == {}
    finally:
        process.kill()
        await process.wait()
    assert children_of(process.pid) == {}
