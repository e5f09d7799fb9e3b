"""Row 7: the step that returns a tool's output, against a plain turn of one message, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import (
    BenchError,
    answer_to,
    first_delta,
    messages_request,
    provider,
    proxy,
)
from tests.real.codex_home import KEY, KEY_NAME, make_codex_home
from tests.real.release import codex_path

MODE = "model"
ASKS = {"role": "user", "content": "[[model:tool say='It is sunny.']]"}
PLAIN = {"role": "user", "content": "[[model:text say='It is sunny.']]"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
FIRST_STEP = messages_request([ASKS], MODE, stream=False, tools=TOOLS)
AGAINST = "a turn of one message with the same tools"

Side = Callable[[], Awaitable[float]]


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    rounds = 2 if quick else 100
    with provider() as base_url:
        home = make_codex_home(folder, base_url)
        flags = (
            *("--agent", "codex-app-server", "--codex-bin", str(codex_path())),
            *("--workdir", str(home.workdir)),
        )
        variables = {KEY_NAME: KEY, "HOME": str(home.user)}
        variables["codex_home"] = str(home.path)
        with (
            proxy(folder / "replaying", *flags, PROXY_KEPT_THREADS="0", **variables) as replaying,
            proxy(folder / "keeping", *flags, **variables) as keeping,
        ):
            took = asyncio.run(_compare(replaying.port, keeping.port, rounds))
    plain = took["plain"]
    for name, what in (("replayed", "a replayed step"), ("kept", "a step on a kept thread")):
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            mine, floor = quantile(took[name], share), quantile(plain, share)
            value = f"{(mine - floor) * 1000:+.1f} ms"
            yield Figure("7", f"first token of {what}, {label}", AGAINST, mine / floor, "", rounds, value)


async def _compare(replaying: int, keeping: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds to the first tokens, one request at a time, in turns."""
    plain = messages_request([PLAIN], MODE, stream=True, tools=TOOLS)
    sides: dict[str, Side] = {
        "plain": lambda: _plain(replaying, plain),
        "replayed": lambda: _step(replaying),
        "kept": lambda: _step(keeping),
    }
    for side in [*sides.values()] * 2:  # so that none pays for what happens once
        await side()
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            took[name].append(await side())
    return took


async def _plain(port: int, request: bytes) -> float:
    """Returns the seconds to a plain turn's first token, after a step that calls the tool, so that both sides find
    processes that were just used.
    """
    await answer_to(port, FIRST_STEP)
    return await first_delta(port, request)


async def _step(port: int) -> float:
    """Returns the seconds to the first token of the second step of a new conversation; its first one calls the tool."""
    answer = await answer_to(port, FIRST_STEP)
    message: dict[str, Any] = answer["choices"][0]["message"]
    calls = message.get("tool_calls")
    if not calls:
        raise BenchError(f"an answer without a call: {answer}")
    output = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"}
    echo = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
    return await first_delta(port, messages_request([ASKS, echo, output], MODE, stream=True, tools=TOOLS))
