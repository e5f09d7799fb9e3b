"""No process is left behind, whichever dies first. A Python process that can be killed plays the proxy."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from codex_proxy.process.launch import WARDEN
from tests.process.children import have_ended, pid_in, shell
from tests.process.conftest import Start
from tests.waiting import PATIENCE, eventually

# A child with a shell in a session of its own, and an orphan: in another session, without the proxy's pipes, and
# ignoring signals. Each writes its pid into a file.
FAMILY = """
trap '' TERM
echo $$ > "$1/child"
setsid sh -c 'echo $$ > "$1/shell"; trap "" TERM; while :; do sleep 100; done' sh "$1" &
( setsid sh -c '
    ( setsid sh -c "trap \\"\\" TERM HUP INT; echo \\$\\$ > \\"$1/orphan\\"; while :; do sleep 100; done" \\
      <&- >&- 2>&- & )
  ' sh "$1" )
"""
STAYS = FAMILY + "echo up; while :; do sleep 100; done"
LEAVES = FAMILY + 'while ! [ -s "$1/orphan" ] || ! [ -s "$1/shell" ]; do sleep 0.01; done; echo up; exit 3'

PROXY = """
import asyncio, sys
from codex_proxy.process.child import Command, spawn

class Listener:
    def on_output(self, chunk): pass
    def on_end(self, exit): pass

async def main():
    command = Command(argv=tuple(sys.argv[1:]), env={"PATH": "/usr/bin:/bin"}, cwd="/", term_grace=0.2)
    child = await spawn(command, Listener())
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def family_in(folder: Path) -> list[int]:
    return [await pid_in(folder / name) for name in ("child", "shell", "orphan")]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_death_of_the_proxy_leaves_no_process(tmp_path: Path, signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROXY, "/bin/sh", "-c", STAYS, "sh", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as proxy:
        assert proxy.stdout is not None
        warden = int(proxy.stdout.readline())
        family = await family_in(tmp_path)
        assert not have_ended([warden])
        assert not any(have_ended([pid]) for pid in family)
        os.kill(proxy.pid, signum)
    await eventually(lambda: have_ended([warden, *family]))


async def test_the_death_of_the_proxy_right_after_the_start_leaves_no_process(tmp_path: Path) -> None:
    # the warden has not even imported what it needs
    lifeline, ours = os.pipe()
    script = "while :; do sleep 100; done"
    command = ["/bin/sh", "-c", script, "sh", str(tmp_path)]
    warden = subprocess.Popen(
        [sys.executable, "-I", "-S", WARDEN, str(lifeline), "100", "--", *command],
        pass_fds=(lifeline,),
        start_new_session=True,
    )
    os.close(lifeline)
    os.close(ours)
    await eventually(lambda: warden.poll() is not None)
    assert not running_with(str(tmp_path))


async def test_an_end_leaves_no_process(start: Start, tmp_path: Path) -> None:
    child, recorder = await start(shell(STAYS, str(tmp_path)))
    await recorder.lines(1)
    family = await family_in(tmp_path)
    await child.end(grace=0)
    assert have_ended(family)


async def test_a_child_that_leaves_by_itself_leaves_no_process(start: Start, tmp_path: Path) -> None:
    _, recorder = await start(shell(LEAVES, str(tmp_path)))
    exit = await recorder.exit()
    assert exit.code == 3
    assert have_ended(await family_in(tmp_path))


async def test_a_child_killed_from_outside_leaves_no_process(start: Start, tmp_path: Path) -> None:
    _, recorder = await start(shell(STAYS, str(tmp_path)))
    await recorder.lines(1)
    family = await family_in(tmp_path)
    os.kill(family[0], signal.SIGKILL)
    assert (await recorder.exit()).signal == signal.SIGKILL
    assert have_ended(family)


async def test_children_that_are_born_during_the_end_are_found_too(start: Start, tmp_path: Path) -> None:
    # a new session every millisecond: some start between listing and killing
    mark = f"100.{os.getpid()}"
    breeder = f"exec </dev/null >/dev/null 2>&1; while :; do (setsid sleep {mark} &); sleep 0.001; done"
    child, recorder = await start(shell(f"echo up; trap '' TERM; {breeder}"))
    await recorder.lines(1)
    await child.end(grace=0.1)
    assert not running_with(mark)


def running_with(argument: str) -> list[str]:
    """Returns the pids of the processes that have this argument."""
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if argument.encode() in _command_line(pid).split(b"\0")]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_signals_that_end_the_proxy_do_not_end_the_warden(
    start: Start, signum: signal.Signals
) -> None:
    child, recorder = await start(shell("while read line; do echo $line; done; exit 3"))
    child.write(b"one\n")
    await recorder.lines(1)
    await eventually(lambda: _blocks(child.pid, signum))
    os.kill(child.pid, signum)
    child.write(b"two\n")
    assert await recorder.lines(2) == ["one", "two"]
    assert (await child.end(grace=PATIENCE)).code == 3


def _blocks(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (signum - 1) & 1)


async def test_the_child_ignores_no_signal_whatever_python_or_the_proxy_ignore(start: Start) -> None:
    # Python ignores SIGPIPE, a script ignores SIGINT and SIGQUIT for what it starts in the background
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ignored}
    try:
        _, recorder = await start(shell("grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    await recorder.exit()
    of_programs = sum(
        1 << (signum - 1) for signum in signal.valid_signals()
    )  # others are the C library's own
    masks = [int(line.split()[1], 16) for line in recorder.data.decode().splitlines()]
    assert [mask & of_programs for mask in masks] == [0, 0]


async def test_the_death_of_the_warden_ends_the_child(start: Start) -> None:
    child, recorder = await start(shell("echo $$; exec sleep 100"))
    (pid,) = await recorder.lines(1)
    os.kill(child.pid, signal.SIGKILL)
    assert (await recorder.exit()).signal == signal.SIGKILL
    await eventually(lambda: have_ended([int(pid)]))


def warden_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("warden", WARDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_both_ways_to_list_the_children_agree(start: Start) -> None:
    warden = warden_module()
    child, recorder = await start(shell("echo $$; exec sleep 100"))
    (pid,) = await recorder.lines(1)
    assert warden.child_pids(child.pid) == warden.child_pids_by_stat(child.pid) == [int(pid)]


def test_a_kernel_that_does_not_list_children_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    warden = warden_module()
    monkeypatch.setattr(warden, "child_pids_by_stat", lambda parent: [parent, 1])
    assert warden.child_pids(2**22 + 1) == [2**22 + 1, 1]


def test_the_warden_does_not_import_what_takes_long() -> None:
    source = "import sys; sys.path.insert(0, sys.argv[1]); import warden; print(*sys.modules)"
    run = [sys.executable, "-I", "-S", "-c", source, str(Path(WARDEN).parent)]
    modules = subprocess.run(run, capture_output=True, text=True).stdout.split()
    assert "warden" in modules
    assert not {"enum", "re", "ctypes", "signal", "site", "subprocess", "typing"} & set(modules)


async def test_a_system_without_a_subreaper_still_ends_the_process_group(tmp_path: Path) -> None:
    source = "import sys, runpy; sys.platform = 'darwin'; path = sys.argv.pop(1); "
    source += "sys.argv[0] = path; runpy.run_path(path, run_name='__main__')"
    lifeline, ours = os.pipe()
    script = 'sleep 100 & echo $! > "$1/pid"; exit 3'
    warden = subprocess.Popen(
        [
            sys.executable,
            "-c",
            source,
            WARDEN,
            str(lifeline),
            "100",
            "--",
            "/bin/sh",
            "-c",
            script,
            "sh",
            tmp_path,
        ],
        pass_fds=(lifeline,),
        start_new_session=True,
    )
    os.close(lifeline)
    try:
        await eventually(lambda: warden.poll() is not None)
    finally:
        os.close(ours)
    assert warden.returncode == 3
    grandchild = await pid_in(tmp_path / "pid")
    await eventually(lambda: have_ended([grandchild]))
