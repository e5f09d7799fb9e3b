"""The faults of an agent's process, whichever protocol it speaks: at every place of an answer, in every API.

As in `test_upstreams.py` a fault comes when what has to come before it has reached the client, and no answer of it may
look as if it had ended well. `test_children.py` has more faults, at more places, of the two protocols of Codex.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from codex_proxy.app.server import make_server
from tests.faults.places import APIS, PLACES, SOON, WORD, answer_at, assert_failed
from tests.http.serving import ENVIRONMENT, Proxy, running_proxy, settings_of
from tests.waiting import PATIENCE, eventually, out_of_patience, turns_shown

PROTOCOLS: Final = ("proto", "app-server", "app-server of one turn", "claude-code", "acp")
PROGRAM: Final = '#!/bin/sh\nexec {python} -P -m fake_proto claude "$@"\n'
AT_START, BEHIND_A_WORD = (
    ("at once", "behind a keep-alive"),
    ("behind a word", "behind a word and a keep-alive"),
)


@dataclass(frozen=True)
class Row:
    """A fault of the fake agent: its misbehaviour, or what its scenario says. `early` is the scenario where it comes
    before the first word, `late` behind it.
    """

    misbehaves: str = ""
    early: str = "text"
    late: str = f"text say={WORD}"
    places: tuple[str, ...] = PLACES
    protocols: tuple[str, ...] = PROTOCOLS

    def prompt(self, place: str, gate: Path) -> str:
        """The request. The fault waits for the file `gate` to exist."""
        names = f"wait,{self.misbehaves}".rstrip(",")
        word = "word" in place
        where = f"behind='{WORD}'" if word else "at=0"
        return f"[[fake:{self.late if word else self.early} misbehave={names} {where} until='{gate}']]"


FAULTS: Final = {
    "it dies": Row("crash"),
    "it ends with 0": Row("eof_without_end"),
    "it closes its output": Row("close_stdout"),
    "it ends inside a line": Row("torn"),
    "it prints garbage and ends": Row("garbage,eof_without_end"),
    "the error of its protocol": Row(early="error_500", late=f"error_mid_text say={WORD}"),
    "its end without content": Row(early="usage_missing say=''", places=AT_START, protocols=("acp",)),
    "a declined permission ends it": Row(
        early="approval say=''", places=AT_START, protocols=("proto", "app-server", "claude-code", "acp")
    ),
    "a declined permission ends it behind a text": Row(
        late=f"declined say={WORD}", places=BEHIND_A_WORD, protocols=("acp",)
    ),
}
CELLS: Final = [(protocol, fault) for fault, row in FAULTS.items() for protocol in row.protocols]


@dataclass
class Served:
    """A server whose agent speaks a protocol, and the files that its faults wait for."""

    proxy: Proxy
    folder: Path
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def answer(self, row: Row, api: str, place: str, *, stream: bool = True) -> tuple[int, str]:
        """The status and the whole text of an answer with this fault at this place."""
        gate = self.folder / f"gate-{next(self.numbers)}"
        path, body = request_of(api, row.prompt(place, gate))
        return await answer_at(self.proxy, path, body | {"stream": stream}, place, gate.touch)


def request_of(api: str, prompt: str) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    say = [{"role": "user", "content": prompt}]
    if api == "responses":
        return "/v1/responses", {"model": "codex-5", "input": prompt}
    if api == "messages":
        return "/v1/messages", {"model": "codex-5", "max_tokens": 100, "messages": say}
    return "/v1/chat/completions", {"model": "codex-5", "messages": say}


def agent_of(protocol: str, folder: Path) -> dict[str, Any]:
    """The settings of an agent of this protocol, whose program is the fake one."""
    if protocol == "app-server of one turn":
        return {"agent": "fake", "fake_dialect": "app-server", "kept_threads": 0}
    if protocol != "claude-code":
        return {"agent": "fake", "fake_dialect": protocol}
    program = folder / "program"
    program.write_text(PROGRAM.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return {"agent": protocol, "claude_bin": str(program)}


@asynccontextmanager
async def serve_agent(protocol: str, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """A server on the fake agent, whose streams get a keep-alive after 20 ms of silence."""
    given = agent_of(protocol, folder) | SOON | settings
    async with running_proxy(await make_server(settings_of(folder, **given), ENVIRONMENT)) as proxy:
        yield Served(proxy, folder)


PER_TURN: Final = ("proto", "app-server of one turn", "claude-code")
"""Protocols with a process for each turn, so that faults of several turns may come at once."""


@pytest.mark.sampled(every=37)
@pytest.mark.parametrize(("protocol", "fault"), CELLS)
async def test_no_fault_of_an_agent_looks_like_a_good_end(protocol: str, fault: str, tmp_path: Path) -> None:
    row = FAULTS[fault]

    async def streamed(api: str, place: str) -> None:
        status, text = await there.answer(row, api, place)
        assert_failed(api, status, text)

    async with serve_agent(protocol, tmp_path) as there:
        for api in APIS:
            if protocol in PER_TURN:
                await asyncio.gather(*(streamed(api, place) for place in row.places))
            else:
                for place in row.places:
                    await streamed(api, place)
            status, text = await there.answer(row, api, row.places[0], stream=False)
            assert status >= 400, f"{api}: {text}"
        await there.proxy.settled()


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_without_text_and_call_says_why_behind_a_keep_alive(
    protocol: str, tmp_path: Path
) -> None:
    async with serve_agent(protocol, tmp_path) as there:
        for api in APIS:
            status, text = await there.answer(Row(early="silent"), api, "behind a keep-alive")
            assert status == 200, text
            assert text.count(": x-codex-empty: no-output\n\n") == 1, f"{api}: {text}"


LIMITS: Final = {
    "at the start": ("first_event_timeout", "total_timeout"),
    "after the word": ("idle_timeout", "total_timeout"),
}
"""The places at which the agent falls silent, and the time limits that end the turn there."""


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("keepalive", [20, 0], ids=["the keep-alive comes first", "no keep-alive"])
@pytest.mark.parametrize(("place", "limit"), [(place, each) for place in LIMITS for each in LIMITS[place]])
async def test_silence_of_an_agent_ends_an_answer_as_failed(
    place: str, limit: str, keepalive: int, tmp_path: Path
) -> None:
    idle = limit == "idle_timeout"
    settings = {limit: PATIENCE if idle else 0.3, "heartbeat_interval": keepalive / 1000}

    async def expire() -> None:
        """Lets the time limit pass when every agent has said its word, however long that takes."""
        runs = there.proxy.server.runs
        await eventually(lambda: turns_shown(runs) == len(APIS))
        out_of_patience(runs)

    async with serve_agent("proto", tmp_path, **settings) as there:
        prompt = Row("hang").prompt(place, tmp_path)  # which exists, so that nothing is waited for
        for stream in (True, False):
            asked = [request_of(api, prompt) for api in APIS]
            bodies = [(path, body | {"stream": stream}) for path, body in asked]
            expiring = asyncio.create_task(expire()) if idle else None
            answers = await asyncio.gather(
                *(answer_at(there.proxy, *each, place, tmp_path.touch) for each in bodies)
            )
            if expiring:
                await expiring
            for api, (status, text) in zip(APIS, answers, strict=True):
                assert stream or status != 200
                assert (WORD in text) == (stream and limit == "idle_timeout") or limit == "total_timeout"
                assert_failed(api, status, text)
