"""Other processes cannot read the environment of the proxy, which holds keys. It ends the orphans that it adopts, reads
what came before time limits expire, and looks names up beside all else."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from codex_proxy.process.own_process import memory_bytes
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no such thing elsewhere")

NOBODY = 65534
SCRIPT = """
import ctypes, os, sys
from codex_proxy.process.own_process import make_undumpable
if os.getuid() == 0:  # root sees everything
    os.setgroups([])
    os.setgid({nobody})
    os.setuid({nobody})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # which a change of the user has switched off
if sys.argv[1] == "undumpable":
    assert make_undumpable()
if os.fork() == 0:
    os.execv("/bin/sh", ["sh", "-c", f"cat /proc/{{os.getppid()}}/environ; cat /proc/self/environ >/dev/null"])
pid, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def neighbour(how: str) -> str:
    """Returns what a child of a process can read of that process's environment."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(nobody=NOBODY), how],
        env={"SECRET": "planted", "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, "the child itself is dumpable: " + done.stderr
    return done.stdout


def test_a_child_reads_the_environment_of_an_ordinary_parent_and_not_that_of_an_undumpable_one() -> None:
    assert "planted" in neighbour("ordinary")
    assert neighbour("undumpable") == ""


SERVING = """
import ctypes
from codex_proxy.cli import main
try:
    main(["serve", "--agent", "fake", "--host", "192.0.2.1"])  # which is refused without a key
except SystemExit:
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_a_server_is_undumpable_before_it_reads_its_settings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVING],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "0\n", done.stderr


GROWING = """
import os, sys
from codex_proxy.process.own_process import return_large_buffers
if sys.argv[1] == "returned":
    assert return_large_buffers()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
large = bytes(30 << 20)
del large
before, small = resident(), []
for _ in range(20):
    large = [bytearray(b"x") * (3 << 20) for _ in range(6)]
    small.append(bytearray(3000))
    del large
print(resident() - before)
"""


@pytest.mark.exhaustive
def test_the_memory_of_large_buffers_is_returned_although_small_ones_stay() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("only glibc keeps it")

    def growth(how: str) -> int:
        argv = [sys.executable, "-c", GROWING, how]
        return int(subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE).stdout)

    assert growth("returned") < 2 << 20 < 8 << 20 < growth("kept")


V1 = "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "5000"}, 5000),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5000),
        ("0::/a/b\n", {"a/memory.max": "6000", "a/b/memory.max": "5000", "a/b/c/memory.max": "1"}, 5000),
        ("0::/\n", {"memory.max": "5000"}, 5000),
        ("0::/../outside\n", {"memory.max": "5000"}, 5000),
        (V1, {"memory/a/b/memory.limit_in_bytes": "5000"}, 5000),
        (V1, {"memory/memory.limit_in_bytes": "5000"}, 5000),
        (
            V1,
            {"memory/a/memory.limit_in_bytes": "5000", "memory/a/b/memory.limit_in_bytes": f"{1 << 63}"},
            5000,
        ),
        (V1, {"memory/memory.limit_in_bytes": f"{1 << 63}"}, None),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("", {}, None),
    ],
)
def test_the_memory_is_what_the_lowest_of_the_control_groups_leaves(
    tmp_path: Path, groups: str, limits: dict[str, str], found: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    assert memory_bytes(tmp_path) == (found or psutil.virtual_memory().total)


ADOPTING = """
import asyncio, os, signal, subprocess, sys
import psutil
from codex_proxy.process.child import Command, spawn
from codex_proxy.process.own_process import KILL_ROUND_SECONDS, adopt_orphans, kill_orphans_of

class Listener:
    def __init__(self): self.pid, self.exited = asyncio.Future(), asyncio.Event()
    def on_output(self, chunk): self.pid.set_result(int(chunk))
    def on_end(self, exit): self.exited.set()

async def until(fact):
    while not fact():
        await asyncio.sleep(0.001)

async def unreaped():
    listener = Listener()
    script = "(setsid sleep 100 & echo $!); while :; do sleep 1; done"
    child = await spawn(Command(("/bin/sh", "-c", script), {"PATH": os.environ["PATH"]}, "/"), listener)
    pid = await listener.pid
    await until(lambda: os.getsid(pid) == pid)
    os.kill(child.pid, signal.SIGSTOP)
    await until(lambda: psutil.Process(child.pid).status() == "stopped")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: psutil.Process(pid).status() == "zombie")
    os.kill(child.pid, signal.SIGKILL)
    await listener.exited.wait()
    await until(lambda: not psutil.pid_exists(pid))

async def executing():
    again = 'exec /bin/sh -c "$0" "$0"'
    for _ in range(200):
        pid = subprocess.Popen(["/bin/sh", "-c", again, again], start_new_session=True).pid
        try:
            kill_orphans_of(asyncio.get_running_loop(), 0, -signal.SIGKILL)
            await until(lambda: not psutil.pid_exists(pid))
        finally:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(2 * KILL_ROUND_SECONDS)  # so that the next is not found by this sweep

async def main():
    assert adopt_orphans()
    async with asyncio.timeout(float(sys.argv[2])):
        await globals()[sys.argv[1]]()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("unreaped", id="that had ended when its warden was killed"),
        # which one of about seventy looks at it finds
        pytest.param("executing", id="whose program is just being loaded", marks=pytest.mark.exhaustive),
    ],
)
def test_an_orphan_with_a_session_of_its_own_does_not_stay_with_the_proxy(what: str) -> None:
    argv = [sys.executable, "-c", ADOPTING, what, str(PATIENCE)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WAITING = """
import asyncio, os, signal, sys, threading, time
from codex_proxy.process.own_process import EventLoop

async def main():
    loop = asyncio.get_running_loop()
    first = loop.create_future()
    loop.add_reader(0, lambda: first.done() or first.set_result("the answer"))
    loop.call_later(1.0, lambda: first.done() or first.set_result("the time limit"))
    stop = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGSTOP))  # when the loop waits
    stop.start()
    print(await first)

