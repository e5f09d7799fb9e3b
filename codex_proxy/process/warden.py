"""The warden: a small program between the proxy and each child, which makes sure that no process is left behind.

    python -I -S warden.py LIFELINE GRACE [LIMIT=NUMBER...] -- PROGRAM ARGUMENT...
    python -I -S warden.py CONTROL

The first form runs one program. The second is the spawner: it forks a warden for each request that arrives on the
socket with the descriptor CONTROL, because a fork is faster than the start of an interpreter (`process/spawner.py` is
the other side). Each fork is a child of the proxy, not of the spawner: if the spawner is killed, no warden ends.

LIFELINE is the file descriptor of the read end of a pipe whose only write end the proxy holds. Each byte read from it
is a signal number, which is sent to the child's process group. The end of the pipe means that the proxy is dead, or
wants the child killed: the group gets SIGTERM and, after GRACE seconds, SIGKILL.

However the child ends, all its descendants are killed. On Linux the warden is the child subreaper: a descendant whose
parent has ended becomes the warden's own child, even one that left its session (`setsid` after two forks), and the
warden runs until it has no children. On systems without prctl (macOS) only the process group is killed. If the warden
itself is killed, the child gets SIGKILL (parent-death signal, Linux), and the proxy kills the child's descendants
(`own_process`).

Each LIMIT is a resource limit of `setrlimit` for the child and all that it starts, not for the warden. `soft:` before
its name lets the child raise it again. A limit is never above what the system allows.

The exit status is the child's: its exit code, 128 + n if signal n ended it, or 127 if it could not be started (the
reason is on stderr). stdin, stdout and stderr are the child's own; the warden neither reads nor writes them.

It imports nothing of the proxy: it is started by its path, and without a spawner once per child, so that each import
delays each child. What the child need not wait for is imported after the fork.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` itself imports enum, which takes 3 ms
import os
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
# Signal numbers of POSIX.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
EMFILE = 24  # of Linux, where alone the spawner runs
SIGXFSZ = 25  # Linux and macOS alike
# Signals that the child could inherit as ignored: from Python (PIPE, XFSZ), or from a proxy that was started by `nohup`
# (HUP) or in the background by a script (INT, QUIT). A shell cannot even trap a signal that was ignored at its start.
RESET_SIGNALS = (SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXFSZ)

# A killed process is gone in milliseconds; one that stays longer is stuck in the kernel.
KILL_SECONDS = 5.0
# Each round kills one generation of descendants, and their end is seen after about this time.
KILL_ROUND_SECONDS = 0.002

SPAWNER_NAME, WARDEN_NAME = b"codex-spawner", b"codex-warden"
"""The names of the processes in `ps` and `top`, at most 15 characters."""
REQUEST_BYTES, REPLY_BYTES = 4, 12
"""The sizes of the messages between proxy and spawner: a request is its number (the rest is in a descriptor that comes
with it), a reply is the number, the warden's pid and an error number of the system (one of the two is 0)."""
DESCRIPTORS = 5
"""What comes with a request: the child's stdin, stdout and stderr, the lifeline, and a file with the arguments."""
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of the system call `clone` by machine."""
CLONE_PARENT = 0x8000
SIGCHLD = 17


def main(arguments: list[str]) -> int:
    """Runs the program or the spawner that the arguments (`sys.argv`) name. Returns the exit status."""
    if len(arguments) == 2:
        return serve_forks(int(arguments[1]))
    lifeline, grace, separator = int(arguments[1]), float(arguments[2]), arguments.index("--")
    command = [os.fsencode(argument) for argument in arguments[separator + 1 :]]
    return run(command, dict(os.environb), arguments[3:separator], lifeline, grace)


def serve_forks(control: int) -> int:
    """Forks a warden for each request on the socket `control`, until the proxy closes it. Returns the exit status of
    the spawner.
    """
    import _socket
    import ctypes
    import gc
    import marshal  # noqa: F401  imported before the first fork, like the two below, so that no fork has to
    import resource  # noqa: F401
    import select  # noqa: F401

    number = CLONE.get(os.uname().machine, -1)  # the kernel does not know -1, and the proxy is told so
    prctl(PR_SET_NAME, SPAWNER_NAME)
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    socket = _socket.socket(fileno=control)
    gc.disable()
    gc.freeze()  # the collector would write into every page that the forks share with the spawner
    while True:
        request, rights, _, _ = socket.recvmsg(REQUEST_BYTES, _socket.CMSG_SPACE(4 * DESCRIPTORS))
        if not request:
            return 0
        received = b"".join(data for _, _, data in rights)
        descriptors = [
            int.from_bytes(received[at : at + 4], sys.byteorder) for at in range(0, len(received), 4)
        ]
        fault = EMFILE  # the kernel leaves out descriptors for which this process has no room
        if len(descriptors) == DESCRIPTORS:
            # With this flag the fork's parent is the parent of this process: the proxy waits for it, as for any child.
            pid = system_call(number, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
            if pid == 0:
                become_warden(control, request, descriptors)
            fault = ctypes.get_errno() if pid < 0 else 0
        if fault:
            os.write(control, reply(request, 0, fault))
        for descriptor in descriptors:
            os.close(descriptor)


def reply(request: bytes, pid: int, fault: int) -> bytes:
    """Returns the answer to a request: the pid of the warden that was forked for it, or the error number `fault`."""
    return request + pid.to_bytes(4, sys.byteorder) + fault.to_bytes(4, sys.byteorder)


def become_warden(control: int, request: bytes, descriptors: list[int]) -> None:
    """Makes this fork of the spawner the warden of one child, and runs it to the end of the process. `descriptors`
    came with `request`, to which this process replies with its pid on `control`: so the proxy learns of every fork,
    even if the spawner is killed meanwhile.
    """
    import marshal

    try:
        os.setsid()
        os.write(control, reply(request, os.getpid(), 0))
        os.close(control)
        *pipes, lifeline, file = descriptors
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        command, env, cwd, limits, grace = marshal.loads(os.pread(file, os.fstat(file).st_size, 0))
        os.close(file)
        os.chdir(cwd)
        os._exit(run(command, env, limits, lifeline, grace))
    except OSError as fault:
        os.write(2, f"cannot start a child: {fault.strerror}\n".encode())
    finally:
        os._exit(127)


def run(command: list[bytes], env: dict[bytes, bytes], limits: list[str], lifeline: int, grace: float) -> int:
    """Runs a program to its end, and then ends all its descendants. `command` is its path and arguments, `env` its
    environment, `limits` are arguments of `set_limit`, `lifeline` and `grace` as at the top of this file. Returns the
    exit status to pass on.
    """
    prctl(PR_SET_NAME, WARDEN_NAME)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    child = os.fork()
    if child == 0:
        exec_child(command, env, limits, lifeline, warden)
    make_group(child)
    detach_stdio()
    status = wait_for_child(child, lifeline, grace)
    last = kill_descendants(child)
    return exit_status(status if status is not None else last)


def prctl(option: int, value: int | bytes) -> None:
    """Sets the attribute `option` (a `PR_SET_*` number) of this process on Linux. Does nothing on other systems."""
    if sys.platform != "linux":
        return
    import _ctypes  # what `ctypes` wraps, which takes 2 ms to import

    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(function, (option, value, 0, 0, 0))


def exec_child(
    command: list[bytes], env: dict[bytes, bytes], limits: list[str], lifeline: int, warden: int
) -> None:
    """Makes this process, which was just forked, the child: sets its limits and executes `command` with the
    environment `env`. Does not return; the process exits with code 127 if the program cannot be executed. `limits`
    are arguments of `set_limit`, `lifeline` is the descriptor that the child must not inherit, and `warden` is the
    parent's pid.
    """
    try:
        make_group(0)
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != warden:  # it died before the line above took effect
            os._exit(128 + SIGKILL)
        for signum in RESET_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        os.close(lifeline)
        for limit in limits:
            set_limit(limit)
        os.execve(command[0], command, env)
    except OSError as fault:
        os.write(2, f"cannot run {os.fsdecode(command[0])}: {fault.strerror}\n".encode())
    finally:
        os._exit(127)


def set_limit(limit: str) -> None:
    """Sets a resource limit of this process, but not above what the system allows. `limit` is `NAME=NUMBER`, or
    `soft:NAME=NUMBER` to change the soft limit only; NAME is that of an `RLIMIT_` constant (NOFILE). A limit that
    the system does not know is ignored.
    """
    import resource

    name, _, number = limit.partition("=")
    soft_only, kind = (
        name.startswith("soft:"),
        getattr(resource, "RLIMIT_" + name.removeprefix("soft:"), None),
    )
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    wanted = int(number) if hard == resource.RLIM_INFINITY else min(int(number), hard)
    try:
        resource.setrlimit(kind, (wanted, hard if soft_only else wanted))
    except ValueError:  # macOS: no file limit above kern.maxfilesperproc
        return


def make_group(child: int) -> None:
    """Puts the child into a process group of its own, so that signals to the child do not reach the warden. `child`
    is its pid, or 0 in the child itself.

    Both processes call it after the fork, since either may run first.
    """
    try:
        os.setpgid(child, child)
    except OSError:
        return  # it runs its program already, and did it before that


def detach_stdio() -> None:
    """Closes this process's copies of the child's stdin and stdout, so that the child alone decides when they end.

    stderr stays, for the warden's own errors.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def wait_for_child(child: int, lifeline: int, grace: float) -> int | None:
    """Waits until the child has ended, and sends the signals that arrive on the lifeline to the child's process
    group. At the end of the lifeline the group gets SIGTERM, and the wait lasts `grace` seconds more at most.

    Returns the child's wait status, or None if the child still runs after the grace time.
    """
    import select

    for ignored in (SIGINT, SIGTERM, SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    deadline = None
    while True:
        status, _ = reap(child)
        if status is not None:
            return status
        if deadline is None:
            ready, _, _ = select.select([woken, lifeline], [], [])
        else:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            ready, _, _ = select.select([woken], [], [], remaining)
        if woken in ready:
            os.read(woken, 512)
        if lifeline in ready:
            signals = os.read(lifeline, 64)
            for signum in signals or (SIGTERM,):
                signal_group(child, signum)
            if not signals:
                deadline = time.monotonic() + grace


def kill_descendants(child: int) -> int | None:
    """Kills the child's group and all its descendants, generation by generation, until none is left or
    `KILL_SECONDS` are over.

    Single processes are killed only while they are children of this process, so a reused pid is never hit; the
    orphans of one generation are the children in the next round. Returns the child's wait status if it ended during
    this call; else None.
    """
    status = None
    deadline = time.monotonic() + KILL_SECONDS
    signal_group(child, SIGKILL)
    while True:
        ended, some_left = reap(child)
        status = ended if ended is not None else status
        if not some_left or time.monotonic() > deadline:
            return status
        for pid in child_pids(os.getpid()):
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                continue  # not permitted (a setuid program): the deadline ends the wait for it
        time.sleep(KILL_ROUND_SECONDS)


def reap(child: int) -> tuple[int | None, bool]:
    """Collects the exit statuses of all child processes that have ended, without blocking.

    Returns the wait status of `child` (None if it is not among them), and whether this process has any child left.
    """
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == child:
            status = ended


def child_pids(parent: int) -> list[int]:
    """Returns the pids of the children of the single-threaded process `parent`; an empty list without /proc."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as listed:
            return [int(pid) for pid in listed.read().split()]
    except FileNotFoundError:  # a kernel built without CONFIG_PROC_CHILDREN
        return child_pids_by_stat(parent)


def child_pids_by_stat(parent: int) -> list[int]:
    """Returns the pids of the children of the process `parent`, found by reading the parent of every process in
    /proc; an empty list without /proc.
    """
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
    """Sends the signal with the number `signum` to the child's process group. Ignores a group that is gone and a
    number that is not a signal.
    """
    try:
        os.killpg(child, signum)
    except OSError:
        return


def exit_status(status: int | None) -> int:
    """Converts the child's wait status to an exit status as a shell reports it: 128 + n for signal n. None, for a
    child whose end was not seen, becomes that of SIGKILL.
    """
    if status is None:
        return 128 + SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv))
