"""The fake agent, forked from a process that has imported it: to start an interpreter and to import takes twenty times
as long as a turn.

The spawner of servers in the process of the tests is forked too. It and its wardens are the real ones; only where a
warden would execute the fake agent, it calls `fake_proto.__main__.main`. What a test sees of the agent is the
same but for its command line. With `--all`, and for a test that is named, everything is executed.

`python -I -S forked_fake.py SOCKET PYTHON` is the process that is forked.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from codex_proxy.process.launch import Warden

ROOT = Path(__file__).parent.parent
START = re.compile(rb"-P\0-m\0fake_proto|-m\0fake_proto|-I\0-S\0-c\0[^\0]*import run; run\(\)")
"""How the arguments of the fake agent begin, with zero bytes between them."""
LOCALE = {b"LC_CTYPE": b"C.UTF-8"}
"""What children get where their environment names no locale."""
INTERPRETER_VARIABLES = (b"PYTHON", b"LC_", b"LANG")
"""The names of variables that the interpreter reads when it starts begin with these: no fork can take others."""
NUMBER_BYTES = 32


def use_forks() -> None:
    """Lets the spawners of this process be forked, where the system can."""
    from codex_proxy.process import spawner

    if sys.platform != "linux":
        return
    executed = spawner.start_spawner
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        forker = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(its.fileno()), sys.executable],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
            env=LOCALE,
            cwd="/",
        )

    @wraps(executed)
    def fork_warden(control: int) -> Warden:
        socket.send_fds(ours, [b"."], [control, 2])
        pid = int(ours.recv(NUMBER_BYTES))
        return spawner.ForkedWarden(pid) if pid > 0 else executed(control)

    def end() -> None:
        ours.close()
        forker.wait()

    atexit.register(end)
    vars(spawner)["start_spawner"] = fork_warden


@contextmanager
def no_forks() -> Iterator[None]:
    """Lets the spawners of this process be executed."""
    from codex_proxy.process import spawner

    used = spawner.start_spawner
    vars(spawner)["start_spawner"] = inspect.unwrap(used)
    try:
        yield
    finally:
        vars(spawner)["start_spawner"] = used


def _serve(asking: socket.socket, python: bytes) -> NoReturn:
    """Forks a spawner for each pair of its socket and its stderr, and answers with its process id, or -1."""
    import ctypes  # only here: it is slow to import

    from codex_proxy.process import warden

    _import_fake_agent()
    c_library = ctypes.CDLL(None)

    def execute_or_call(path: bytes, command: list[bytes], env: dict[bytes, bytes]) -> None:
        start = START.match(b"\0".join(command[1:]))
        others = dict(env.items() - LOCALE.items())
        if start is None or path != python or any(name.startswith(INTERPRETER_VARIABLES) for name in others):
            os.execve(path, command, env)
        c_library.prctl(warden.PR_SET_NAME, b"python", 0, 0, 0)
        _become_fake_agent([os.fsdecode(argument) for argument in command[start[0].count(b"\0") + 2 :]], env)

    vars(warden)["execve"] = execute_or_call
    clone = warden.CLONE.get(os.uname().machine, -1)
    gc.collect()
    gc.freeze()
    while True:
        signs, descriptors, _, _ = socket.recv_fds(asking, 1, 2)
        if not signs:
            os._exit(0)
        # The parent of a fork is the process of the tests, as it would be if that had executed the spawner.
        pid = c_library.syscall(clone, warden.CLONE_PARENT | warden.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            asking.close()
            os.setsid()
            control, stderr = descriptors
            os.dup2(stderr, 2)
            os.close(stderr)
            os._exit(warden.main(["warden", str(control)]))
        asking.send(b"%d" % pid)
        for descriptor in descriptors:
            os.close(descriptor)


def _import_fake_agent() -> None:
    import fake_proto.__main__
    import fake_proto.acp
    import fake_proto.app_server
    import fake_proto.claude
    import fake_proto.damage
    import fake_proto.models
    import fake_proto.proto  # noqa: F401


def _become_fake_agent(arguments: list[str], env: dict[bytes, bytes]) -> NoReturn:
    """Runs the program in this process, as the interpreter would have started it."""
    from fake_proto.__main__ import main

    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number, handler in (
        (signal.SIGPIPE, signal.SIG_IGN),
        (signal.SIGXFSZ, signal.SIG_IGN),
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGCHLD, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    gc.enable()
    os.environb.clear()
    os.environb.update(env)
    exit_after(lambda: main(arguments))


def exit_after(main: Callable[[], int]) -> NoReturn:
    """Ends this fork with the exit status of `main`, as the interpreter would."""
    status = 1
    try:
        status = main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    _serve(socket.socket(fileno=int(sys.argv[1])), os.fsencode(sys.argv[2]))
