"""Starts a command under the warden: the pipes, the process, its limits, and the faults a user can do something about.

Decides whether a command can be started, and says why not. It knows no event loop and does not look after
what it has started: `child` does.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec


class ChildLimits(msgspec.Struct, frozen=True):
    """Limits of one child and, each for itself, of what it starts. 0 leaves one as the server's own is.

    Core dumps are always off: one of an agent holds its sign-in and what was said, and lands in the workspace.
    """

    # 64 turns at once with their commands, pipes and sockets take some hundreds; macOS gives programs 256.
    open_files: int = 4096
    # Address space is not memory: programs reserve many times what they use, so that no number is right for all.
    address_space: int = 0
    # The system counts all processes and threads of the user, whoever has started them.
    processes: int = 0

    def arguments(self) -> list[str]:
        """As the warden is told: what may be raised again is soft, the rest is for good."""
        asked = {"soft:NOFILE": self.open_files, "AS": self.address_space, "NPROC": self.processes}
        return ["soft:CORE=0", *(f"{name}={value}" for name, value in asked.items() if value)]


WARDEN = str(Path(__file__).with_name("warden.py"))

# What can pass by itself, with what a user can do about it.
TEMPORARY = {
    errno.EAGAIN: "the limit of processes is reached; end some or raise it (ulimit -u)",
    errno.ENOMEM: "there is not enough memory; end something or serve fewer requests at once",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n) or serve fewer requests at once",
    errno.ENFILE: "too many open files on the whole system; end something",
}


class Command(msgspec.Struct, frozen=True):
    """What to start: the program with its arguments, its whole environment and its folder.

    `eof_grace` is how long a child may live on after its stdin (or stdout) is closed; `term_grace` how long
    after SIGTERM. Both are a second by default: an agent ends in 10 to 70 ms, on a busy machine in hundreds.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    eof_grace: float = 1.0
    term_grace: float = 1.0
    limits: ChildLimits = ChildLimits()


class SpawnError(Exception):
    """The command cannot be started. The text names the program and says what to do.

    `temporary` says that the same command may start later, when the machine is less busy.
    """

    def __init__(self, program: str, reason: str, *, temporary: bool = False) -> None:
        super().__init__(f"cannot start {program}: {reason}")
        self.program = program
        self.reason = reason
        self.temporary = temporary


class Launched(msgspec.Struct, frozen=True):
    """A warden that runs, and the proxy's ends of its pipes: four descriptors, for the receiver to close."""

    warden: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int
    lifeline: int


def launch(command: Command) -> Launched:
    """Start the command in a session of its own, under a warden.

    Returns as soon as the warden is started; a program that then proves not to be executable after all ends
    with code 127 and the reason on stderr. Raises SpawnError, and then leaves no process and no descriptor.
    """
    program = find_program(command)
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            child_in, stdin = _pipe(theirs, ours)
            stdout, child_out = _pipe(ours, theirs)
            stderr, child_err = _pipe(ours, theirs)
            life, lifeline = _pipe(theirs, ours)
            given = [str(life), str(command.term_grace), *command.limits.arguments()]
            arguments = [*given, "--", program, *command.argv[1:]]
            warden = subprocess.Popen(
                [sys.executable, "-I", "-S", WARDEN, *arguments],
                stdin=child_in,
                stdout=child_out,
                stderr=child_err,
                pass_fds=(life,),
                env=command.env,
                cwd=command.cwd,
                start_new_session=True,
            )
        except OSError as fault:
            help_ = TEMPORARY.get(fault.errno or 0)
            reason = help_ or os.strerror(fault.errno or 0)
            raise SpawnError(program, reason, temporary=help_ is not None) from fault
        except ValueError as fault:  # a NUL byte, or text that the file system's encoding cannot hold
            raise SpawnError(program, f"{fault} in its arguments or environment") from fault
        ours.pop_all()
    return Launched(warden, stdin, stdout, stderr, lifeline)


def find_program(command: Command) -> str:
    """The absolute path of the program, looked up as a shell in the command's folder would.

    Raises SpawnError when there is no such program or folder, or it may not be executed.
    """
    name = command.argv[0]
    if not Path(command.cwd).is_dir():
        raise SpawnError(name, f"its folder {command.cwd} does not exist; make it or name another one")
    if os.sep in name:
        path: str | None = str(Path(command.cwd, name))
    else:
        search = command.env.get("PATH", os.defpath)
        path = shutil.which(name, path=search) or shutil.which(name, mode=os.F_OK, path=search)
    if path is None:
        raise SpawnError(name, "it is not on PATH; install it or give its whole path")
    if not os.path.exists(path):
        raise SpawnError(path, "there is no such file; install it or give the right path")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise SpawnError(
            path, "it is not an executable file; give the program's path, or make it executable (chmod +x)"
        )
    return os.path.abspath(path)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end
