"""`codex-proxy run CLIENT [ARGS]`: runs a program with this server as its model, and leaves nothing behind.

The program gets the server's address by its environment and temporary files; no file of the user is changed. It has
the terminal, and its exit status is the command's. Without a running server, or with an agent's name, a server is
started on a free port, with a key and a folder of its own, and ended with the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from codex_proxy.commands.connect.command import NO_KEY, ServerAccess, client_named, entries_of, snippet
from codex_proxy.commands.connect.programs import PROGRAMS, SDK_ENVIRONMENT, Program
from codex_proxy.files.private import create, make_folder, replacing
from codex_proxy.settings.fields import Settings

PROBE_SECONDS: Final = 2.0
"""Seconds in which a running server answers."""
END_SECONDS: Final = 10.0
"""Seconds in which a program or a server that is asked to end does so, before it is killed."""
_ADDRESS: Final = re.compile(r"serves on (http://\S+)/v1")
_PR_SET_PDEATHSIG: Final = 1
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_OF_THE_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)


class RunError(Exception):
    """The program cannot be run. The text says why, and what to do."""


def run(
    name: str,
    arguments: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    *,
    agent: str | None,
    model: str,
    key: str | None,
) -> int:
    """Runs the program `name` and returns its exit status. `environ`: of the user; `agent`: start a server with it
    (None: use a running one, if any); `key`: for a running server. Raises `RunError` if the program is not installed or
    cannot use this server, or none can be started.
    """
    program = PROGRAMS.get(name) or Program(name=name, environment=SDK_ENVIRONMENT)
    if program.unserved:
        raise RunError(program.unserved)
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise RunError(_how_to_get(program))
    with contextlib.ExitStack() as stack:
        ending = stack.enter_context(_signals_kept())
        temporary = tempfile.TemporaryDirectory(prefix="codex-proxy-run-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        access = None if agent else running_server(settings, model, key)
        if access is None:
            # A known client has tools of its own. For it the agent gives the plain model, and leaves the home alone.
            more = {"PROXY_BUILTIN_TOOLS": "never"} if name in PROGRAMS else {}
            access = stack.enter_context(_own_server(agent, model, folder, {**environ, **more}))
        environment, first = prepared(program, access, folder, environ, Path.home())
        return _run_to_the_end([path, *first, *arguments], environment, ending)


def _how_to_get(program: Program) -> str:
    if program.install:
        return f"{program.name} is not installed, or not on PATH. To get it: {program.install}"
    near = difflib.get_close_matches(program.name, PROGRAMS, n=1)
    hint = f" Did you mean {near[0]}?" if near else f" Known clients are: {', '.join(PROGRAMS)}."
    return f"There is no program `{program.name}` on PATH.{hint}"


# --- the server -----------------------------------------------------------------------------------


def running_server(settings: Settings, model: str, key: str | None) -> ServerAccess | None:
    """Returns the server that runs at the address of the settings; None if there is none. Raises `RunError` if it
    does not accept the key.
    """
    if key is None and settings.api_key is not None:
        key = settings.api_key.get_secret_value()
    base_url = f"{settings.server_url}/v1"
    if _fetch(base_url).get("name") != "codex-proxy":
        return None
    try:
        request = urllib.request.Request(
            f"{base_url}/models", headers={"Authorization": f"Bearer {key or NO_KEY}"}
        )
        _open(request).close()
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise RunError(f"The server at {base_url} answers with HTTP {error.code}.") from error
        raise RunError(f"The server at {base_url} requires an API key: give one with --key.") from error
    return ServerAccess(base_url=base_url, model=model, key=key or NO_KEY)


def _fetch(url: str) -> dict[str, Any]:
    """Returns the JSON object at a URL; an empty one if there is none."""
    try:
        with _open(urllib.request.Request(url)) as reply:
            value = json.loads(reply.read(1 << 20))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _open(request: urllib.request.Request) -> Any:
    # Without the proxy of the environment: this is a server of the user's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=PROBE_SECONDS)


@contextlib.contextmanager
def _own_server(
    agent: str | None, model: str, folder: Path, environ: Mapping[str, str]
) -> Iterator[ServerAccess]:
    """Starts a server on a free port of loopback, with a new key and with its files in `folder`; ends it at the end
    of the `with`. Raises `RunError`, with what the server says, if it does not start.
    """
    key = secrets.token_urlsafe(24)
    own = {"PROXY_API_KEY": key, "PROXY_STATE_DIR": str(folder / "state"), "PROXY_LOG_FORMAT": "console"}
    command = [sys.executable, "-m", "codex_proxy", "serve", "--host", "127.0.0.1", "--port", "0"]
    errors = folder / "server.log"
    with os.fdopen(create(errors), "wb") as log:
        server = subprocess.Popen(
            [*command, *(("--agent", agent) if agent else ())],
            env={**environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the program
            preexec_fn=_end_with_parent(),  # noqa: PLW1509 - there is no thread yet
        )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if found := _ADDRESS.search(line.decode("utf-8", "replace")):
                break
        else:
            said = errors.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise RunError(f"No server could be started. {said}")
        # What it prints later is not read by anybody, and must not fill the pipe.
        threading.Thread(target=server.stdout.read, daemon=True).start()
        yield ServerAccess(base_url=f"{found[1]}/v1", model=model, key=key)
    finally:
        _end(server)


def _end_with_parent() -> Callable[[], object] | None:
    """Returns a function for a new child, which makes the system end the child if this process is killed (Linux);
    None for other systems.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(
        None
    ).prctl  # loaded here: between fork and exec there should be as little as possible
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- the program ----------------------------------------------------------------------------------


