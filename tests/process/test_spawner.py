"""The spawner may die, hang or be forbidden: children still start, and a start that it hangs says so."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import structlog

from codex_proxy.process import spawner as module
from codex_proxy.process.child import Child, Exit, SpawnError, spawn
from codex_proxy.process.launch import WARDEN
from codex_proxy.process.spawner import Spawner, call_at_exit, use_spawner, why_no_spawner
from codex_proxy.process.warden import PR_SET_CHILD_SUBREAPER
from tests.process.children import Recorder, command, have_ended, open_descriptors, pid_in, shell
from tests.waiting import PATIENCE, eventually

AT_REST = 4
"""The descriptors of a spawner that starts nothing: the standard ones, and its socket."""
ECHO = shell("while read line; do echo $line; done; exit 3")


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    """A spawner in use; after the test this process has no child and no descriptor more than before."""
    before, children = open_descriptors(), set(psutil.Process().children())
    using = use_spawner()
    yield using
    await using.close()
    await eventually(lambda: set(psutil.Process().children()) <= children)
    await eventually(lambda: open_descriptors() <= before)


def pid_of(spawner: Spawner) -> int:
    assert spawner.process is not None
    return spawner.process.pid


async def talks(child: Child, recorder: Recorder) -> None:
    """The child answers a line, and ends with its own exit code."""
    count = recorder.data.count(b"\n")
    child.write(b"hello\n")
    assert (await recorder.lines(count + 1))[-1] == "hello"


async def spawn_echo() -> tuple[Child, Recorder]:
    recorder = Recorder()
    return await spawn(ECHO, recorder), recorder


async def test_the_children_of_a_server_come_from_one_process_and_are_its_own(spawner: Spawner) -> None:
    one, two = await spawn_echo(), await spawn_echo()
    forked = pid_of(spawner)
    for child, recorder in (one, two):
        assert psutil.Process(child.pid).ppid() == os.getpid()
        assert psutil.Process(child.pid).cmdline() == psutil.Process(forked).cmdline()
        await talks(child, recorder)
        assert await child.end(grace=PATIENCE) == Exit(3, None, "")


async def test_the_death_of_the_spawner_touches_no_child_and_a_new_one_serves(spawner: Spawner) -> None:
    child, recorder = await spawn_echo()
    first = pid_of(spawner)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: have_ended([first]))
    await talks(child, recorder)
    later, its_recorder = await spawn_echo()
    assert pid_of(spawner) != first
    await talks(later, its_recorder)
    for each in (child, later):
        assert (await each.end(grace=PATIENCE)).code == 3


async def test_a_spawner_that_is_closed_leaves_no_socket_even_if_its_end_was_not_read() -> None:
    spawner = use_spawner()
    child, _ = await spawn_echo()
    await child.end(grace=PATIENCE)
    process = spawner.process
    assert process is not None
    asyncio.get_running_loop().remove_reader(process._socket)  # as if the loop had not come to it
    await spawner.close()
    assert process._socket.fileno() < 0


async def test_a_start_that_waits_when_the_spawner_dies_happens_without_it(spawner: Spawner) -> None:
    child, _ = await spawn_echo()
    recorder = Recorder()
    os.kill(pid_of(spawner), signal.SIGSTOP)
    start = asyncio.create_task(spawn(ECHO, recorder))
    await asyncio.sleep(0)
    os.kill(pid_of(spawner), signal.SIGKILL)
    later = await start
    await talks(later, recorder)
    for each in (child, later):
        assert (await each.end(grace=PATIENCE)).code == 3


async def test_a_start_that_a_stopped_spawner_does_not_answer_times_out_and_the_next_has_a_new_one(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, recorder = await spawn_echo()
    first = pid_of(spawner)
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)
    with pytest.raises(
        SpawnError, match="/bin/sh: the process that starts children did not answer"
    ) as refused:
        await spawn(ECHO, Recorder())
    assert refused.value.temporary
    monkeypatch.setattr(module, "ANSWER_SECONDS", PATIENCE)
    later, its_recorder = await spawn_echo()
    await eventually(lambda: have_ended([first]))
    for each, its in ((child, recorder), (later, its_recorder)):
        await talks(each, its)
        await each.end(grace=PATIENCE)


@pytest.fixture
def one_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STARTS_AT_ONCE", 1)
    monkeypatch.setattr(module, "START_SECONDS", 2 * PATIENCE)


async def test_beyond_the_limit_a_child_starts_when_another_has_printed_something(
    one_start_at_once: None, spawner: Spawner
) -> None:
    first, recorder = await spawn_echo()
    descriptors = open_descriptors()
    start = asyncio.create_task(spawn_echo())
    await asyncio.sleep(0)
    assert open_descriptors() == descriptors  # it has no pipes yet
    await talks(first, recorder)
    second, _ = await start
    await talks(first, recorder)  # what comes after the first output arrives, too
    for child in (first, second):
        await child.end(grace=PATIENCE)


async def test_a_child_that_prints_nothing_delays_the_next_start_for_a_short_time_only(
    one_start_at_once: None, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    for child, _ in [await spawn_echo() for _ in range(3)]:
        await child.end(grace=PATIENCE)


async def test_starts_that_fail_or_are_cancelled_let_the_next_child_start(
    one_start_at_once: None, spawner: Spawner
) -> None:
    with pytest.raises(SpawnError, match="no such file"):
        await spawn(command("/nowhere/agent"), Recorder())
    first, recorder = await spawn_echo()
    start = asyncio.create_task(spawn_echo())
    await asyncio.sleep(0)
    start.cancel()
    await talks(first, recorder)
    second, _ = await spawn_echo()
    for child in (first, second):
        await child.end(grace=PATIENCE)


async def test_a_start_that_is_cancelled_leaves_no_process(spawner: Spawner, tmp_path: Path) -> None:
    child, _ = await spawn_echo()
    os.kill(pid_of(spawner), signal.SIGSTOP)
    script = 'echo $$ > "$1"; while :; do sleep 100; done'
    start = asyncio.create_task(spawn(shell(script, str(tmp_path / "pid"), term_grace=0.05), Recorder()))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    os.kill(pid_of(spawner), signal.SIGCONT)
    await child.end(grace=0)
    # that no process is left is checked by the fixture; the script may have been killed before it had begun
    if (tmp_path / "pid").exists():
        pid = await pid_in(tmp_path / "pid")
        await eventually(lambda: have_ended([pid]))


async def test_a_spawner_is_closed_when_the_last_fork_has_replied_even_if_it_has_ended_itself(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_warden(monkeypatch, tmp_path, "        setsid()\n", "        setsid()\n        sleep(0.2)\n")
    child, _ = await spawn_echo()
    start = asyncio.create_task(spawn(ECHO, Recorder()))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await child.end(grace=0)
    # that the process which nobody waits for is not left is checked by the fixture


async def test_a_spawner_without_descriptors_is_a_temporary_error(spawner: Spawner) -> None:
    child, _ = await spawn_echo()
    spawners = psutil.Process(pid_of(spawner))
    await eventually(lambda: spawners.num_fds() <= AT_REST)  # it closes those of the first child
    soft, hard = resource.prlimit(pid_of(spawner), resource.RLIMIT_NOFILE)
    resource.prlimit(pid_of(spawner), resource.RLIMIT_NOFILE, (AT_REST + 2, hard))
    with pytest.raises(SpawnError, match="ulimit -n") as refused:
        await spawn(ECHO, Recorder())
    assert refused.value.temporary
    resource.prlimit(pid_of(spawner), resource.RLIMIT_NOFILE, (soft, hard))
    later, recorder = await spawn_echo()
    await talks(later, recorder)
    for each in (child, later):
        await each.end(grace=PATIENCE)


@pytest.mark.parametrize(
    ("number", "temporary"), [(errno.EAGAIN, True), (errno.ENOMEM, True), (errno.EIO, False)]
)
async def test_a_fork_that_fails_is_the_systems_error(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, temporary: bool
) -> None:
    replace_warden(monkeypatch, tmp_path, "pid = system_call(", f"_ctypes.set_errno({number}); pid = -1 or (")
    with pytest.raises(SpawnError) as refused:
        await spawn(ECHO, Recorder())
    assert refused.value.temporary is temporary


def replace_warden(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> None:
    """Lets the spawner be a copy of its program with another text in one place."""
    source = Path(WARDEN).read_text("utf-8")
    assert source.count(old) == 1
    (folder / "warden.py").write_text(source.replace(old, new))
    monkeypatch.setattr(module, "WARDEN", str(folder / "warden.py"))


@pytest.mark.parametrize(
    ("old", "new"),
    [("-1)  # the kernel", "-1) and -1  # the kernel"), ("    import _socket\n", "    return 1\n")],
)
async def test_where_there_can_be_no_spawner_children_start_without_one(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str
) -> None:
    replace_warden(monkeypatch, tmp_path, old, new)
    with structlog.testing.capture_logs() as lines:
        child, recorder = await spawn_echo()
    assert next(line["event"] for line in lines) in ("spawner_not_allowed", "spawner_ended")
    await talks(child, recorder)
    assert (await child.end(grace=PATIENCE)).code == 3
    assert await why_no_spawner() != ""


async def test_on_another_system_children_start_without_a_spawner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "memfd_create")
    using = use_spawner()
    child, recorder = await spawn_echo()
    await talks(child, recorder)
    assert (await child.end(grace=PATIENCE)).code == 3
    assert using.process is None
    assert await why_no_spawner() == "only Linux has what it needs"
    await using.close()


async def test_a_machine_with_a_spawner_says_so(spawner: Spawner) -> None:
    assert await why_no_spawner() == ""


@pytest.mark.parametrize("way", ["spawner", "direct"])
async def test_text_that_no_system_can_pass_is_the_same_error_with_and_without_the_spawner(way: str) -> None:
    using = use_spawner() if way == "spawner" else None
    long = command("/bin/sh", "-c", ":", "x" * (128 << 10))
    large = command("/bin/sh", "-c", ":")
    large.env.update({f"NAME{number}": "x" * (100 << 10) for number in range(40)})
    for what, reason in ((long, "Argument list too long"), (large, "Argument list too long")):
        with pytest.raises(SpawnError) as refused:
            await spawn(what, Recorder())
        assert refused.value.reason == reason
    with pytest.raises(SpawnError, match="in its arguments or environment"):
        await spawn(command("/bin/sh", "nul\0byte"), Recorder())
    if using is not None:
        await using.close()


async def test_a_large_environment_reaches_the_child_whole(spawner: Spawner) -> None:
    count = command("/bin/sh", "-c", "env | wc -c; echo ${#VALUE}")
    count.env.update({f"NAME{number}": "x" * (60 << 10) for number in range(28)}, VALUE="é" * 1000)
    recorder = Recorder()
    await spawn(count, recorder)
    await recorder.exit()
    size, length = recorder.data.split()
    assert int(size) > 28 * (60 << 10)
    assert int(length) in (1000, 2000)  # characters or bytes, as the shell counts


async def test_two_servers_share_a_spawner_until_both_have_stopped(spawner: Spawner) -> None:
    other = use_spawner()
    assert other is spawner
    child, _ = await spawn_echo()
    pid = pid_of(spawner)
    await other.close()
    assert not have_ended([pid])
    await child.end(grace=0)


KILLED = """
import asyncio, sys
from codex_proxy.process.child import Command, spawn
from codex_proxy.process.spawner import use_spawner

