#!/usr/bin/env python
"""Streams one tool call from a running proxy, and says whether the stream kept the contract.

    .venv/bin/python scripts/smoke/stream_tool_call.py --include-usage --base-url http://127.0.0.1:11435/v1

Writes the raw stream and its SHA-256 to `test-results/smoke/`, prints a JSON summary, and exits with 1 where
something is missing. Source: docs/contract.md#golden-transcripts.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import click

from codex_proxy.files.private import make_folder, replace_file

ROOT = Path(__file__).resolve().parent.parent.parent
OUTPUT = ROOT / "test-results" / "smoke"
PROMPT = "What is the weather in Nashville? Call the tool."
FAKE_PROMPT = f'{PROMPT} [[fake:tool_call args=\'{{"city": "Nashville"}}\']]'
"""The prompt for the fake agent, which calls a tool only if a marker says so."""

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def request_of(model: str, prompt: str, *, include_usage: bool) -> dict[str, Any]:
    """Returns the body: one tool, which must be called."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": "required",
        "stream": True,
    }
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    return body


async def is_fake(session: aiohttp.ClientSession, base_url: str) -> bool:
    """Whether the server says that its agent is the fake one, which only this proxy does."""
    try:
        async with session.get(base_url.removesuffix("/v1") + "/healthz") as reply:
            health = await reply.json()
    except (aiohttp.ClientError, ValueError):
        return False
    agent = health.get("agent") if isinstance(health, dict) else None
    return isinstance(agent, dict) and agent.get("fake") is True


async def stream(
    session: aiohttp.ClientSession, base_url: str, body: dict[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    """Returns the raw bytes of the answer, and what is known without reading them."""
    began = time.monotonic()
    first: float | None = None
    raw = bytearray()
    async with session.post(f"{base_url}/chat/completions", json=body) as reply:
        async for piece in reply.content.iter_any():
            first = first or time.monotonic()
            raw += piece
        known = {
            "status": reply.status,
            "request_id": reply.headers.get("x-request-id"),
            "agent": reply.headers.get("x-codex-agent"),
            "first_byte_ms": None if first is None else round((first - began) * 1000, 1),
            "total_ms": round((time.monotonic() - began) * 1000, 1),
        }
    return bytes(raw), known


def summary_of(raw: bytes, *, include_usage: bool) -> dict[str, Any]:
    """Returns the contents of the stream, and what it lacks."""
    lines = [line for line in raw.decode("utf-8", "replace").split("\n") if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    frames = [json.loads(each) for each in data if each != "[DONE]"]
    calls: dict[int, dict[str, str]] = {}
    reasons = []
    for choice in [choice for frame in frames for choice in frame.get("choices", ())]:
        for delta in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += delta.get("id", "")
            call["name"] += delta.get("function", {}).get("name", "")
            call["arguments"] += delta.get("function", {}).get("arguments", "")
        if choice["finish_reason"] is not None:
            reasons.append(choice["finish_reason"])
    usage = next((frame["usage"] for frame in reversed(frames) if frame.get("usage")), None)
    lacks = {
        "an error came": any("error" in frame for frame in frames),
        "no tool call": not calls,
        "arguments are not JSON": not all(is_json(call["arguments"]) for call in calls.values()),
        "finish_reason is not tool_calls": reasons != ["tool_calls"],
        "the last line is not [DONE]": data[-1:] != ["[DONE]"],
        "usage was asked for and is missing": include_usage and usage is None,
        "usage was not asked for": not include_usage and usage is not None,
    }
    return {
        "chunks": len(frames),
        "tool_calls": [calls[index] for index in sorted(calls)],
        "finish_reason": reasons[-1] if reasons else None,
        "usage": usage,
        "problems": [problem for problem, there in lacks.items() if there],
    }


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def keep(raw: bytes, output: Path) -> dict[str, Any]:
    """Writes the raw stream, and its digest beside it."""
    make_folder(output)
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    log = output / f"stream-tool-call-{moment}.sse"
    digest = hashlib.sha256(raw).hexdigest()
    with replace_file(log) as file:
        file.write(raw)
    with replace_file(log.with_suffix(".sha256")) as file:
        file.write(f"{digest}  {log.name}\n".encode())
    return {"log": str(log), "sha256": digest, "bytes": len(raw)}


async def smoke(
    base_url: str, api_key: str, model: str, prompt: str | None, *, include_usage: bool
) -> tuple[bytes, dict[str, Any]]:
    """Sends one request; returns its raw answer and the summary."""
    headers = {"Authorization": f"Bearer {api_key}"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        if prompt is None:
            prompt = FAKE_PROMPT if await is_fake(session, base_url) else PROMPT
        raw, known = await stream(session, base_url, request_of(model, prompt, include_usage=include_usage))
    if known["status"] != 200:
        return raw, {**known, "problems": [raw.decode("utf-8", "replace")[:2000]]}
    return raw, {**known, **summary_of(raw, include_usage=include_usage)}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--base-url", default="http://127.0.0.1:11435/v1", show_default=True)
@click.option("--api-key", envvar="PROXY_API_KEY", default="none", help="Key of the proxy, if it wants one.")
@click.option("--model", default="codex-5", show_default=True)
@click.option("--prompt", help="What to say instead of asking for the weather.")
@click.option("--include-usage", is_flag=True, help="Ask for the usage chunk.")
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=True)
def main(
    base_url: str, api_key: str, model: str, prompt: str | None, include_usage: bool, output: Path
) -> None:
    base_url = base_url.rstrip("/")
    try:
        raw, summary = asyncio.run(smoke(base_url, api_key, model, prompt, include_usage=include_usage))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(
            f"{base_url} gave no whole answer: {type(error).__name__}: {error}"
        ) from error
    click.echo(json.dumps({"base_url": base_url, "model": model, **summary, **keep(raw, output)}, indent=2))
    sys.exit(1 if summary["problems"] else 0)


if __name__ == "__main__":
    main()
