"""Records the golden transcripts of the client's tools anew: `test-results/tools/`.

    .venv/bin/python -m scripts.generate_tool_transcripts [--output DIR]

`scripts/transcripts` records these and all others.

Each is a whole conversation: exchanges of request and answer, in which the client says again what it was answered
and gives the outputs of the calls. Every one is played in the app-server dialect of the deterministic fake agent
(`app-server/`), and in its proto dialect (`proto/`) where that has a wire for it. The last word of the fake model is
often `{outputs}`: what it was told of its calls, hidden ones too. Call ids are the fake model's own counters and are
kept; `id` and `created` of an answer are replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp

from scripts.generate_chat_transcripts import answer_to, includes_usage
from scripts.golden import RESULTS, Transcript, command, serving
from scripts.tool_cases import CASES, DIALECTS, Case, Dialect, Json, Output, Reply

OUTPUT = RESULTS / "tools"

Way = Literal["kept", "replayed", "restarted"]
"""How a step is taken up: by the turn that waited for it, from the history, or by a proxy that was started anew."""

WAYS: tuple[Way, ...] = ("kept", "replayed", "restarted")
KEPT_THREADS: dict[Way, int] = {"kept": 32, "replayed": 0, "restarted": 32}


class Conversation(NamedTuple):
    """What was said, and the status of each answer."""

    exchanges: list[Json]
    statuses: list[int]


async def played(case: Case, dialect: Dialect, folder: Path, way: Way = "kept") -> Conversation:
    """The case against a server of its own, which keeps its files in `folder`."""
    request = case.request
    done = Conversation([], [])
    replies = iter(case.replies)
    settings = {"fake_dialect": dialect, "kept_threads": KEPT_THREADS[way]}
    while True:
        async with _server(folder, **settings) as ask:
            while True:
                status, answer = await ask(request)
                done.exchanges.append({"request": request, **answer})
                done.statuses.append(status)
                reply = next(replies, None)
                if reply is None:
                    return done
                request = {**request, "messages": request["messages"] + _said_next(answer, reply)}
                if way == "restarted":
                    break


@asynccontextmanager
async def _server(folder: Path, **settings: Any) -> AsyncIterator[Any]:
    """Asks a server of our own, as long as it is needed."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        serving(folder, structured_output=True, **settings) as url,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield lambda request: answer_to(session, url, request)


def _said_next(answer: Json, reply: Reply) -> list[Json]:
    """The echo of an answer, and the reply to it."""
    message = echo_of(answer)
    calls = message.get("tool_calls", [])
    return [
        message,
        *(
            {"role": "tool", "tool_call_id": calls[each.call]["id"], "content": each.content}
            if isinstance(each, Output)
            else each
            for each in reply
        ),
    ]


def echo_of(answer: Json) -> Json:
    """The assistant's message as a client says it again: that of the answer, or folded from its stream."""
    if "response" in answer:
        message = answer["response"]["choices"][0]["message"]
        return {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
    content, calls = "", dict[int, Json]()
    for frame in answer["stream"]:
        for choice in frame.get("choices", ()) if frame != "[DONE]" else ():
            content += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                _fold(calls.setdefault(piece["index"], {}), piece)
    echo: Json = {"role": "assistant", "content": content or None}
    return {**echo, "tool_calls": list(calls.values())} if calls else echo


def _fold(call: Json, piece: Json) -> None:
    for key, value in piece.items():
        if isinstance(value, dict):
            _fold(call.setdefault(key, {}), value)
        elif key in ("arguments", "input"):
            call[key] = call.get(key, "") + value
        elif key != "index":
            call[key] = value


async def transcripts() -> AsyncIterator[Transcript]:
    """Every case, played in each dialect that has a wire for it."""
    for dialect in DIALECTS:
        for case in CASES:
            if dialect not in case.dialects:
                continue
            with tempfile.TemporaryDirectory() as folder:
                done = await played(case, dialect, Path(folder))
            file, usage = f"{dialect}/{case.name}.json", includes_usage(case.request)
            content = {"exchanges": done.exchanges}
            yield Transcript(file, case.about, case.scenario, dialect, usage, done.statuses, content)


main = command(__doc__.partition("\n")[0], OUTPUT, transcripts)

if __name__ == "__main__":
    main()
