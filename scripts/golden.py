"""Plays the golden transcripts in `test-results/` again, and writes them with today's answers.

    .venv/bin/python -m scripts.golden [--output FOLDER]

A transcript is a recorded conversation with the fake agent: its requests, the answers, and in its metadata the dialect
of the agent. For a new one, write a file with the request and the metadata `codex_bin`, `scenario` and `include_usage`,
name it in its folder's manifest, and run the script. What differs from run to run (ids, times) is replaced, so that a
diff of two transcripts shows what has changed. Source: docs/contract.md#golden-transcripts.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import msgspec

from codex_proxy.app.logs import configure
from codex_proxy.app.server import make_server
from codex_proxy.settings.fields import Settings
from scripts.golden_sessions import AGENTS, KEY, play_session

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "test-results"
MANIFEST = "manifest.json"
DYNAMIC_ID, TIMESTAMP, STATE = "<dynamic-id>", "<timestamp>", "<state>"
PROFILE = "codex-completions-api"
"""The folder of the transcripts with this `chat_profile`."""

Json = dict[str, Any]


class Kind(msgspec.Struct, frozen=True):
    """What the transcripts of one folder have in common."""

    path: str = ""
    """The path of the requests, if the transcripts have none."""
    headers: dict[str, str] = {}
    settings: Json = {}
    """The settings of the server that differ from those of the other kinds."""
    numbered: bool = False
    """Whether each id gets a name of its own, which shows what belongs together."""
    has_random_calls: bool = False
    """Whether this server makes the ids of calls."""


ALIASES = {"model_aliases": "gpt-4o=codex-5"}
"""Aliases for the model of the examples in docs/contract.md#golden-examples."""
ANSWER_SECONDS: Final = 60.0
CHAT = "/v1/chat/completions"
ANTHROPIC = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
ASKING = {"sandbox": "danger-full-access", "approvals": "ask", "api_key": KEY}
KINDS: Final = {
    "agents": Kind("/v1/agents/sessions", AGENTS, settings=ASKING, numbered=True),
    "chat-completions": Kind(CHAT, settings=ALIASES),
    "messages": Kind("/v1/messages?beta=true", ANTHROPIC, has_random_calls=True),
    "ollama": Kind(has_random_calls=True),
    "responses": Kind("/v1/responses", settings=ALIASES, numbered=True),
    "tools": Kind(CHAT, settings={"structured_output": True}),
}


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[str]:
    """Yields the URL of a new server that keeps its files in `folder`."""
    fields = Settings.model_fields.items()
    own = {name: field.get_default(call_default_factory=True) for name, field in fields}  # no variable counts
    own |= {"agent": "fake", "port": 0, "workdir": folder, "state_dir": folder, "drain_ms": 0}
    own |= {"fake_dialect": "proto", "heartbeat_interval": 0, **settings}
    server = await make_server(Settings(**own), {"PATH": os.defpath})
    try:
        await server.start()
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


def manifest_of(kind: str, folder: Path = RESULTS) -> list[Json]:
    """Returns the entries of a manifest: `file`, `about` and `sha256` of each transcript."""
    entries: list[Json] = json.loads((folder / kind / MANIFEST).read_text("utf-8"))["transcripts"]
    return entries


def transcript(kind: str, file: str, folder: Path = RESULTS) -> Json:
    """Returns a transcript as it was written."""
    found: Json = json.loads((folder / kind / file).read_text("utf-8"))
    return found


def content(transcript: Json) -> Json:
    """Returns a transcript without its metadata."""
    return {name: value for name, value in transcript.items() if name != "metadata"}


