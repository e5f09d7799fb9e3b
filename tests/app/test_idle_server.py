"""What a server that nobody has asked yet has imported, and how much memory it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.waiting import PATIENCE

SERVE = """
import atexit, json, sys
from codex_proxy.__main__ import main
def tell():
    from aiohttp import connector
    contexts = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED
    print(json.dumps([list(sys.modules), sum(each.cert_store_stats()["x509"] for each in contexts)]))
atexit.register(tell)
main()
"""
"""Serves until a signal, and then prints what was imported, and how many certificates aiohttp has read."""
IMPORT_AIOHTTP = "import aiohttp, sys; print('imported', flush=True); sys.stdin.read()"

LIBRARIES = frozenset(
    {
        *("aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "frozenlist", "idna", "multidict", "propcache"),
        *("yarl", "backports", "cython_runtime"),
        *("annotated_types", "dotenv", "pydantic", "pydantic_core", "pydantic_settings"),
        *("typing_extensions", "typing_inspection"),
        *("click", "codex_proxy", "msgspec", "structlog", "tomli_w"),
    }
)
"""All that an idle server imports besides Python's own modules."""
MOST_MODULES = 412
"""Of `codex_proxy`. A lower number is to be written here when it becomes possible."""
MOST_MEMORY = 2.2
"""Times the memory of a Python that has imported aiohttp."""
ONLY_FOR_SOME = (
    "codex_proxy.commands.checks",
    "codex_proxy.commands.doctor",
    "codex_proxy.http.openapi",
    "codex_proxy.parts.cassettes.serving",
    "codex_proxy.parts.cassettes.recorder",
    "codex_proxy.parts.machines.postgresql",
    "codex_proxy.parts.traces.watcher",
)
"""What a setting or a request has to ask for."""


class Idle(NamedTuple):
    modules: list[str]
    certificates: int
    memory: int


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Idle:
    """A server with the fake agent, as it is before its first request."""
    folder = tmp_path_factory.mktemp("idle")
    told, memory = run(SERVE, folder, ["serve", "--agent", "fake", "--port", "0", "--log-level", "error"])
    modules, certificates = json.loads(told.splitlines()[-1])
    return Idle(modules, certificates, memory)


def run(program: str, folder: Path, arguments: Sequence[str] = ()) -> tuple[str, int]:
    """Runs a program until it has printed a line, and ends it. Returns what it prints then, and its memory before."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PROXY_", "CODEX_"))
    }
    homes = {name: str(folder) for name in ("HOME", "CODEX_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment | homes,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        memory = psutil.Process(process.pid).memory_info().rss
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=PATIENCE)[0], memory


def test_an_idle_server_has_imported_no_library_that_only_some_requests_need(idle: Idle) -> None:
    imported = {name.partition(".")[0] for name in idle.modules} - sys.stdlib_module_names
    assert {name for name in imported if not name.startswith("_")} <= LIBRARIES


def test_an_idle_server_has_imported_nothing_of_what_is_off(idle: Idle) -> None:
    assert set(ONLY_FOR_SOME) & set(idle.modules) == set()


def test_an_idle_server_has_read_no_certificates(idle: Idle) -> None:
    assert idle.certificates == 0


def test_the_modules_of_an_idle_server_become_no_more(idle: Idle) -> None:
    own = [name for name in idle.modules if name.partition(".")[0] == "codex_proxy"]
    assert 0 < len(own) <= MOST_MODULES


def test_an_idle_server_takes_little_more_than_twice_the_memory_of_aiohttp(
    idle: Idle, tmp_path: Path
) -> None:
    _, least = run(IMPORT_AIOHTTP, tmp_path)
    assert idle.memory < MOST_MEMORY * least
