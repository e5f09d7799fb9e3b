"""Row 1: the first token through the proxy, against the same child driven directly, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from codex_proxy.process.launch import child_environment
from scripts.bench_lib import direct
from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import (
    chat_request,
    clean_environment,
    first_delta,
    provider,
    proxy,
    session_request,
)
from tests.real.codex_home import KEY, KEY_NAME, make_codex_home
from tests.real.release import codex_path

PROMPT = "[[model:text n=3]]"
MANY = 16
PROCESSES = 2
"""The number of app-servers that the proxy keeps by default."""

SESSION_DELTA, SESSION_END = b"output_text.delta", b'"type":"agent.session.idle"'

Side = Callable[[int], Awaitable[float]]
"""Returns the seconds to the first token of the request with this number."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    yield from _proto(folder / "proto", rounds=2 if quick else 60, many=1 if quick else 8)
    yield from _app_server(folder / "app-server", rounds=2 if quick else 100, many=1 if quick else 12)


def _proto(folder: Path, *, rounds: int, many: int) -> Iterator[Figure]:
    folder.mkdir(parents=True)
    environment = child_environment(clean_environment({}))
    with proxy(folder, "--agent", "fake") as server:
        request = chat_request("Go.")

        async def ours(_: int) -> float:
            return await first_delta(server.port, request)

        async def theirs(_: int) -> float:
            return await direct.proto_first_delta(environment, str(folder))

        yield from asyncio.run(_compare("proto, a spawn per request", ours, theirs, rounds, many, goal=""))


def _app_server(folder: Path, *, rounds: int, many: int) -> Iterator[Figure]:
    with provider() as base_url:
        home = make_codex_home(folder, base_url)
        flags = ("--agent", "codex-app-server", "--codex-bin", str(codex_path()))
        places = ("--workdir", str(home.workdir))
        variables = {KEY_NAME: KEY, "HOME": str(home.user)}
        # What the environment holds (certificates above all) costs the child time, so both get the same.
        environment = child_environment(clean_environment(variables), env_keys=(KEY_NAME,))
        environment["CODEX_HOME"] = str(home.path)
        with proxy(folder, *flags, *places, codex_home=str(home.path), **variables) as server:
            request = chat_request(PROMPT)

            async def ours(_: int) -> float:
                return await first_delta(server.port, request)

            session = session_request(PROMPT, str(home.workdir))

            async def in_session(_: int) -> float:
                return await first_delta(server.port, session, delta=SESSION_DELTA, end=SESSION_END)

            async def measure() -> list[Figure]:
                async with AsyncExitStack() as stack:
                    children = [
                        await stack.enter_async_context(
                            direct.app_server(home.agent_argv(), environment, str(home.workdir))
                        )
                        for _ in range(PROCESSES)
                    ]

                    async def theirs(number: int) -> float:
                        return await children[number % PROCESSES].first_delta(PROMPT, str(home.workdir))

                    return [
                        *await _compare(
                            "app-server, warm", ours, theirs, rounds, many, goal="<= 1.10 at p50"
                        ),
                        *await _compare(
                            "session, app-server, warm",
                            in_session,
                            theirs,
                            rounds,
                            many,
                            goal="<= 1.05 at p50",
                        ),
                    ]

            yield from asyncio.run(measure())


async def _compare(name: str, ours: Side, theirs: Side, rounds: int, many: int, *, goal: str) -> list[Figure]:
    """Measures both sides in turns, one request at a time and then several at once."""
    figures = []
    for at_once, times in ((1, rounds), (MANY, many)):
        mine: list[float] = []
        direct_: list[float] = []
        for side in (ours, theirs):  # so that neither pays for what happens once
            await asyncio.gather(*(side(number) for number in range(at_once)))
        for _ in range(times):
            mine += await asyncio.gather(*(ours(number) for number in range(at_once)))
            direct_ += await asyncio.gather(*(theirs(number) for number in range(at_once)))
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            ratio = quantile(mine, share) / quantile(direct_, share)
            what = f"first token, {name}, {at_once} at once, {label}"
            figures.append(Figure("1", what, "the child driven directly", ratio, goal, len(mine)))
    return figures
