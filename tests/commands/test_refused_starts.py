"""Whatever the server would not start with fails a check of `doctor`, in the same words, and neither is a traceback."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codex_proxy.store.sqlite.opening import StoreLock
from tests.commands.codexes import command, environment
from tests.forking import ROOT
from tests.waiting import PATIENCE

Trouble = Callable[[Path], AsyncIterator[dict[str, str]]]
MODEL_SERVER = '{"x": {"url": "https://127.0.0.1:1/v1"}}'
OTHER_TEXT = "a text that is nothing else"


def with_variables(**variables: str) -> Trouble:
    """These variables are set; `@` in them is the folder, which has the file `text` and the folder `broken`, in which
    a recording is broken."""

    async def trouble(folder: Path) -> AsyncIterator[dict[str, str]]:
        (folder / "text").write_text(OTHER_TEXT)
        (folder / "text").chmod(0o600)
        (folder / "broken").mkdir()
        (folder / "broken" / "1.jsonl").write_text(OTHER_TEXT)
        yield {name: value.replace("@", str(folder)) for name, value in variables.items()}

    return trouble


async def locked_store(folder: Path) -> AsyncIterator[dict[str, str]]:
    store = folder / "store.sqlite3"
    store.touch(mode=0o600)
    lock = await StoreLock.take(store)
    yield {"PROXY_STORE": str(store)}
    lock.release()


async def folder_for_lock(folder: Path) -> AsyncIterator[dict[str, str]]:
    store = folder / "store.sqlite3"
    store.touch(mode=0o600)
    store.with_name("store.sqlite3.lock").mkdir()
    yield {"PROXY_STORE": str(store)}


async def store_with_two_names(folder: Path) -> AsyncIterator[dict[str, str]]:
    (folder / "one").touch(mode=0o600)
    os.link(folder / "one", folder / "two")
    yield {"PROXY_STORE": str(folder / "two")}


async def taken_port(folder: Path) -> AsyncIterator[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield {"PROXY_PORT": str(other.getsockname()[1])}


TROUBLES: dict[str, tuple[Trouble, str]] = {
    "a store that another server uses": (locked_store, "keeps its responses in"),
    "a lock that is a folder": (folder_for_lock, "store.sqlite3.lock of the store is no file"),
    "a store with two names": (store_with_two_names, "has a second name"),
    "a store that is none": (with_variables(PROXY_STORE="@/text"), "/text"),
    "a store below a file": (with_variables(PROXY_STORE="@/text/store.sqlite3"), "/text"),
    "a state folder that is a file": (with_variables(PROXY_STATE_DIR="@/text"), "/text"),
    "a taken port": (taken_port, "Address already in use. Give another --port"),
    "another machine's address": (
        with_variables(PROXY_HOST="192.0.2.1", PROXY_API_KEY="a-long-enough-key"),
        "Give an address of this machine",
    ),
    "a name of no machine": (
        with_variables(PROXY_HOST="no-such-name.invalid", PROXY_API_KEY="a-long-enough-key"),
        "no-such-name.invalid",
    ),
    "a folder that is none": (with_variables(PROXY_WORKDIR="@/text"), "/text is not a folder"),
    "keys that are none": (with_variables(PROXY_KEYS_FILE="@/text"), "/text: it is not valid TOML"),
    "webhooks without a secret": (
        with_variables(PROXY_WEBHOOKS_URLS="http://127.0.0.1:1/"),
        "needs PROXY_WEBHOOKS_SECRET",
    ),
    "an origin that is none": (with_variables(PROXY_ALLOWED_ORIGINS="*"), "is not an origin"),
    "a network that is none": (with_variables(PROXY_TRUSTED_PROXIES="here"), "PROXY_TRUSTED_PROXIES"),
}
OF_PARTS: dict[str, Mapping[str, tuple[Trouble, str]]] = {
    "machines": {"workers on a file": (with_variables(PROXY_WORKERS="2"), "--workers 2")},
    "mcp": {
        "MCP servers that are none": (
            with_variables(PROXY_MCP_CONFIG="@/text"),
            "/text: the file of MCP servers",
        )
    },
    "upstream": {
        "a model server's address": (
            with_variables(PROXY_UPSTREAM_URL="here", PROXY_AGENT="openai-chat"),
            "an address",
        ),
        "certificates that are none": (
            with_variables(
                PROXY_UPSTREAMS=MODEL_SERVER.replace("}}", ', "ca_file": "@/text"}}'), PROXY_AGENT="x"
            ),
            "/text cannot be read (it has no certificates",
        ),
        "a proxy that is none": (
            with_variables(
                PROXY_UPSTREAM_URL="http://models.example", PROXY_AGENT="openai-chat", http_proxy="socks5://a"
            ),
            "http_proxy is not the address of an HTTP proxy",
        ),
    },
    "cassettes": {
        "recordings that are none": (with_variables(PROXY_CASSETTES_REPLAY="@/none"), "no folder"),
        "a recording that cannot be read": (
            with_variables(PROXY_CASSETTES_REPLAY="@/broken"),
            "broken/1.jsonl, line 1",
        ),
        "a folder of recordings that is a file": (
            with_variables(PROXY_CASSETTES_RECORD="@/text"),
            "--record @/text cannot be written",
        ),
        "a folder of recordings below a file": (
            with_variables(PROXY_CASSETTES_RECORD="@/text/new", PROXY_CASSETTES_REPLAY="@/text/old"),
            "--record @/text/new cannot be written",
        ),
        "a pattern that is none": (
            with_variables(PROXY_CASSETTES_RECORD="@/new", PROXY_CASSETTES_SCRUB="("),
            "--scrub is not a valid regular expression",
        ),
        "a field that is none": (
            with_variables(PROXY_CASSETTES_RECORD="@/new", PROXY_CASSETTES_MATCH="none"),
            "--match none is not known",
        ),
    },
}
"""What can be wrong with the settings of a part."""
TROUBLES |= {name: trouble for troubles in OF_PARTS.values() for name, trouble in troubles.items()}
EACH_TROUBLE = [
    pytest.param(name, marks=[pytest.mark.part(part) for part in OF_PARTS if name in OF_PARTS[part]])
    for name in TROUBLES
]


@pytest.mark.parametrize("name", EACH_TROUBLE)
async def test_what_the_server_does_not_start_with_fails_a_check(name: str, tmp_path: Path) -> None:
    make, words = TROUBLES[name]
    words = words.replace("@", str(tmp_path))
    async with asynccontextmanager(make)(tmp_path) as variables:
        more = {"PROXY_AGENT": "fake", "PROXY_PORT": "0"} | variables
        started, checked = await asyncio.gather(
            command(tmp_path, "serve", more=more), command(tmp_path, "doctor", "--json", more=more)
        )
    assert (started.status, words in started.err) == (1, True), started.err
    failed = [check for check in checked.json["checks"] if check["status"] == "failed"]
    assert any(words in f"{check['message']} {check['advice']}" for check in failed), failed
    assert checked.status == 1
    assert "Traceback" not in started.err + checked.err


NO_THREADS = """
import threading
from codex_proxy.cli import main
def refuse(_):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
main()
"""
FEW_FILES = """
import resource
from codex_proxy.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (127, 127))
main()
"""


AS_OTHERS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE: root may write everything
os.execv(sys.executable, [sys.executable, "-P", "-m", "codex_proxy", *sys.argv[1:]])
"""