with asyncio.Runner(loop_factory=EventLoop) as runner:
    runner.run(main())
"""


async def test_what_came_while_the_process_was_stopped_is_read_before_a_time_limit_expires() -> None:
    argv = [sys.executable, "-c", WAITING]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        await eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        limit = time.monotonic() + 1.0
        assert process.stdin is not None
        process.stdin.write(b"it is there")
        process.stdin.flush()
        await eventually(lambda: time.monotonic() > limit)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=PATIENCE)
    assert out == b"the answer\n"


FULL = """
import asyncio, os, resource, socket
from structlog.testing import capture_logs
from codex_proxy.process.own_process import EventLoop

async def main():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    where = server.sockets[0].getsockname()
    clients = [socket.socket() for _ in range(20)]
    free = os.dup(0)
    os.close(free)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    with capture_logs() as logs:
        for client in clients:
            client.connect(where)
            await asyncio.sleep(0.01)
    print(*(f"{line['event']}: {line['reason']}" for line in logs), sep="\\n")

with asyncio.Runner(loop_factory=EventLoop) as runner:
    runner.run(main())
"""


def test_connections_that_cannot_be_accepted_are_logged_once() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.startswith("connections_not_accepted: too many open files; raise the limit"), (
        done.stderr
    )
    assert done.stdout.count("\n") == 1
    assert not done.stderr


LOOKING_UP = """
import asyncio, socket, threading
from codex_proxy.process.own_process import MAX_LOOKUPS, EventLoop

real, hung = socket.getaddrinfo, threading.Event()

def getaddrinfo(host, *where, **how):
    if host.startswith("hung"):
        hung.wait()
    return real(host, *where, **how)

socket.getaddrinfo = getaddrinfo

async def main():
    loop = asyncio.get_running_loop()
    waiting = [asyncio.create_task(loop.getaddrinfo(f"hung-{n}", 80)) for n in range(MAX_LOOKUPS - 1)]
    await asyncio.sleep(0)
    found = [await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM) for _ in range(3)]
    try:
        await loop.getaddrinfo("no such name", 80)
    except socket.gaierror:
        waiting[0].cancel()
        print(await asyncio.to_thread(lambda: found[-1][0][4]))

with asyncio.Runner(loop_factory=EventLoop) as runner:
    runner.run(main())
"""


def test_names_that_are_looked_up_for_ever_hold_up_no_other_thread_nor_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKING_UP], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.returncode) == ("('127.0.0.1', 80)\n", 0), done.stderr
