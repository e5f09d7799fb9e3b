"""The warden: a small program between the proxy and each child, so that no process is ever left behind.

    python -I -S warden.py LIFELINE GRACE [LIMIT=NUMBER...] -- PROGRAM ARGUMENT...

LIFELINE is the number of the read end of a pipe whose only write end the proxy holds. Each byte read from
it is a signal number, passed on to the child's process group. Its end means: the proxy is dead, or wants
the child gone. Then the child's group gets SIGTERM, has GRACE seconds, and is killed.

However the child ends, every descendant of it is killed, also one that left its session and was orphaned
(`setsid` twice forked): on Linux the warden is the child subreaper, so an orphan becomes its own child, and
it leaves only when it has no child any more. Systems without prctl (macOS) get less: the process group is
killed, a descendant that made a session of its own stays. SIGKILL of the warden itself ends the child (the
parent-death signal, Linux); what the child has started is for the proxy to end (`orphans`).

Each LIMIT is set for the child, and so for all that it starts, but not for the warden: a name of `setrlimit`'s,
behind `soft:` where the child may raise it again up to what the system allows. It is never more than that.

The exit status is the child's: its code, 128 + n when signal n ended it, 127 when it could not be started
(then the reason is on stderr). stdin, stdout and stderr are the child's; the warden reads and writes none.

It knows nothing of the proxy and imports nothing of it: it is started by its path, once per child, so each
import is paid for by each child. What the child does not wait for is imported after the fork. One trace of
the interpreter remains: where the environment names no locale, the child gets LC_CTYPE=C.UTF-8 (PEP 538).
"""

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps: that imports enum, for 3 ms
import os
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Given by POSIX.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
SIGXFSZ = 25  # Linux and macOS alike
# What the child could inherit as ignored: from Python (PIPE, XFSZ), from a proxy started by `nohup` (HUP) or in
# the background by a script (INT, QUIT). A shell cannot even trap a signal that was ignored at its start.
RESET_SIGNALS = (SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXFSZ)

# A killed process is gone in milliseconds; one that is stuck in the kernel for longer cannot be helped.
SWEEP_SECONDS = 5.0
# One round takes one level of the tree; a kill takes about this long to be seen.
SWEEP_ROUND_SECONDS = 0.002


def main(arguments: list[str]) -> int:
    """Run the program named by the arguments to its end; return the exit status to pass on."""
    lifeline, grace, cut = int(arguments[1]), float(arguments[2]), arguments.index("--")
    limits, command = arguments[3:cut], arguments[cut + 1 :]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    child = os.fork()
    if child == 0:
        become(command, limits, lifeline, warden)
    make_group(child)
    detach_stdio()
    status = watch(child, lifeline, grace)
    last = sweep(child)
    return exit_status(status if status is not None else last)


def prctl(option: int, value: int) -> None:
    """Ask Linux for something that concerns this process; other systems have nothing to be asked."""
    if sys.platform != "linux":
        return
    import _ctypes  # what `ctypes` wraps, which takes 2 ms to import

    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(function, (option, value, 0, 0, 0))


def become(command: list[str], limits: list[str], lifeline: int, warden: int) -> None:
    """Turn this process, the fork, into the child; does not return."""
    try:
        make_group(0)
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != warden:  # it died before the line above could tell us so
            os._exit(128 + SIGKILL)
        for signum in RESET_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        os.close(lifeline)
        for limit in limits:
            set_limit(limit)
        os.execv(command[0], command)
    except OSError as fault:
        os.write(2, f"cannot run {command[0]}: {fault.strerror}\n".encode())
    finally:
        os._exit(127)


def set_limit(limit: str) -> None:
    """Set one limit of this process. One that this system does not have, or not so high, is as it was."""
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
    """Give the child a group of its own, so that a signal to it never reaches the warden.

    Both sides of the fork do it, since neither knows who comes first.
    """
    try:
        os.setpgid(child, child)
    except OSError:
        return  # it runs its program already, and so has done it itself


def detach_stdio() -> None:
    """Hold neither end of the child's pipes: their end must be the child's. stderr stays, for our faults."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def watch(child: int, lifeline: int, grace: float) -> int | None:
    """Wait for the child, or for the lifeline and then the grace time.

    Returns the child's wait status, or None when it still runs.
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
            orders = os.read(lifeline, 64)
            for signum in orders or (SIGTERM,):
                signal_group(child, signum)
            if not orders:
                deadline = time.monotonic() + grace


def sweep(child: int) -> int | None:
    """Kill until no descendant is left, from the top down.

    One by one only what is a child of ours at that moment is killed, so never a reused pid: the orphans of
    each level are the children of the next round. Returns the child's wait status if it ended only now.
    """
    status = None
    deadline = time.monotonic() + SWEEP_SECONDS
    signal_group(child, SIGKILL)
    while True:
        ended, some_left = reap(child)
        status = ended if ended is not None else status
        if not some_left or time.monotonic() > deadline:
            return status
        for pid in own_children(os.getpid()):
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                continue  # not ours to kill (a setuid program): the deadline ends the wait for it
        time.sleep(SWEEP_ROUND_SECONDS)


def reap(child: int) -> tuple[int | None, bool]:
    """Collect what has ended: (the child's wait status if it is among it, whether any process is left)."""
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


def own_children(parent: int) -> list[int]:
    """The children of a single-threaded process; an empty list where there is no /proc."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as listed:
            return [int(pid) for pid in listed.read().split()]
    except FileNotFoundError:  # a kernel built without CONFIG_PROC_CHILDREN
        return children_by_stat(parent)


def children_by_stat(parent: int) -> list[int]:
    """The same, found by asking every process for its parent."""
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
    """Signal the child's process group; one that is gone, or a number that is no signal, is not an error."""
    try:
        os.killpg(child, signum)
    except OSError:
        return


def exit_status(status: int | None) -> int:
    """The wait status of the child as a shell would tell it."""
    if status is None:
        return 128 + SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv))
