"""`codex-proxy run CLIENT [ARGS]`: runs a program with this server as its model, by its environment and temporary
files; no file of the user is changed. Without a running server, or with an agent's name, a server of its own runs
meanwhile.
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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from codex_proxy.agents.codex.program import find_codex
from codex_proxy.agents.configured.agents import codex_settings
from codex_proxy.core.faults import UserError
from codex_proxy.files.private import TemporaryFolder, create, make_folder, replace_file, temporary_folder
from codex_proxy.parts import declared
from codex_proxy.parts.clients.clients import PROGRAMS, ClientProgram
from codex_proxy.parts.clients.connect import (
    NO_KEY,
    ServerAccess,
    ask_server,
    client_named,
    entries_of,
    snippet,
    write_models,
)
from codex_proxy.settings.fields import Settings

END_SECONDS: Final = 10.0
"""Seconds for a program or server to end until it is killed."""
_ADDRESS: Final = re.compile(r"serves on (http://\S+)/v1")
_PR_SET_PDEATHSIG: Final = 1
_ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals at which this command first ends the program, and then itself. A closed terminal sends SIGHUP."""
_OF_THE_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)


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
    """Runs the program `name`; returns its exit status. `environ`: the user's; `agent`: start a server with it
    (None: use a running one, if any); `key`: the key for a running server. Raises `UserError` if the program is not
    installed or cannot use this server, or no server can be started.
    """
    program = PROGRAMS.get(name) or ClientProgram()
    if program.unserved:
        raise UserError(program.unserved)
    path = find_client(name, settings, environ)
    if path is None:
        raise UserError(_how_to_get(name, program))
    with contextlib.ExitStack() as stack:
        running: list[subprocess.Popen[bytes]] = []
        stack.enter_context(_handle_signals(_ENDING_SIGNALS, partial(_end_program, running)))
        temporary = stack.enter_context(temporary_folder("run"))
        access = None if agent else running_server(settings, model, key)
        if access is None:
            # A known client has tools of its own. For it the agent gives the plain model, and leaves the home alone.
            more = {"PROXY_BUILTIN_TOOLS": "never"} if name in PROGRAMS else {}
            access = stack.enter_context(_own_server(agent, model, temporary, {**environ, **more}))
        environment, first = prepare(program, access, Path(temporary.path), environ, Path.home())
        return _run_to_the_end([path, *first, *arguments], environment, running, temporary)


