#!/usr/bin/env python
"""Records the golden transcripts of the client's tools anew: `test-results/tools/`.

    .venv/bin/python scripts/generate_tool_transcripts.py [--output DIR]

Each is a whole conversation: exchanges of request and answer, in which the client says again what it was answered
and gives the outputs of the calls. Every one is played in the app-server dialect of the deterministic fake agent
(`app-server/`), and in its proto dialect (`proto/`) where that has a wire for it. The last word of the fake model is
often `{outputs}`: what it was told of its calls, hidden ones too. Call ids are the fake model's own counters and are
kept; `id` and `created` of an answer are replaced.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp
import click

from codex_proxy.app import make_server
from codex_proxy.logs import configure
from scripts.generate_chat_transcripts import (
    AGENT,
    AGENT_NAME,
    MANIFEST,
    answer_to,
    commit,
    digest,
    includes_usage,
    said,
    settings_in,
    write,
)
from scripts.tool_cases import CASES, DIALECTS, Case, Dialect, Json, Output, Reply

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "test-results" / "tools"

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
    chosen = settings_in(folder).model_copy(update={"structured_output": True, **settings})
    running = await make_server(chosen, {"PATH": os.defpath})
    try:
        await running.start()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            yield lambda request: answer_to(session, f"http://127.0.0.1:{running.port}", request)
    finally:
        await running.stop()


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


async def record(output: Path) -> None:
    """Writes every transcript and the manifest into a folder that is there."""
    common = {
        "captured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cli_version": said(*AGENT, "--version"),
    }
    entries = []
    for dialect in DIALECTS:
        (output / dialect).mkdir(exist_ok=True)
        bin_name = AGENT_NAME.removesuffix("proto") + dialect
        for case in CASES:
            if dialect not in case.dialects:
                continue
            with tempfile.TemporaryDirectory() as folder:
                done = await played(case, dialect, Path(folder))
            content = {"exchanges": done.exchanges}
            metadata = {
                **common,
                "codex_bin": bin_name,
                "scenario": case.scenario,
                "include_usage": includes_usage(case.request),
                "status": done.statuses,
            }
            file = f"{dialect}/{case.name}.json"
            write(output / file, {"metadata": metadata, **content})
            entries.append({"file": file, "about": case.about, "sha256": digest(content)})
    write(output / MANIFEST, {"metadata": common, "transcripts": entries})


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=True)
def main(output: Path) -> None:
    configure("error", "console")
    output.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(output))
    click.echo(f"{sum(len(case.dialects) for case in CASES)} transcripts in {output}")


if __name__ == "__main__":
    main()