async def run_to_end(
    program: str, name: str, home: Path, more: dict[str, str] | None = None
) -> tuple[int | None, str]:
    """The exit status of the command, and all that it has printed, its lines joined."""
    argv = (name, "--agent", "fake", "--port", "0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", program, *argv),
        env=environment(home, {"PYTHONPATH": str(ROOT)} | (more or {})),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("program", "words"),
    [(NO_THREADS, "limit of processes is reached"), (FEW_FILES, "limit of open files is 127")],
)
@pytest.mark.parametrize("name", ["serve", "doctor"])
async def test_a_command_says_what_the_machine_lacks(
    name: str, program: str, words: str, tmp_path: Path
) -> None:
    status, said = await run_to_end(program, name, tmp_path)
    assert status == 1
    assert words in said
    assert "Traceback" not in said


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("name", ["serve", "doctor"])
async def test_a_store_that_may_not_be_written_is_refused(name: str, what: str, tmp_path: Path) -> None:
    store = tmp_path / "kept" / "store.sqlite3"
    store.parent.mkdir()
    for file in (store, Path(f"{store}.lock")):
        file.touch(mode=0o600)
    (store if what == "file" else store.parent).chmod(0o500)
    status, said = await run_to_end(AS_OTHERS, name, tmp_path, {"PROXY_STORE": str(store)})
    assert status == 1
    assert f"the store {store} is read-only" in said
    assert "heck its permissions and its folder's" in said
    assert "Traceback" not in said


async def run_in_removed_folder(folder: Path, arguments: str, **variables: str) -> tuple[int | None, str]:
    removed = folder / "removed"
    removed.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, sys.executable, "-P", "-m", "codex_proxy", *arguments.split()),
        cwd=removed,
        env=environment(folder) | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        *("serve --agent fake --port 0", "doctor", "keys list", "service install", "connect codex"),
        *("run sh", "store check", "serve --config c.toml", "serve --workdir w --port 0"),
    ],
)
async def test_a_command_in_a_folder_that_was_removed_says_so(tmp_path: Path, arguments: str) -> None:
    status, said = await run_in_removed_folder(tmp_path, arguments)
    assert status != 0
    if "--config" in arguments:
        assert "the file c.toml does not exist" in said
    else:
        assert said == "Error: the current folder was removed. Start in another one.\n"
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", ["serve --port 0", "doctor", "run sh", "cassettes show x", "keys list"])
async def test_a_command_that_was_given_its_folders_blames_no_other_setting(
    tmp_path: Path, arguments: str
) -> None:
    folders = {name: str(tmp_path) for name in ("PROXY_STATE_DIR", "PROXY_WORKDIR")}
    _, said = await run_in_removed_folder(tmp_path, arguments, PROXY_CODEX_BIN="bin/codex", **folders)
    assert "Traceback" not in said
    assert "PROXY_STATE_DIR or" not in said
    if arguments in ("serve --port 0", "run sh"):
        assert "the current folder was removed. Start in another one." in said