def find_client(name: str, settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Returns the program's path: for one that is an agent, too, the program that `serve` finds; None if there is none.
    Raises `UserError` if the settings name a program that is not there.
    """
    search_path = environ.get("PATH", os.defpath)
    setting = ""
    if name == "codex":
        agents = (*codex_settings(settings), settings)
        named = next((each.codex_bin for each in agents if each.codex_bin), None)
        found, program = find_codex(named, search_path), named or ""
        setting = "codex_bin" if named else ""
    else:
        of_agents = (program_of(name, settings) for program_of in declared("programs"))
        program, setting = next(filter(None, of_agents), (name, ""))
        found = shutil.which(program, path=search_path)
    if setting and (found is None or not (os.path.isfile(found) and os.access(found, os.X_OK))):
        raise UserError(f"There is no program {program}, which the setting {setting} names.")
    return found


def _how_to_get(name: str, program: ClientProgram) -> str:
    if program.install:
        return f"{name} is not installed, or not on PATH. To get it: {program.install}"
    if name.startswith("-"):
        return f"`codex-proxy run` has no option {name}; `codex-proxy run --help` lists them."
    known = [each for each, known in PROGRAMS.items() if not known.unserved]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else f" Known clients are: {', '.join(known)}."
    return f"There is no program `{name}` on PATH.{hint}"


# --- the server -----------------------------------------------------------------------------------


def running_server(settings: Settings, model: str, key: str | None) -> ServerAccess | None:
    """Returns the server that runs at the address of the settings, if one does. Raises `UserError` if it does not
    accept the key.
    """
    key, base_url = key or settings.default_key or NO_KEY, f"{settings.server_url}/v1"
    if ask_server(base_url) is None:
        return None
    reply = ask_server(f"{base_url}/models", key)
    if reply is not None and reply.status == 401:
        raise UserError(f"The server at {base_url} requires an API key: give one with --key.")
    if reply is None or reply.status != 200:
        said = "does not answer" if reply is None else f"answers with HTTP {reply.status}"
        raise UserError(f"The server at {base_url} {said}.")
    return ServerAccess(base_url=base_url, model=model, key=key)


@contextlib.contextmanager
def _own_server(
    agent: str | None, model: str, temporary: TemporaryFolder, environ: Mapping[str, str]
) -> Iterator[ServerAccess]:
    """Starts a server on a free port, with a new key and its files in `temporary`, for the body of the `with`. Raises
    `UserError`, with what the server has printed.
    """
    key, folder = secrets.token_urlsafe(24), Path(temporary.path)
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
            pass_fds=(temporary.lock,),
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
            said = said.removeprefix("Error: ").removeprefix("codex-proxy: ")
            raise UserError(f"No server could be started: {said}")
        yield ServerAccess(base_url=f"{found[1]}/v1", model=model, key=key)
    finally:
        _end(server)


def _end_with_parent() -> Callable[[], object] | None:
    """Returns a function with which a new child asks to be ended if this process is killed (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # here, since a fork should do as little as possible
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


def prepare(
    program: ClientProgram, access: ServerAccess, folder: Path, environ: Mapping[str, str], home: Path
) -> tuple[dict[str, str], list[str]]:
    """Writes the program's settings into the temporary `folder`. Returns its environment and first arguments. `environ`
    and `home` are the user's.
    """
    setup = client_named(program.setup) if program.setup else None
    file = folder / "settings"
    if setup is not None and setup.file is not None:
        file = folder / f"settings.{setup.file.format}"
        with replace_file(file) as out:
            out.write(snippet(setup, access).encode())

    def fill(text: str) -> str:
        given = text.replace("{{folder}}", str(folder)).replace("{{file}}", str(file))
        return str(access.fill(given))

    environment = {name: value for name, value in environ.items() if name not in program.removed}
    environment |= {name: fill(value) for name, value in program.environment.items()}
    if (
        program.home
        and not environ.get(program.home_variable)
        and not Path(program.home.replace("~", str(home), 1)).exists()
    ):
        fresh = {name: fill(value) for name, value in program.fresh.items()}
        for value in fresh.values():
            if value.startswith(str(folder)):
                make_folder(Path(value))
        environment |= fresh
    arguments: list[str] = []
    for each in program.arguments:
        if each != "{{entries}}":
            arguments.append(fill(each))
        elif setup is not None:
            for entry in (*entries_of(setup, access), *write_models(setup, access, folder)):
                arguments += ["-c", f"{'.'.join(entry.path)}={json.dumps(entry.value)}"]
    # An address of loopback is never reached through the proxy of a company.
    environment["NO_PROXY"] = environment["no_proxy"] = ",".join(
        filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1", "localhost"))
    )
    return environment, arguments


def _end_program(running: list[subprocess.Popen[bytes]], number: int, _: FrameType | None) -> None:
    if not running:
        raise SystemExit(128 + number)
    running[0].send_signal(number)
    killing = threading.Timer(END_SECONDS, running[0].kill)
    killing.daemon = True
    killing.start()


@contextlib.contextmanager
def _handle_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _run_to_the_end(
    command: list[str],
    environment: Mapping[str, str],
    running: list[subprocess.Popen[bytes]],
    temporary: TemporaryFolder,
) -> int:
    # With a handler that does nothing, the program has the default one; a signal that is ignored would stay ignored.
    with _handle_signals(_OF_THE_TERMINAL, lambda *_: None):
        try:
            running.append(subprocess.Popen(command, env=dict(environment), pass_fds=(temporary.lock,)))
        except OSError as error:
            raise UserError(f"{command[0]} cannot be run: {error.strerror}.") from error
        code = running[0].wait()
        return code if code >= 0 else 128 - code