class Listener:
    def on_output(self, chunk): pass
    def on_end(self, exit): pass

async def main():
    spawner = use_spawner()
    command = Command(("/bin/sh", "-c", "while :; do sleep 100; done"), {"PATH": "/usr/bin:/bin"}, "/")
    child = await spawn(command, Listener())
    print(child.pid, spawner.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_death_of_the_proxy_ends_its_spawner() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        pids = [int(pid) for pid in proxy.stdout.readline().split()]
        proxy.kill()
    await eventually(lambda: have_ended(pids))


@pytest.mark.exhaustive
async def test_kills_of_spawners_wardens_and_children_at_any_moment_leave_nothing(spawner: Spawner) -> None:
    chance = random.Random(26)
    loop = asyncio.get_running_loop()
    outcomes = {"ended": 0, "refused": 0, "failed": 0}

    async def one() -> None:
        recorder = Recorder()
        try:
            child = await spawn(shell("sleep 100 & echo $$; sleep 100", term_grace=0.05), recorder)
        except SpawnError as error:
            outcomes["refused" if error.temporary else "failed"] += 1
            return
        if chance.random() < 0.5:
            os.kill(child.pid, signal.SIGKILL)
        elif chance.random() < 0.5:
            [pid] = await recorder.lines(1)
            os.kill(int(pid), signal.SIGKILL)
        await child.end(grace=0)
        outcomes["ended"] += 1

    def kill_spawner() -> None:
        if spawner.process is not None:
            os.kill(spawner.process.pid, signal.SIGKILL)

    for _ in range(60):
        starts = [asyncio.create_task(one()) for _ in range(4)]
        loop.call_later(chance.random() * 0.03, kill_spawner)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*starts)
    assert outcomes["ended"] > 60
    assert outcomes["failed"] == 0


