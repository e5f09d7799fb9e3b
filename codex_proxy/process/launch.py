"""Starts a child process under the warden (`process/warden.py`): program, environment, pipes and limits.
`process/child.py` watches and ends it. Errors say what a user can do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from codex_proxy.core.faults import Failure, Fault, FaultKind, shortage_of

WARDEN = str(Path(__file__).with_name("warden.py"))
FOLDER_REMOVED = "the current folder was removed. Start in another one."


class ChildLimits(msgspec.Struct, frozen=True):
    """Limits of `setrlimit` for each process of a child: open files, address space, the user's processes. 0: the
    proxy's own. Core dumps are off, because an agent's memory has its credentials and the conversation.
    """

    # 64 turns at once with their commands, pipes and sockets take some hundreds; macOS gives programs 256.
    open_files: int = 4096
    # Address space is not memory: programs reserve many times what they use, so that no number is right for all.
    address_space: int = 0
    # The system counts all processes and threads of the user, whoever has started them.
    processes: int = 0

    def warden_arguments(self) -> list[str]:
        """Returns the warden's arguments `NAME=NUMBER`, or `soft:NAME=NUMBER` if the child may raise it."""
        limits = {"soft:NOFILE": self.open_files, "AS": self.address_space, "NPROC": self.processes}
        return ["soft:CORE=0", *(f"{name}={value}" for name, value in limits.items() if value)]


class Command(msgspec.Struct, frozen=True):
    """What to start: program and arguments, all variables, and the folder. At its end the child gets `eof_grace`
    seconds after its stdin is closed, then SIGTERM, and SIGKILL after `term_grace` seconds.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    eof_grace: float = 1.0
    term_grace: float = 1.0
    limits: ChildLimits = ChildLimits()

    def __hash__(self) -> int:
        return hash((self.argv, self.cwd))  # a dict has none


class SpawnError(Fault):
    """A program cannot be started. The message says which, and what to do. `temporary`: it may succeed when the machine
    is less busy.
    """

    def __init__(self, program: str, reason: str, *, temporary: bool = False) -> None:
        kind = FaultKind.UNAVAILABLE if temporary else FaultKind.SPAWN_FAILED
        super().__init__(Failure(kind, f"cannot start {program}: {reason}"))
        self.program = program
        self.reason = reason
        self.temporary = temporary


class Warden(Protocol):
    """The process of a warden, a child of the server, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Returns the exit code (-n for signal n), or None while it runs."""

    def wait(self) -> int:
        """Blocks until the process has ended, and returns its exit code."""

    def kill(self) -> None:
        """Sends SIGKILL, unless `poll` or `wait` has returned the exit code."""


class StartSlot:
    """A place among the children that may start at once."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._on_free: Callable[[], None] | None = on_free

    def free(self) -> None:
        """Lets the next child start. May be called again."""
        on_free, self._on_free = self._on_free, None
        if on_free is not None:
            on_free()


class LaunchedChild(msgspec.Struct, frozen=True):
    """A started child. The receiver must close the server's ends of the pipes, and free the slot when the child has
    printed something.
    """

    warden: Warden
    stdin: int
    stdout: int
    stderr: int
    lifeline: int
    slot: StartSlot | None = None
    """None if any number of children may start at once."""


def launch(command: Command) -> LaunchedChild:
    """Starts the command in a session of its own, under a warden. Raises `SpawnError` without leaving anything. A
    program that is not executable ends with exit code 127.
    """
    program = find_program(command)
    with start_errors(program), open_pipes() as pipes:
        child_in, child_out, child_err, lifeline = pipes.child_ends
        options = [str(lifeline), str(int(command.term_grace * 1000)), *command.limits.warden_arguments()]
        warden = subprocess.Popen(
            [sys.executable, "-I", "-S", WARDEN, *options, "--", program, *command.argv[1:]],
            stdin=child_in,
            stdout=child_out,
            stderr=child_err,
            pass_fds=(lifeline,),
            env=environment_of(command),
            cwd=command.cwd,
            start_new_session=True,
        )
        return pipes.child_of(warden)


@contextmanager
def start_errors(program: str) -> Iterator[None]:
    """A context in which an error of the system, or of a text that no argument can have, is raised as a `SpawnError`
    about `program`.
    """
    try:
        yield
    except OSError as fault:
        shortage = shortage_of(fault)
        raise SpawnError(
            program, shortage or os.strerror(fault.errno or 0), temporary=bool(shortage)
        ) from fault
    except ValueError as fault:  # a NUL byte, or text that the file system's encoding cannot hold
        raise SpawnError(program, f"{fault} in its arguments or environment") from fault


