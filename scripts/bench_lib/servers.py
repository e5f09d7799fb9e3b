"""Processes that a measurement needs, and a client that costs next to nothing: a raw socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds for what should take a few at most; then the run fails."""

ADDRESS = re.compile(r"serves on http://127\.0\.0\.1:(\d+)/v1")
READ_BYTES = 1 << 20
DELTA = b'"content":"'
RESPONSES_DELTA = b'"delta":"'
DONE = b"[DONE]"
END_BYTES = 8 << 10
"""Bytes at the end of an answer in which its end is looked for: an event with a whole session may be the last."""


class BenchError(Exception):
    """One side did not do the work that is measured."""


@dataclass(frozen=True)
class Proxy:
    """A proxy process that serves."""

    process: subprocess.Popen[bytes]
    port: int

    def memory(self) -> int:
        """Returns the resident bytes of this process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu(self) -> float:
        """Returns the CPU seconds of this process so far; its children are not counted."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment with `more`, but without the user's settings for servers and
    PYTHONDONTWRITEBYTECODE: an installed package has bytecode, and a checkout that compiles itself at every start would
    be compared with one.
    """
    theirs = ("PROXY_", "CODEX_", "FAKE_CODEX_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | dict(more)


@contextmanager
def running_process(
    command: Sequence[str], folder: Path, more: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process with a pipe for its output, and ends it at the end of the `with`."""
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def proxy(root: Path, *flags: str, **variables: str) -> Iterator[Proxy]:
    """Runs `codex-proxy serve` on a free port, with its files below `root`."""
    home = root / "proxy"
    home.mkdir(parents=True, exist_ok=True)
    codex_home = variables.pop("codex_home", str(home))
    command = [sys.executable, "-P", "-m", "codex_proxy", "serve", "--port", "0", "--log-level", "error"]
    more = {"XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home), "PROXY_DRAIN_MS": "0"} | variables
    with running_process([*command, "--codex-home", codex_home, *flags], home, more) as process:
        assert process.stdout is not None
        port = port_in(process.stdout)
        if port is None:
            raise BenchError(f"the proxy ended before it served: {(home / 'stderr').read_text()[-2000:]}")
        yield Proxy(process, port)


@contextmanager
def provider(*arguments: str) -> Iterator[str]:
    """Yields the scripted model server's base URL; with the argument `apis`, that of the server with four APIs."""
    with side_server("scripts.bench_lib.provider", *arguments) as (_, url):
        yield url


@contextmanager
def side_server(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs a module that prints its port or URL, and serves until its stdin ends. Yields the process, and what it has
    printed.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env=clean_environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def port_in(banner: IO[bytes]) -> int | None:
    """Returns the port that a banner names; None if there is none."""
    for line in banner:
        found = ADDRESS.search(line.decode())
        if found is not None:
            return int(found.group(1))
    return None


def chat_request(prompt: str, mode: str = "agent", *, stream: bool = True) -> bytes:
    """Returns the bytes of a chat request."""
    return messages_request([{"role": "user", "content": prompt}], mode, stream=stream)


def messages_request(messages: list[Any], mode: str, *, stream: bool, **fields: Any) -> bytes:
    """Returns the bytes of a chat request with these messages and other fields."""
    return _request("chat/completions", mode, stream=stream, messages=messages, **fields)


def responses_request(prompt: str, mode: str = "agent", *, stream: bool = True, store: bool = False) -> bytes:
    """Returns the bytes of a request for a response."""
    return _request("responses", mode, stream=stream, input=prompt, store=store)


def session_request(prompt: str, workdir: str) -> bytes:
    """Returns the bytes of a request for a session of the Agents API in a folder, which answers with its events."""
    environment = {"type": "self_hosted", "workspace_directory": workdir}
    body = {"agent": {"model": "codex-5"}, "environment": environment, "input": prompt, "stream": True}
    return _post("agents/sessions", "OpenAI-Beta: agents=v1", body)


def _request(path: str, mode: str, **fields: Any) -> bytes:
    return _post(path, f"X-Codex-Mode: {mode}", {"model": "codex-5", **fields})


def _post(path: str, header: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"{header}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def whole(port: int, request: bytes) -> float:
    """Returns the seconds of a request that is answered whole."""
    took, _ = await _exchange(port, request)
    return took


async def answer_to(port: int, request: bytes) -> Any:
    """Returns the whole answer to a request."""
    _, answer = await _exchange(port, request)
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def _exchange(port: int, request: bytes) -> tuple[float, bytes]:
    """Returns the seconds, and head and body of the answer."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = clock()
        writer.write(request)
        answer = await reader.read(-1)
        took = clock() - begun
        writer.close()
        await writer.wait_closed()
    if b" 200 " not in answer[:20]:
        raise BenchError(f"no answer: {answer[:500]!r}")
    return took, answer


async def first_delta(port: int, request: bytes, *, delta: bytes = DELTA, end: bytes = DONE) -> float:
    """Returns the seconds from the write of a request to its first `delta`. Reads the answer to its `end`."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        seen, first = b"", 0.0
        begun = clock()
        writer.write(request)
        while end not in seen[-END_BYTES:]:
            chunk = await reader.read(READ_BYTES)
            if not chunk:
                raise BenchError(f"the answer broke off: {seen[-500:]!r}")
            seen += chunk
            if not first and delta in seen:
                first = clock() - begun
        writer.close()
        await writer.wait_closed()
    if not first:
        raise BenchError(f"an answer without a delta: {seen[-500:]!r}")
    return first


async def drain(port: int, request: bytes, *, count: bytes | None) -> int:
    """Reads a whole stream; returns how often `count` is in it (0 for None: counting costs time)."""
    async with asyncio.timeout(PATIENCE * 4):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
        writer.write(request)
        counted, tail = 0, b""
        while DONE not in tail:
            chunk = await reader.read(READ_BYTES)
            if not chunk:
                raise BenchError(f"the answer broke off: {tail!r}")
            if count is not None:
                held = len(count) - 1
                counted += (tail[-held:] + chunk).count(count)
            tail = (tail + chunk)[-200:]
        writer.close()
        await writer.wait_closed()
    return counted