SERVES = """
import asyncio, sys
from codex_proxy.process.child import Command, SpawnError, spawn
from codex_proxy.process.own_process import adopt_orphans
from codex_proxy.process.spawner import use_spawner

class Listener:
    def __init__(self): self.ended_ = asyncio.Event()
    def on_output(self, chunk): print("child", chunk.decode(), end="", flush=True)
    def on_end(self, exit): self.ended_.set()

async def serve(spawner):
    script = "sleep 100 & (setsid sleep 100 &); echo $$; sleep 0.1"
    command = Command(("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin"}, "/", term_grace=0.05)
    while True:
        listener = Listener()
        try:
            child = await spawn(command, listener)
        except SpawnError:
            continue
        print("warden", child.pid, flush=True)
        if spawner.process is not None:
            print("spawner", spawner.process.pid, flush=True)
        await listener.ended_.wait()

async def main():
    adopt_orphans()
    spawner = use_spawner()
    await asyncio.gather(*(serve(spawner) for _ in range(4)))

asyncio.run(main())
"""


@pytest.mark.exhaustive
async def test_a_thousand_kills_of_servers_spawners_wardens_and_children_leave_nothing() -> None:
    chance = random.Random(26)
    kills = dict.fromkeys(("server", "spawner", "warden", "child"), 0)
    before = set(psutil.Process().children(recursive=True))
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0  # whatever is left becomes our child
    try:
        while sum(kills.values()) < 1000:
            with subprocess.Popen(
                [sys.executable, "-c", SERVES], stdout=subprocess.PIPE, text=True
            ) as server:
                assert server.stdout is not None
                killed: list[int] = []
                for _ in range(9):
                    victim = chance.choice(("spawner", "warden", "child"))
                    kind, pid = next(words for line in server.stdout if (words := line.split())[0] == victim)
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                        kills[kind] += 1
                        killed.append(int(pid))
                # What a killed warden leaves becomes the server's, which kills it. Both at once leave nobody to do it.
                await eventually(partial(have_ended, killed))
                await eventually(partial(_has_no_orphans, server.pid))
                server.kill()
                server.stdout.read()
                kills["server"] += 1
        await eventually(lambda: _new_processes(before) == [])
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert min(kills.values()) >= 50, kills


def _has_no_orphans(server: int) -> bool:
    """Whether the server has killed the processes that it has inherited from wardens that were killed."""
    with suppress(psutil.NoSuchProcess):
        return not any(each.name() in ("sh", "setsid", "sleep") for each in psutil.Process(server).children())
    return False


def _new_processes(before: set[psutil.Process]) -> list[psutil.Process]:
    """The processes that run below this one, but for those that did before."""
    left = []
    for process in set(psutil.Process().children(recursive=True)) - before:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        if not have_ended([process.pid]):
            left.append(process)
    return left


async def test_an_exit_is_seen_where_the_system_has_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    process = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    call_at_exit(loop, process, exited.set_result)
    async with asyncio.timeout(PATIENCE):
        assert await exited == 7
