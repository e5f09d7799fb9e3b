"""A child as its owner sees it: its output, how it ends, and that nothing hangs."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from codex_proxy.process import child as child_module
from codex_proxy.process.child import Child, Exit, spawn
from codex_proxy.process.pipes import PipeReader
from codex_proxy.process.spawner import use_spawner
from tests.process.children import Recorder, have_ended, open_descriptors, pid_in, python, shell
from tests.process.conftest import Start
from tests.waiting import PATIENCE, eventually

IGNORES_TERM = "trap '' TERM; echo $$; while :; do sleep 100; done"


@pytest.fixture(params=["pidfd", "thread"])
def exit_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with both ways to watch for an exit: by pidfd, and by a thread as on systems without it."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.sampled(every=4)
@pytest.mark.usefixtures("exit_watch")
@pytest.mark.parametrize(
    ("script", "code", "signum"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("kill -9 $$", None, 9), ("kill -TERM $$", None, 15)],
)
async def test_the_exit_status_is_passed_on(
    start: Start, script: str, code: int | None, signum: int | None
) -> None:
    child, recorder = await start(shell(f"echo out; echo err >&2; {script}"))
    exit = await recorder.exit()
    assert exit == Exit(code, signum, "err\n")
    assert recorder.data == b"out\n"
    assert not child.alive


@pytest.mark.usefixtures("exit_watch")
async def test_a_child_that_ends_on_the_end_of_stdin_is_not_signalled(start: Start) -> None:
    child, recorder = await start(shell("while read line; do echo got $line; done; echo bye; exit 3"))
    child.write(b"one\n")
    child.write(b"two\n")
    assert child.alive
    assert await child.end(grace=PATIENCE) == Exit(3, None, "")
    assert recorder.data == b"got one\ngot two\nbye\n"


async def test_a_child_that_does_not_read_its_input_is_killed_and_its_exit_says_why(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "MAX_UNSENT_BYTES", 1 << 20)
    child, recorder = await start(shell("echo up; exec sleep 100"))
    await recorder.lines(1)
    child.write(b"x" * (1 << 20))
    assert child.alive
    child.write(b"x" * (1 << 20))
    child.write(b"x")
    exit = await recorder.exit()
    assert exit.signal == signal.SIGTERM
    assert exit.stderr_tail == "\nThe process was killed because it did not read its input.\n"
    assert child.unsent == 0


ASKS = """
import sys
while True:
    sys.stdout.write("ask\\n" * 10000)
    sys.stdout.flush()
    if sys.argv[1] == "reads":
        sys.stdin.read(40000)
