"""The warden: a small program between the server and each child, which makes sure that no process is left behind.

    python -I -S warden.py LIFELINE GRACE [LIMIT=NUMBER...] -- PROGRAM ARGUMENT...
    python -I -S warden.py CONTROL

The first form runs one program. The second is the spawner: it forks a warden for each request on the socket with the
descriptor CONTROL, which is faster than the start of an interpreter (`process/spawner.py` is the other side). Each fork
is a child of the server: if the spawner is killed, no warden ends.

LIFELINE is the descriptor of the read end of a pipe whose only write end the server holds. Each byte is the number of a
signal for the child's process group. The end of the pipe means that the server is dead, or wants the child killed: the
group gets SIGTERM and, after GRACE milliseconds, SIGKILL.

However the child ends, all its descendants are killed. On Linux the warden is the child subreaper: an orphaned
descendant becomes its child, even one that left its session, and it runs until it has no children. On systems without
prctl (macOS) only the process group is killed. If the warden itself is killed, the child gets SIGKILL (parent-death
signal, Linux), and the server kills the child's descendants (`own_process`).

Each LIMIT is a resource limit (`setrlimit`) for the child and all that it starts, not for the warden. With `soft:`
before its name the child may raise it. A limit is never above what the system allows.

The exit status is the child's: its exit code, 128 + n if signal n ended it, or 127 if it could not be started (the
reason is on stderr). stdin, stdout and stderr are the child's own.

It imports nothing of the server: it is started by its path, and without a spawner once per child, which each import
delays. Each page of memory that a fork touches costs it microseconds, so what is the same for all forks is done before
the first, functions of modules are imported by their names, and what each fork does is not spread over many small
functions.
"""

import _signal as signal  # type: ignore[import-not-found, unused-ignore]  # `signal` itself imports enum, which takes 3 ms
import os
import resource
import sys
from marshal import loads
from os import (
    chdir,
    close,
    dup2,
    execve,
    fork,
    getpid,
    getppid,
    killpg,
    pread,
    read,
    setpgid,
    setsid,
    waitpid,
    write,
)
from resource import getrlimit, setrlimit
from select import select
from time import monotonic, sleep

if sys.platform == "linux":
    import _ctypes  # what `ctypes` wraps, which takes 2 ms to import
    from _ctypes import call_function

    LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    PRCTL = _ctypes.dlsym(LIBC, "prctl")
else:
    PRCTL = 0

    def call_function(function: int, arguments: tuple[object, ...]) -> int:
        """Returns -1, a failure: there is no prctl."""
        return -1


PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
# Signal numbers of POSIX.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
EMFILE = 24  # of Linux, where alone the spawner runs
SIGXFSZ = 25  # Linux and macOS alike
# Signals that the child could inherit as ignored: from Python (PIPE, XFSZ), or from a server that was started by
# `nohup` (HUP) or in the background by a script (INT, QUIT). A shell cannot even trap a signal that was ignored at its
# start.
RESET_SIGNALS = (SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXFSZ)
# Signals that end neither a warden nor the spawner: only the server decides when these end.
BLOCKED_SIGNALS = (SIGHUP, SIGINT, SIGTERM)

# A killed process is gone in milliseconds; one that stays longer is stuck in the kernel.
KILL_SECONDS = 5.0
# Each round kills one generation of descendants, and their end is seen after about this time.
KILL_ROUND_SECONDS = 0.002

