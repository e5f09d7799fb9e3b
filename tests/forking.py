"""`codex-proxy` commands in processes that are forked from one that has imported it all: a start of the interpreter
and its imports cost ten times what most commands do.

Each is a process of its own, with its own environment, folder, standard streams and exit status. A test of how the
interpreter itself starts, or of what is imported, starts one.

`python -m tests.forking SOCKET` is the process that is forked. It leaves the tests' process tree, in which tests look
for what was left behind, and ends with the other end of its socket.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.forked_fake import exit_after
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent
INTERPRETER_VARIABLES = ("PYTHON", "LC_", "LANG")
"""The names of variables that the interpreter reads when it starts begin with these: no fork can take them."""


def run_command(
    arguments: Iterable[str], *, env: Mapping[str, str], cwd: Path, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """`codex-proxy` with these arguments, this whole environment and this standard input. Kills it and raises
    TimeoutExpired when it has not ended after `PATIENCE`."""
    argv = [*arguments]
    if any(name.startswith(INTERPRETER_VARIABLES) for name in env if name != "LC_ALL"):
        command = (sys.executable, "-P", "-m", "codex_proxy", *argv)
        return subprocess.run(command, env=env, cwd=cwd, input=stdin, capture_output=True, timeout=PATIENCE)
    umask = os.umask(0o77)
    os.umask(umask)
    asked = {"argv": argv, "env": {**env}, "cwd": str(cwd), "umask": umask}
    with ExitStack() as stack:
        given, out, err, request = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(4))
        for file, data in ((given, stdin), (request, json.dumps(asked).encode())):
            _refill(file, data)
        told, tells = socket.socketpair()
        stack.enter_context(closing(told))
        with closing(tells):
            socket.send_fds(_forker(), [b"."], [each.fileno() for each in (given, out, err, request, tells)])
        status = _exit_status(told, argv)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, status, out.read(), err.read())


def _refill(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    file.seek(0)


def _exit_status(told: socket.socket, argv: list[str]) -> int:
    """The exit status that the other end says, behind the id of the process."""
    told.settimeout(PATIENCE)
    with told.makefile() as lines:
        pid = int(lines.readline())
        try:
            return int(lines.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, PATIENCE) from None


@cache
def _forker() -> socket.socket:
    """The connection to the process that is forked, started when the first command is."""
    ours, its = socket.socketpair()
    atexit.register(ours.close)
    with closing(its):
        subprocess.run(
            (sys.executable, "-m", "tests.forking", str(its.fileno())),
            pass_fds=(its.fileno(),),
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    return ours


def _serve(asking: socket.socket) -> NoReturn:
    """Forks a command for every five descriptors that come."""
    import codex_proxy.app.server
    import codex_proxy.cli  # noqa: F401

    gc.collect()
    gc.freeze()
    while True:
        signs, descriptors, _, _ = socket.recv_fds(asking, 1, 5)
        if not signs:
            os._exit(0)
        if os.fork() == 0:
            asking.close()
            _watch(*descriptors)
        for each in descriptors:
            os.close(each)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch(given: int, out: int, err: int, request: int, tells: int) -> NoReturn:
    """Runs the command in a child, and says the child's id and then its status, negative for a signal."""
    with open(request, "rb") as file:
        asked = json.load(file)
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        for standard, each in enumerate((given, out, err)):
            os.dup2(each, standard)
            os.close(each)
        _become(asked)
    os.write(tells, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(tells, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(asked: Mapping[str, Any]) -> NoReturn:
    """Runs the command in this process, as the interpreter would have started it."""
    from codex_proxy.cli import main

    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [str(ROOT / "codex_proxy" / "__main__.py"), *asked["argv"]]
    exit_after(partial(main, prog_name="codex-proxy"))


if __name__ == "__main__":
    connection = socket.socket(fileno=int(sys.argv[1]))
    if os.fork() == 0:
        os.setsid()
        _serve(connection)
