#!/usr/bin/env python
"""Records the golden transcripts of Chat Completions anew: `test-results/chat-completions/`.

    .venv/bin/python scripts/generate_chat_transcripts.py [--output DIR]

Each is one request to a real server on a real port, whose agent is the deterministic fake one. What differs from
run to run (`id`, `created`) is replaced; the rest is kept to the letter, so that two recordings differ in their
metadata only. The contract tests compare live answers with these files and never write them. Source: seed 001
("Golden Transcripts & Snapshots").
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import click

from codex_proxy.app import make_server
from codex_proxy.config import Settings
from codex_proxy.logs import configure

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "test-results" / "chat-completions"
MANIFEST = "manifest.json"
PATH = "/v1/chat/completions"
AGENT = (sys.executable, "-m", "fake_proto")
AGENT_NAME = "python -m fake_proto proto"
"""How the metadata name the agent: without the path of anybody's Python."""

DYNAMIC_ID, TIMESTAMP = "<dynamic-id>", "<timestamp>"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather",
    "parameters": WEATHER_PARAMETERS,
}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "auto"}
FUNCTIONS: dict[str, Any] = {"functions": [WEATHER], "function_call": "auto"}


class Scenario(NamedTuple):
    """One transcript: its file's name, what it shows, the fake agent's scenario, and the request."""

    name: str
    about: str
    scenario: str
    request: dict[str, Any]


def _scenario(name: str, about: str, scenario: str, prompt: str, **fields: Any) -> Scenario:
    content = f"{prompt} [[fake:{scenario}]]"
    request = {"model": "codex-5", "messages": [{"role": "user", "content": content}], **fields}
    return Scenario(name, about, scenario.partition(" ")[0], request)


WEATHER_PROMPT = "What is the weather in Paris and in Rome?"

SCENARIOS: tuple[Scenario, ...] = (
    _scenario(
        "nonstream-minimal",
        "A whole answer.",
        "text say=Hello! in=6 out=2 cached=0 reasoning=0",
        "Say hello.",
    ),
    _scenario("nonstream-truncation", "A whole answer that was cut.", "truncation", "Tell a story."),
    _scenario("nonstream-tool-calls", "Two calls, whole.", "tool_calls", WEATHER_PROMPT, **TOOLS),
    _scenario(
        *("nonstream-function-call", "The legacy call, whole.", "function_call", WEATHER_PROMPT), **FUNCTIONS
    ),
    _scenario("nonstream-content-filter", "Stopped by the filter.", "content_filter", "Say it."),
    Scenario("nonstream-invalid-request", "No messages: 400 that names them.", "none", {"model": "codex-5"}),
    _scenario(
        "streaming-usage",
        "A stream with its usage chunk.",
        "text in=11 out=7 cached=3 reasoning=2",
        "Say hello.",
        **USAGE,
    ),
    _scenario("streaming-usage-length", "A stream that was cut, with usage.", "length", "Go on.", **USAGE),
    _scenario(
        "streaming-tool-calls",
        "Two calls, their arguments in increments.",
        "tool_calls",
        WEATHER_PROMPT,
        **TOOLS,
        **USAGE,
    ),
    _scenario(
        "streaming-tool-calls-sequential",
        "Without parallel calls: one consolidated delta.",
        "tool_calls_sequential calls=1",
        "What is the weather in Paris?",
        **TOOLS,
        **USAGE,
        parallel_tool_calls=False,
    ),
    _scenario(
        "streaming-function-call",
        "The legacy call, in increments.",
        "function_call",
        WEATHER_PROMPT,
        **FUNCTIONS,
        **USAGE,
    ),
    _scenario(
        "streaming-content-filter", "Stopped by the filter, streamed.", "content_filter", "Say it.", **USAGE
    ),
    _scenario(
        *(
            "streaming-multi-choice",
            "Two choices that hear the same.",
            "text in=11 out=7 cached=3 reasoning=2",
            "Say hello.",
        ),
        n=2,
        **USAGE,
    ),
    _scenario("streaming-error", "A failure in mid-stream.", "error_mid_text", "Say hello.", **USAGE),
)


def settings_in(folder: Path) -> Settings:
    """Every setting that an answer depends on, whatever the environment says."""
    return Settings(
        agent="fake",
        fake_dialect="proto",
        port=0,
        host="127.0.0.1",
        api_key=None,
        workdir=folder,
        state_dir=folder,
        drain_ms=0,
        codex_model=None,
        builtin_tools="auto",
        env="prod",
        model_aliases="",
        max_chat_choices=5,
        choices="broadcast",
        structured_output=False,
        stream_metrics=False,
        sse_keepalive_ms=0,
        sse_max_concurrency=None,
        rate_limit_rpm=0,
        test_endpoints=False,
    )


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[str]:
    """The URL of a server of our own, as long as it is needed; `settings` that are to be otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = settings_in(Path(folder)).model_copy(update=settings)
        running = await make_server(chosen, {"PATH": os.defpath})
        try:
            await running.start()
            yield f"http://127.0.0.1:{running.port}"
        finally:
            await running.stop()


async def answer_to(session: aiohttp.ClientSession, url: str, request: Any) -> tuple[int, dict[str, Any]]:
    """The status, and `response` or `stream` as a transcript keeps them."""
    async with session.post(url + PATH, json=request) as reply:
        text = await reply.text()
        if reply.content_type == "text/event-stream":
            return reply.status, {"stream": [sanitised(frame) for frame in frames_of(text)]}
        return reply.status, {"response": sanitised(json.loads(text))}


def frames_of(text: str) -> list[Any]:
    """The data lines of a stream; `[DONE]` as it is, comments left out."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def sanitised(value: Any) -> Any:
    """The value, with what differs from run to run replaced: an answer's `id` and `created`."""
    if not isinstance(value, dict):
        return value
    replaced = dict(value)
    if str(value.get("id", "")).startswith("chatcmpl-"):
        replaced["id"] = DYNAMIC_ID
    if isinstance(value.get("created"), int):
        replaced["created"] = TIMESTAMP
    return replaced


async def record(output: Path) -> None:
    """Writes every transcript and the manifest into a folder that is there."""
    common = {
        "captured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "codex_bin": AGENT_NAME,
        "cli_version": said(*AGENT, "--version"),
    }
    entries = []
    timeout = aiohttp.ClientTimeout(total=60)
    async with server() as url, aiohttp.ClientSession(timeout=timeout) as session:
        for each in SCENARIOS:
            status, answer = await answer_to(session, url, each.request)
            content = {"request": each.request, **answer}
            metadata = {
                **common,
                "scenario": each.scenario,
                "include_usage": includes_usage(each.request),
                "status": status,
            }
            write(output / f"{each.name}.json", {"metadata": metadata, **content})
            entries.append({"file": f"{each.name}.json", "about": each.about, "sha256": digest(content)})
    write(output / MANIFEST, {"metadata": common, "transcripts": entries})


def includes_usage(request: dict[str, Any]) -> bool:
    """Whether a usage chunk was asked for."""
    return bool((request.get("stream_options") or {}).get("include_usage"))


def digest(content: dict[str, Any]) -> str:
    """The SHA-256 of a transcript without its metadata."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def commit() -> str:
    """What is checked out; a copy of the sources without its history does not know."""
    try:
        return said("git", "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=True)
def main(output: Path) -> None:
    configure("error", "console")
    output.mkdir(parents=True, exist_ok=True)
    asyncio.run(record(output))
    click.echo(f"{len(SCENARIOS)} transcripts in {output}")


if __name__ == "__main__":
    main()