def prepared(
    program: Program, access: ServerAccess, folder: Path, environ: Mapping[str, str], home: Path
) -> tuple[dict[str, str], list[str]]:
    """Returns the environment of the program and its first arguments, after its settings file has been written to
    the temporary `folder`. `environ` is the environment of the user, `home` their home folder.
    """
    setup = client_named(program.setup) if program.setup else None
    file = folder / "settings"
    if setup is not None and setup.file is not None:
        file = folder / f"settings.{setup.file.format}"
        with replacing(file) as out:
            out.write(snippet(setup, access).encode())

    def filled(text: str) -> str:
        given = text.replace("{{folder}}", str(folder)).replace("{{file}}", str(file))
        return str(access.filled(given))

    environment = {name: value for name, value in environ.items() if name not in program.removed}
    environment |= {name: filled(value) for name, value in program.environment.items()}
    if program.home and not Path(program.home.replace("~", str(home), 1)).exists():
        fresh = {name: filled(value) for name, value in program.fresh.items()}
        for value in fresh.values():
            if value.startswith(str(folder)):
                make_folder(Path(value))
        environment |= fresh
    arguments: list[str] = []
    for each in program.arguments:
        if each != "{{entries}}":
            arguments.append(filled(each))
        elif setup is not None:
            for entry in entries_of(setup, access):
                arguments += ["-c", f"{'.'.join(entry.path)}={json.dumps(entry.value)}"]
    # An address of loopback is never reached through the proxy of a company.
    environment["NO_PROXY"] = environment["no_proxy"] = ",".join(
        filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1", "localhost"))
    )
    return environment, arguments


class _Ending:
    """Ends the program when a signal asks this command to end. `program` is None until it runs."""

    def __init__(self) -> None:
        self.program: subprocess.Popen[bytes] | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes the signal on to the program, and kills it if it does not end. Before it runs, ends this command."""
        if self.program is None:
            raise SystemExit(128 + number)
        self.program.send_signal(number)
        killing = threading.Timer(END_SECONDS, self.program.kill)
        killing.daemon = True
        killing.start()


@contextlib.contextmanager
def _signals_kept() -> Iterator[_Ending]:
    """Makes SIGTERM and SIGHUP (a closed terminal) end the program first, so that everything else is ended, too."""
    ending = _Ending()
    before = {number: signal.signal(number, ending.on_signal) for number in _ENDING}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_to_the_end(command: list[str], environment: Mapping[str, str], ending: _Ending) -> int:
    """Runs the program in the terminal of this command, and returns its exit status; 128 and the number of the
    signal if one has ended it. Ctrl-C is the program's: this command does not end before it.
    """
    # With a handler that does nothing, the program has the default one; a signal that is ignored would stay ignored.
    before = {number: signal.signal(number, lambda *_: None) for number in _OF_THE_TERMINAL}
    try:
        process = ending.program = subprocess.Popen(command, env=dict(environment))
        code = process.wait()
        return code if code >= 0 else 128 - code
    except OSError as error:
        raise RunError(f"{command[0]} cannot be run: {error.strerror}.") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
