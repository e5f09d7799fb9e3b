"""How golden transcripts are made and written: the server that answers, the metadata, the manifest, the command.

In: a generator of transcripts, one for each file. Out: the files, and a manifest with the digest of each. What differs
from one recording to the next is in the metadata alone.
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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from codex_proxy.app.logs import configure
from codex_proxy.app.server import make_server
from codex_proxy.settings.fields import Settings

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "test-results"
MANIFEST = "manifest.json"
AGENT = (sys.executable, "-m", "fake_proto")
DYNAMIC_ID, TIMESTAMP = "<dynamic-id>", "<timestamp>"


class Transcript(NamedTuple):
    """One file: its name below the folder, what it shows, what it was made with, and what was said."""

    file: str
    about: str
    scenario: str
    """Of the fake agent."""
    dialect: str
    include_usage: bool
    """Whether the answer is to tell of its tokens."""
    status: int | list[int]
    content: dict[str, Any]


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
        chat_profile="openai",
        structured_output=False,
        stream_metrics=False,
        heartbeat_interval=0,
        sse_max_concurrency=None,
        rate_limit_rpm=0,
        test_endpoints=False,
    )


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[str]:
    """The URL of a server of our own that keeps its files in `folder`; `settings` that are to be otherwise."""
    server = await make_server(settings_in(folder).model_copy(update=settings), {"PATH": os.defpath})
    try:
        await server.start()
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[str]:
    """The same in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), **settings) as url:
            yield url


async def write_all(output: Path, transcripts: AsyncIterator[Transcript]) -> int:
    """Writes every transcript and the manifest into a folder that is there; how many there were."""
    common = {
        "captured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cli_version": _said(*AGENT, "--version"),
    }
    entries = []
    async for each in transcripts:
        metadata = {
            **common,
            "codex_bin": f"python -m fake_proto {each.dialect}",  # without the path of anybody's Python
            "scenario": each.scenario,
            "include_usage": each.include_usage,
            "status": each.status,
        }
        file = output / each.file
        file.parent.mkdir(exist_ok=True)
        _write(file, {"metadata": metadata, **each.content})
        entries.append({"file": each.file, "about": each.about, "sha256": digest(each.content)})
    _write(output / MANIFEST, {"metadata": common, "transcripts": entries})
    return len(entries)


def digest(content: dict[str, Any]) -> str:
    """The SHA-256 of a transcript without its metadata."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def command(about: str, default: Path, transcripts: Callable[[], AsyncIterator[Transcript]]) -> click.Command:
    """The command line that writes these into `default`, or where it is told to."""

    @click.command(help=about)
    @click.option("--output", type=click.Path(path_type=Path), default=default, show_default=True)
    def main(output: Path) -> None:
        configure("error", "console")
        output.mkdir(parents=True, exist_ok=True)
        count = asyncio.run(write_all(output, transcripts()))
        click.echo(f"{count} transcripts in {output}")

    return main


def _commit() -> str:
    """What is checked out; a copy of the sources without its history does not know."""
    try:
        return _said("git", "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