class Pipes:
    """The pipes of a child: stdin, stdout, stderr, lifeline."""

    def __init__(self) -> None:
        self.child_ends: list[int] = []
        self.server_ends: list[int] = []
        self.has_child = False

    def close_child_ends(self) -> None:
        while self.child_ends:
            os.close(self.child_ends.pop())

    def child_of(self, warden: Warden) -> LaunchedChild:
        stdin, stdout, stderr, lifeline = self.server_ends
        self.has_child = True
        return LaunchedChild(warden, stdin, stdout, stderr, lifeline)


@contextmanager
def open_pipes() -> Iterator[Pipes]:
    """Yields the pipes of a child. The context closes the child's ends, and the server's unless `child_of` was called.
    If it raises an error, it closes all: a child that was started ends with its lifeline. Raises `OSError`.
    """
    pipes, keep = Pipes(), False
    try:
        for child_reads in (True, False, False, True):
            read_end, write_end = os.pipe()
            pipes.child_ends.append(read_end if child_reads else write_end)
            pipes.server_ends.append(write_end if child_reads else read_end)
        yield pipes
        pipes.close_child_ends()
        keep = pipes.has_child
    finally:
        for descriptor in () if keep else (*pipes.child_ends, *pipes.server_ends):
            os.close(descriptor)


def environment_of(command: Command) -> dict[str, str]:
    """Returns the child's variables, with `AGENT_MARK`. Without a locale text is UTF-8 (PEP 538)."""
    env = {**command.env, AGENT_MARK: "1"}
    if env.get("LC_ALL") or (env.get("LC_CTYPE") or env.get("LANG") or "C") not in ("C", "POSIX"):
        return env
    return {**env, "LC_CTYPE": "C.UTF-8"}


def find_program(command: Command) -> str:
    """Returns the absolute path of the program, found as in the command's folder. Raises `SpawnError` if program or
    folder is missing, or the program may not be executed.
    """
    name = command.argv[0]
    if not os.path.isdir(command.cwd):
        raise SpawnError(name, f"its folder {command.cwd} does not exist; create it or set another one")
    if os.sep in name:
        path: str | None = os.path.join(command.cwd, name)
    else:
        search = command.env.get("PATH", os.defpath)
        path = shutil.which(name, path=search) or shutil.which(name, mode=os.F_OK, path=search)
    if path is None:
        raise SpawnError(name, "it is not on PATH; install it or give its full path")
    if not os.path.exists(path):
        raise SpawnError(path, "there is no such file; install it or give the right path")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise SpawnError(
            path, "it is not an executable file; give the program's path, or make it executable (chmod +x)"
        )
    return os.path.abspath(path)


def is_folder_removed() -> bool:
    """Whether this process's own folder is gone: a relative path means nothing then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


# The server's own settings hold its clients' keys: no child may ever see one. Their case does not matter when they are
# read, so it does not matter here either.
FORBIDDEN_PREFIX = "PROXY_"

AGENT_MARK = "CODEX_PROXY_AGENT"
"""The variable that every child has: by it a client of this server knows that an agent of the server has started it."""

ALLOWED_NAMES = frozenset({
    # to find programs, files and the user
    "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM", "LANG",
    # to trust the certificates that the user's machine trusts
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    # to reach the internet through the user's network proxy
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    # the fake agent of the tests waits for this file
    "STREAM_RELEASE_FILE",
})  # fmt: skip

ALLOWED_PREFIXES = ("LC_", "CODEX_", "FAKE_CODEX_")

PROXY_NAMES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
SECRET_WORDS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Matches names of Codex's secrets: CODEX_API_KEY, CODEX_ACCESS_TOKEN, and any to come."""


def child_environment(
    source: Mapping[str, str],
    *,
    extra: Iterable[str] = (),
    env_keys: Iterable[str] = (),
    credentials: bool = False,
) -> dict[str, str]:
    """Returns the variables of `source` that a child gets: the allow-list, `extra` (PROXY_CHILD_ENV) and `env_keys`
    (providers' keys); credentials only with `credentials`, as for the agent; never PROXY_*.
    """
    named = frozenset((*extra, *env_keys))
    return {
        name: value
        for name, value in source.items()
        if (name in named or _is_allowed(name, value, credentials=credentials))
        and not name.upper().startswith(FORBIDDEN_PREFIX)
    }


def credential_names(environment: Mapping[str, str], *, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the names of credentials, except `extra`; the agent removes them for its commands."""
    allowed = frozenset(extra)
    return tuple(
        name for name, value in environment.items() if name not in allowed and _is_credential(name, value)
    )


def _is_allowed(name: str, value: str, *, credentials: bool) -> bool:
    if name not in ALLOWED_NAMES and not name.startswith(ALLOWED_PREFIXES):
        return False
    return credentials or not _is_credential(name, value)


def _is_credential(name: str, value: str) -> bool:
    if name.upper() in PROXY_NAMES:
        return "@" in value
    return name.startswith("CODEX_") and SECRET_WORDS.search(name) is not None