"""


@pytest.mark.parametrize(("reads", "killed"), [("nothing", True), ("reads", False)])
async def test_a_child_that_asks_and_does_not_read_the_answers_is_killed(
    reads: str, killed: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "MAX_UNHEEDING_BYTES", 1 << 20)
    child, recorder = await start(python(ASKS, reads))
    most = 0

    def answer(chunk: bytes) -> None:
        nonlocal most
        recorder.data += chunk
        child.write(chunk)
        most = max(most, child.unsent)

    monkeypatch.setattr(recorder, "on_output", answer)
    await eventually(lambda: not child.alive or len(recorder.data) > 8 << 20)
    assert child.alive is not killed
    assert most < 4 << 20
    exit = await child.end(grace=0)
    assert ("did not read its input" in exit.stderr_tail) is killed


async def test_a_child_that_does_not_end_on_the_end_of_stdin_gets_a_term(start: Start) -> None:
    child, recorder = await start(
        shell("trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.01; done")
    )
    await recorder.lines(1)
    exit = await child.end(grace=0.1)
    assert (exit.code, exit.signal) == (5, None)
    assert recorder.data == b"up\nasked\n"


async def test_a_child_without_grace_time_is_not_told_that_its_stdin_ends(start: Start) -> None:
    child, recorder = await start(shell("trap 'exit 5' TERM; echo up; read line; echo told; exit 6"))
    await recorder.lines(1)
    assert (await child.end(grace=0)).code == 5
    assert recorder.data == b"up\n"


async def test_a_child_that_ignores_term_and_obeys_the_end_of_its_input_is_not_killed(start: Start) -> None:
    child, recorder = await start(shell("trap '' TERM; echo up; cat; exit 3", term_grace=PATIENCE))
    await recorder.lines(1)
    assert await child.end(grace=0) == Exit(3, None, "")


async def test_a_child_that_ignores_term_is_killed(start: Start) -> None:
    child, recorder = await start(shell(IGNORES_TERM))
    (pid,) = await recorder.lines(1)
    async with asyncio.timeout(PATIENCE):
        assert await child.end(grace=0.05) == Exit(None, signal.SIGKILL, "")
    assert have_ended([int(pid)])


async def test_a_kill_needs_no_await_and_no_second_call(start: Start) -> None:
    child, recorder = await start(shell(IGNORES_TERM))
    (pid,) = await recorder.lines(1)
    child.kill()
    child.kill()
    assert (await recorder.exit()).signal == signal.SIGKILL
    assert have_ended([int(pid)])


def test_a_kill_works_after_the_loop_is_closed() -> None:
    recorder = Recorder()

    async def begin() -> child_module.Child:
        child = await spawn(shell("echo $$; sleep 100"), recorder)
        await recorder.lines(1)
        return child

    child = asyncio.run(begin())
    child.kill()
    assert child._warden.wait() == 128 + signal.SIGTERM
    assert have_ended([int(recorder.data)])


async def test_a_grandchild_that_holds_the_pipe_does_not_hang_the_end(start: Start, tmp_path: Path) -> None:
    _, recorder = await start(shell('sleep 100 & echo $! > "$1"; exit 4', str(tmp_path / "pid")))
    assert await recorder.exit() == Exit(4, None, "")
    assert have_ended([await pid_in(tmp_path / "pid")])


async def test_another_process_that_holds_the_pipe_does_not_hang_the_end(start: Start) -> None:
    child, recorder = await start(shell("echo $$; read line; echo last; exit 4"))
    (pid,) = await recorder.lines(1)
    held = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        child.write(b"go\n")
        assert await recorder.exit() == Exit(4, None, "")
    finally:
        os.close(held)
    assert recorder.data.endswith(b"last\n")


async def test_a_child_that_closes_its_stdout_and_lives_on_is_ended(start: Start) -> None:
    _, recorder = await start(shell("echo $$; exec >&-; trap '' TERM; while :; do sleep 100; done"))
    exit = await recorder.exit()
    assert exit.signal == signal.SIGKILL
    assert have_ended([int(recorder.data)])


async def test_the_last_output_of_a_child_is_received_before_its_end(start: Start) -> None:
    size = 60_000  # fits into the pipe, so that the child is gone before it is read
    _, recorder = await start(python(f"import os; os.write(1, b'x' * {size}); os._exit(0)"))
    await recorder.exit()
    assert len(recorder.data) == size


LAST_WORDS = """
import fcntl, os, sys
to = int(sys.argv[1])
fcntl.fcntl(to, fcntl.F_SETPIPE_SZ, 1024 * 1024)
os.write(to, b"".join(b"%07d\\n" % n for n in range(64_000)))
"""


@pytest.mark.parametrize("drain", [0, 60])
async def test_a_busy_loop_receives_all_that_a_dead_child_left_in_the_pipe(
    start: Start, monkeypatch: pytest.MonkeyPatch, drain: float
) -> None:
    monkeypatch.setattr(child_module, "DRAIN_SECONDS", drain)
    child, recorder = await start(python(LAST_WORDS, "1"))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # blocks the loop until all has happened
    await recorder.exit()
    assert recorder.data == b"".join(b"%07d\n" % n for n in range(64_000))


async def test_a_busy_loop_receives_the_very_end_of_stderr(start: Start) -> None:
    child, recorder = await start(python(LAST_WORDS, "2"))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (await recorder.exit()).stderr_tail.endswith("0063999\n")


async def test_a_single_line_of_ten_megabytes_arrives_complete(start: Start) -> None:
    size = 10 * 1024 * 1024
    _, recorder = await start(python(f"import sys; sys.stdout.write('x' * {size} + '\\n')"))
    await recorder.exit()
    assert recorder.data == b"x" * size + b"\n"


async def test_a_paused_child_waits_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    source = """
import os, sys
with open(sys.argv[1], "w", buffering=1) as progress:
    for n in range(400):
        data = b"%07d\\n" % n * 512
        while data: data = data[os.write(1, data):]
        print(n, file=progress)