def digest(content: Json) -> str:
    """Returns the SHA-256 of a transcript without its metadata."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


async def play(
    kind: str, file: str, folder: Path, *, restarted: bool = False, **settings: Any
) -> tuple[Json, list[int]]:
    """Returns the content of a committed transcript with today's answers, and their statuses. The server keeps its
    files in `folder`. `restarted`: each request gets a server that was started anew.
    """
    recorded, api = transcript(kind, file), KINDS[kind]
    profile = PROFILE if file.startswith(f"{PROFILE}/") else "openai"
    dialect = recorded["metadata"]["codex_bin"].rpartition(" ")[2]
    own = {"chat_profile": profile, "fake_dialect": dialect, **api.settings, **settings}
    names = Names(api)
    if kind == "agents":
        async with serving(folder, **own) as url:
            return await play_session(url, folder, recorded, names)
    said, statuses = list[Json](), list[int]()
    async with (
        AsyncExitStack() as servers,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session,
    ):
        url = ""
        for exchange in _exchanges(recorded):
            if restarted or not url:
                await servers.aclose()
                url = await servers.enter_async_context(serving(folder, **own))
            status, answer = await _answer(session, url, api, exchange, names)
            said.append({name: exchange[name] for name in ("path", "request") if name in exchange} | answer)
            statuses.append(status)
    if "exchanges" in recorded:
        return {"exchanges": said}, statuses
    *earlier, last = said
    return {**({"earlier": earlier[0]} if earlier else {}), **last}, statuses[-1:]


def _exchanges(recorded: Json) -> list[Json]:
    """Returns the requests of a transcript, each with its answer."""
    if "exchanges" in recorded:
        exchanges: list[Json] = recorded["exchanges"]
        return exchanges
    return [each for each in (recorded.get("earlier"), recorded) if each is not None]


async def _answer(
    session: aiohttp.ClientSession, url: str, api: Kind, exchange: Json, names: Names
) -> tuple[int, Json]:
    """Returns the status of an answer, and `response` or `stream` as a transcript has them."""
    path, body = exchange.get("path", api.path), names.put_back(exchange["request"])
    async with session.post(url + path, json=body, headers=api.headers) as reply:
        said = await reply.read()
    if reply.content_type == "application/x-ndjson":
        sent = said.splitlines()
    elif reply.content_type == "text/event-stream":
        sent = [each.partition(b"data: ")[2] for each in said.strip().split(b"\n\n")]
    else:
        return reply.status, {"response": names.replace(json.loads(said))}
    stream = [names.replace("[DONE]" if each == b"[DONE]" else json.loads(each)) for each in sent]
    if api.numbered:
        stream = [{"event": "done" if each == "[DONE]" else each["type"], "data": each} for each in stream]
    return reply.status, {"stream": stream}


class Names:
    """Replaces what differs from run to run, in the answers of one transcript."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._names: dict[str, str] = {}
        """The name that stands for each id."""

    def replace(self, value: Any) -> Any:
        """Returns a value of an answer with its ids, times and opaque state replaced."""
        if isinstance(value, list):
            return [self.replace(each) for each in value]
        if isinstance(value, dict):
            return {name: self._field(name, each, value) for name, each in value.items()}
        return self._id(value) if isinstance(value, str) and _OURS.fullmatch(value) else value

    def _field(self, name: str, value: Any, owner: Json) -> Any:
        if name in _TIMES and isinstance(value, int | str):
            return TIMESTAMP
        if name.endswith("_duration"):
            return 0
        if name == "event_id":
            return DYNAMIC_ID
        is_call = owner.get("type") == "tool_use" or "function" in owner
        if (name == "request_id" and not self._kind.numbered) or (
            name == "id" and is_call and self._kind.has_random_calls
        ):
            return DYNAMIC_ID
        if name == "data" and owner.get("type") == "redacted_thinking":
            return STATE
        return self.replace(value)

    def _id(self, id: str) -> str:
        if not self._kind.numbered:
            return DYNAMIC_ID
        begin = f"<{id.partition('_')[0]}-"
        count = sum(name.startswith(begin) for name in self._names.values())
        return self._names.setdefault(id, f"{begin}{count + 1}>")

    def put_back(self, request: Any) -> Any:
        """Returns a request, or a value in one, with the ids in place of their names."""
        if isinstance(request, list):
            return [self.put_back(each) for each in request]
        if isinstance(request, dict):
            return {name: self.put_back(value) for name, value in request.items()}
        return next((id for id, name in self._names.items() if name == request), request)


_OURS = re.compile(
    r"(?:resp|rs|fc|fco|ctc|item|sess|turn|agent|subagent|env|act|mcp|mcpr|amsg)_[0-9a-f]{32}(?:_\d+)?"
    r"|chatcmpl-\w+|msg_\w+"
)
_TIMES = frozenset(
    {"created", "created_at", "last_active_at", "started_at", "completed_at", "opened_at", "closed_at"}
)


async def write_all(kind: str, output: Path) -> int:
    """Writes every transcript of a kind and their manifest into `output`. Returns how many there are."""
    common = {
        "captured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cli_version": _output(sys.executable, "-m", "fake_proto", "--version"),
    }
    entries = []
    for entry in manifest_of(kind):
        recorded = transcript(kind, entry["file"])
        with tempfile.TemporaryDirectory() as folder:
            today, statuses = await play(kind, entry["file"], Path(folder))
        status = statuses if "exchanges" in today else statuses[0]
        metadata = {**common, **recorded["metadata"], **common, "status": status}
        _write(output / kind / entry["file"], {"metadata": metadata, **today})
        entries.append({**entry, "sha256": digest(today)})
    _write(output / kind / MANIFEST, {"metadata": common, "transcripts": entries})
    return len(entries)


def _commit() -> str:
    """Returns the commit that is checked out; `unknown` in a copy of the sources without their history."""
    try:
        return _output("git", "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


@click.command(help=__doc__.partition("\n")[0])
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(output: Path) -> None:
    configure("error", "console")
    for kind in KINDS:
        count = asyncio.run(write_all(kind, output))
        click.echo(f"{count} transcripts in {output / kind}")


if __name__ == "__main__":
    main()