SPAWNER_NAME, WARDEN_NAME = b"codex-spawner", b"codex-warden"
"""The names of the processes in `ps` and `top`, at most 15 characters."""
MESSAGE_BYTES = 64
"""Maximum bytes of a message, more than any has. Messages are decimal numbers with blanks between them. Request: its
number, GRACE in milliseconds, the size of the file with the `Program`. Reply: the request's number, the warden's pid
and an error number (one of the two is 0).
"""
DESCRIPTORS = 5
"""Number of descriptors in a request: the child's stdin, stdout and stderr, a file with the `Program`, the lifeline."""
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of the system call `clone`, by machine."""
CLONE_PARENT = 0x8000
SIGCHLD = 17

Limit = tuple[int, int, bool]
"""Number of an `RLIMIT_`, its value, and whether only the soft limit is set."""
Program = tuple[list[bytes], dict[bytes, bytes], bytes, list[Limit]]
"""What a child executes: path and arguments, environment, working folder, limits."""


def main(arguments: list[str]) -> int:
    """Runs the program or the spawner that `sys.argv` names. Returns the exit status."""
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes a warden up
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    if len(arguments) == 2:
        return serve_forks(int(arguments[1]), mask)
    lifeline, grace, separator = int(arguments[1]), int(arguments[2]), arguments.index("--")
    command = [os.fsencode(argument) for argument in arguments[separator + 1 :]]
    program = (command, dict(os.environb), b".", parse_limits(arguments[3:separator]))
    os.set_inheritable(lifeline, False)
    stdio = [os.dup(number) for number in range(3)]
    null = os.open(os.devnull, os.O_RDWR)
    dup2(null, 0)
    dup2(null, 1)
    return run(program, stdio, lifeline, grace, mask)


def parse_limits(arguments: list[str]) -> list[Limit]:
    """Parses arguments `NAME=NUMBER`, or `soft:NAME=NUMBER` for the soft limit only. NAME is that of an `RLIMIT_`
    constant (NOFILE); unknown ones are left out.
    """
    limits = []
    for argument in arguments:
        name, _, number = argument.partition("=")
        kind = getattr(resource, "RLIMIT_" + name.removeprefix("soft:"), None)
        if kind is not None:
            limits.append((kind, int(number), name.startswith("soft:")))
    return limits


def serve_forks(control: int, mask: set[int]) -> int:
    """Forks a warden for each request on the socket `control`, until the server closes it. Children do not get the
    signals in `mask`. Returns the spawner's exit status.
    """
    import _socket
    import gc

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Int

    system_call = Function(_ctypes.dlsym(LIBC, "syscall"))
    clone = CLONE.get(os.uname().machine, -1)  # the kernel does not know -1, and the server is told so
    call_function(PRCTL, (PR_SET_NAME, SPAWNER_NAME, 0, 0, 0))
    os.set_inheritable(control, False)
    receive = _socket.socket(fileno=control).recvmsg
    space, flags = _socket.CMSG_SPACE(4 * DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC
    gc.disable()
    gc.freeze()  # the collector would write into every page that the forks share with the spawner
    while True:
        try:
            request, rights, _, _ = receive(MESSAGE_BYTES, space, flags)
        except ConnectionResetError:  # the server was killed, and has left replies unread
            return 0
        if not request:
            return 0
        descriptors = [number for _, _, data in rights for number in memoryview(data).cast("i")]
        fault = EMFILE  # the kernel leaves out descriptors for which this process has no room
        if len(descriptors) == DESCRIPTORS:
            # With this flag the fork's parent is the parent of this process: the server waits for it, as for any child.
            pid = system_call(clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
            if pid == 0:
                become_warden(control, request, descriptors, mask)
            fault = _ctypes.get_errno() if pid < 0 else 0
        if fault:
            write(control, b"%s 0 %d" % (request.split()[0], fault))
        for descriptor in descriptors:
            close(descriptor)


def become_warden(control: int, request: bytes, descriptors: list[int], mask: set[int]) -> None:
    """Makes this fork of the spawner the warden of one child, and runs it to its end. `descriptors` came with
    `request`. Replies on `control` with its own pid, so that the server learns of every fork. `mask`: see
    `serve_forks`.
    """
    try:
        setsid()
        number, grace, size = request.split()
        write(control, b"%s %d 0" % (number, getpid()))
        close(control)
        *stdio, file, lifeline = descriptors
        dup2(stdio[2], 2)
        os._exit(run((file, int(size)), stdio, lifeline, int(grace), mask))
    except OSError as fault:
        write(2, f"cannot start a child: {fault.strerror}\n".encode())
    finally:
        os._exit(127)


def run(
    program: Program | tuple[int, int], stdio: list[int], lifeline: int, grace: int, mask: set[int]
) -> int:
    """Runs a program with the descriptors `stdio`, which it closes, and then ends all its descendants. `program` may be
    the descriptor and size of a file that has it. `lifeline`, and `grace` in milliseconds: see the top of this file.
    `mask`: see `serve_forks`. Returns the exit status to pass on.
    """
    subreaper = call_function(PRCTL, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    call_function(PRCTL, (PR_SET_NAME, WARDEN_NAME, 0, 0, 0))
    warden = getpid()
    child = fork()
    if child == 0:
        become_child(program, stdio, warden, mask)
    for descriptor in stdio:
        close(descriptor)
    if len(program) == 2:
        close(program[0])
    status, some_left = wait_for_child(child, lifeline, grace)
    if some_left or not subreaper:
        ended = kill_descendants(child)
        status = ended if status is None else status
    return exit_status(status)


def become_child(program: Program | tuple[int, int], stdio: list[int], warden: int, mask: set[int]) -> None:
    """Makes this process, just forked by the process `warden`, the child. For the other arguments see `run`. Exits with
    code 127 if the program cannot be executed.
    """
    path = b"a child"
    try:
        setpgid(0, 0)  # so that signals to the child do not reach the warden
        call_function(PRCTL, (PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
        if getppid() != warden:  # it died before the line above took effect
            os._exit(128 + SIGKILL)
        dup2(stdio[0], 0)
        dup2(stdio[1], 1)
        command, env, folder, limits = program if len(program) == 4 else loads(pread(*program, 0))
        path = command[0]
        chdir(folder)
        for kind, value, soft_only in limits:
            set_limit(kind, value, soft_only)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        execve(path, command, env)
    except OSError as fault:
        write(2, f"cannot run {os.fsdecode(path)}: {fault.strerror}\n".encode())
    finally:
        os._exit(127)


def set_limit(kind: int, value: int, soft_only: bool) -> None:
    """Sets a resource limit (see `Limit`), but not above what the system allows."""
    _, hard = getrlimit(kind)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        setrlimit(kind, (wanted, hard if soft_only else wanted))
    except ValueError:  # macOS: no file limit above kern.maxfilesperproc
        return


def wait_for_child(child: int, lifeline: int, grace: int) -> tuple[int | None, bool]:
    """Waits until the child has ended, and sends the signals from the lifeline to its process group; at the lifeline's
    end SIGTERM, and waits at most `grace` milliseconds more. Returns what `reap` returns.
    """
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    deadline = None
    while True:
        status, some_left = reap(child)
        if status is not None:
            return status, some_left
        if deadline is None:
            ready, _, _ = select([woken, lifeline], [], [])
        else:
            remaining = deadline - monotonic()
            if remaining <= 0:
                return None, some_left
            ready, _, _ = select([woken], [], [], remaining)
        if woken in ready:
            read(woken, 512)
        if lifeline in ready:
            signals = read(lifeline, 64)
            for signum in signals or (SIGTERM,):
                signal_group(child, signum)
            if not signals:
                deadline = monotonic() + grace / 1000


def kill_descendants(child: int) -> int | None:
    """Kills the child's group and all its descendants, generation by generation, for at most `KILL_SECONDS`. Single
    processes are killed only while they are children of this one, so a reused pid is never hit. Returns the child's
    wait status if it ended meanwhile; else None.
    """
    status = None
    deadline = monotonic() + KILL_SECONDS
    signal_group(child, SIGKILL)
    while True:
        ended, some_left = reap(child)
        status = ended if ended is not None else status
        if not some_left or monotonic() > deadline:
            return status
        for pid in child_pids(os.getpid()):
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                continue  # not permitted (a setuid program): the deadline ends the wait for it
        sleep(KILL_ROUND_SECONDS)


def reap(child: int) -> tuple[int | None, bool]:
    """Collects all ended child processes, without blocking. Returns the wait status of `child` (None if it runs), and
    whether this process has any child left.
    """
    status = None
    while True:
        try:
            pid, ended = waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == child:
            status = ended


def child_pids(parent: int) -> list[int]:
    """Returns the children of the single-threaded process `parent`; none without /proc."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as listed:
            return [int(pid) for pid in listed.read().split()]
    except FileNotFoundError:  # a kernel built without CONFIG_PROC_CHILDREN
        return child_pids_by_stat(parent)


def child_pids_by_stat(parent: int) -> list[int]:
    """Returns the children of a process, by reading the parent of every process in /proc."""
    found: list[int] = []
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return found
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                # "pid (name) state ppid ...": the name may hold anything, parentheses and blanks too
                if int(stat.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(pid))
        except OSError:
            continue  # it ended meanwhile
    return found


def signal_group(child: int, signum: int) -> None:
    """Sends a signal to the child's process group. Ignores a group that is gone and an unknown number."""
    for function, argument in ((setpgid, child), (killpg, signum)):
        try:
            function(child, argument)
        except OSError:
            continue  # usual for the first: the child has done it before it executed its program, or is gone


def exit_status(status: int | None) -> int:
    """Converts a wait status to an exit status as a shell reports it: 128 + n for signal n. None (the child's end was
    not seen) counts as SIGKILL.
    """
    if status is None:
        return 128 + SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv))