"""
    child, recorder = await start(python(source, str(progress)))
    child.pause()
    stuck = 0

    def no_longer_moves() -> bool:
        nonlocal stuck
        before, stuck = stuck, progress.stat().st_size if progress.exists() else 0
        return 0 < before == stuck

    await eventually(no_longer_moves)
    assert recorder.data == b""
    assert len(progress.read_text().splitlines()) < 100, "the pipe is full, the child waits"
    assert child.alive

    child.resume()
    await recorder.exit()
    assert recorder.data == b"".join(b"%07d\n" % n * 512 for n in range(400))


async def test_a_pause_outlives_the_exit_and_the_rest_comes_after_it(start: Start) -> None:
    child, recorder = await start(shell("echo rest; exit 2"))
    child.pause()
    await eventually(lambda: not child.alive)
    await asyncio.sleep(0)
    assert not recorder.data
    assert not recorder.exits
    child.resume()
    assert await recorder.exit() == Exit(2, None, "")
    assert recorder.data == b"rest\n"


async def test_an_end_does_not_wait_for_an_owner_who_has_paused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "DRAIN_SECONDS", 60)
    child, recorder = await start(shell("echo rest; exit 2"))
    child.pause()
    async with asyncio.timeout(PATIENCE):
        assert await child.end(grace=PATIENCE) == Exit(2, None, "")
    assert recorder.data == b"rest\n"


async def test_a_flood_on_stderr_does_not_block_and_its_tail_is_kept(start: Start) -> None:
    source = "import os\nfor n in range(500): os.write(2, b'%07d\\n' % n * 512)\nprint('done')"
    _, recorder = await start(python(source))
    exit = await recorder.exit()
    assert recorder.data == b"done\n"
    assert exit.stderr_tail == "0000498\n" * 512 + "0000499\n" * 512


async def test_a_stderr_that_is_not_utf_8_is_reported_all_the_same(start: Start) -> None:
    _, recorder = await start(python("import os; os.write(2, b'bad \\xff byte')"))
    assert (await recorder.exit()).stderr_tail == "bad \ufffd byte"


async def test_writes_to_a_child_that_reads_nothing_are_counted_and_its_end_is_bounded(start: Start) -> None:
    child, recorder = await start(shell(IGNORES_TERM))
    await recorder.lines(1)
    for _ in range(8):
        child.write(b"x" * 250_000)
    assert 1_500_000 < child.unsent < 2_000_000
    async with asyncio.timeout(PATIENCE):
        await child.end(grace=0.1)
    assert child.unsent == 0


async def test_a_large_write_arrives_complete_and_before_the_end_of_stdin(start: Start) -> None:
    child, recorder = await start(shell("wc -c"))
    child.write(b"x" * 3_000_000)
    child.write(b"y")
    assert child.unsent > 0
    child.close_stdin()
    child.write(b"too late")
    await recorder.exit()
    assert recorder.data.strip() == b"3000001"


async def test_a_write_to_a_child_that_ended_or_does_not_read_is_dropped(start: Start) -> None:
    child, recorder = await start(shell("exec <&-; echo deaf; sleep 100"))
    await recorder.lines(1)
    child.write(b"x" * 1_000_000)
    await eventually(lambda: child.unsent == 0)
    await child.end(grace=0)
    child.write(b"x")
    child.close_stdin()
    child.signal(signal.SIGTERM)
    child.pause()
    child.resume()
    child.kill()
    assert child.unsent == 0


async def test_a_signal_reaches_the_whole_group_of_the_child(start: Start) -> None:
    # the outer shell runs its trap when the inner one has ended, which only the signal can bring about
    inner = "trap 'echo inner; exit' INT; echo up; while :; do sleep 0.01; done"
    child, recorder = await start(shell("trap 'echo outer' INT; sh -c \"$1\"; read line", inner))
    await recorder.lines(1)
    child.signal(signal.SIGINT)
    assert await recorder.lines(3) == ["up", "inner", "outer"]
    child.signal(signal.SIGKILL)
    assert await recorder.exit() == Exit(None, signal.SIGKILL, "")


async def test_a_cancelled_end_goes_on(start: Start) -> None:
    child, recorder = await start(shell(IGNORES_TERM))
    await recorder.lines(1)
    ending = asyncio.create_task(child.end(grace=0.05))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert (await recorder.exit()).signal == signal.SIGKILL


async def test_ends_at_the_same_time_agree_and_the_shortest_grace_holds(start: Start) -> None:
    child, recorder = await start(shell(IGNORES_TERM))
    await recorder.lines(1)
    async with asyncio.timeout(PATIENCE):
        exits = await asyncio.gather(*(child.end(grace=grace) for grace in (60, 0.05, 30)))
    assert exits == [*recorder.exits] * 3
    assert await child.end() == exits[0]


async def test_a_warden_that_hangs_is_killed_and_the_child_ends_with_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "WARDEN_SECONDS", 0.2)
    child, recorder = await start(shell("echo $$; exec sleep 100"))
    (pid,) = await recorder.lines(1)
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        assert (await child.end(grace=0)).signal == signal.SIGKILL
    await eventually(lambda: have_ended([int(pid)]))


async def test_a_child_that_cannot_be_killed_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "WARDEN_SECONDS", 0.1)
    monkeypatch.setattr(child_module, "ABANDON_SECONDS", 0.1)
    child, recorder = await start(shell("echo up; sleep 100"))
    await recorder.lines(1)
    with monkeypatch.context() as stuck:
        stuck.setattr(child._warden, "kill", lambda: None)
        os.kill(child.pid, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE):
            assert await child.end(grace=0) == Exit(None, None, "")
        assert child.alive
    os.kill(child.pid, signal.SIGCONT)  # unstuck after all: it is waited for, and not reported again
    await eventually(lambda: not child.alive)


async def test_a_listener_that_raises_does_not_leave_the_child_running() -> None:
    class Faulty(Recorder):
        def on_end(self, exit: Exit) -> None:
            super().on_end(exit)
            raise RuntimeError("the owner's own fault")

    before = open_descriptors()
    with capture_logs() as logged:
        child = await spawn(shell("exit 0"), Faulty())
        assert await child.end(grace=PATIENCE) == Exit(0, None, "")
        await eventually(lambda: len(logged) == 1 and open_descriptors() <= before)


async def test_the_end_is_reported_also_if_the_last_words_cannot_be_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PipeReader, size: int) -> None:
        raise ZeroDivisionError

    child, recorder = await start(shell("read line; exit 4"))
    monkeypatch.setattr(PipeReader, "read_available", broken)
    child.close_stdin()
    assert (await recorder.exit()).code == 4
    assert not child.alive


@pytest.mark.parametrize(("name", "call"), [("PipeReader", 1), ("PipeReader", 2), ("call_at_exit", 1)])
async def test_a_child_that_cannot_be_taken_over_is_ended_and_others_can_start(
    name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of it: no process, no descriptor."""
    spawner, recorder = use_spawner(), Recorder()
    await (await spawn(shell("exit 0"), Recorder())).end(grace=PATIENCE)
    whole, calls = getattr(child_module, name), 0

    def broken(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise ZeroDivisionError
        return whole(*arguments)

    before, children = open_descriptors(), set(psutil.Process().children())
    for number in range(2 * (os.cpu_count() or 1)):  # more than may start at once
        command, calls = shell(f"echo $$ > {tmp_path}/{number}; exec sleep 600"), 0
        with monkeypatch.context() as patch:
            patch.setattr(child_module, name, broken)
            with pytest.raises(ZeroDivisionError):
                await spawn(command, Recorder())
    await spawn(shell("exit 0"), recorder)
    await recorder.exit()
    await eventually(lambda: have_ended([int(file.read_text() or "0") for file in tmp_path.iterdir()]))
    await eventually(lambda: set(psutil.Process().children()) <= children and open_descriptors() <= before)
    await spawner.close()


@pytest.mark.parametrize("broken", ["kill_orphans_of", "_finish_when_drained", "_make_exit"])
async def test_the_end_is_reported_whatever_breaks_at_the_exit(
    start: Start, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault comes once, in the first call behind the exit."""
    child, recorder = await start(shell("read line; exit 4"))
    owner: Any = child_module if broken == "kill_orphans_of" else Child
    whole = getattr(owner, broken)

    def breaks_once(*arguments: Any) -> Any:
        if not faults:
            faults.append(broken)
            raise ZeroDivisionError
        return whole(*arguments)

    faults: list[str] = []
    before = open_descriptors()
    child.close_stdin()
    monkeypatch.setattr(owner, broken, breaks_once)
    await recorder.exit()
    assert faults
    await eventually(lambda: open_descriptors() <= before - 4)
