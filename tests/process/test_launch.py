"""A command that cannot be started is reported at once, by name, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codex_proxy.process.child import Command, Exit, SpawnError, spawn
from tests.process.children import Recorder, command, open_descriptors, shell
from tests.process.conftest import Start
from tests.waiting import PATIENCE, eventually


async def refusal(what: Command) -> SpawnError:
    before = open_descriptors()
    recorder = Recorder()
    with pytest.raises(SpawnError) as refused:
        await spawn(what, recorder)
    assert open_descriptors() <= before
    assert not recorder.exits, "never started, so never ended"
    return refused.value


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    fault = await refusal(command(str(tmp_path / "codex")))
    assert (
        str(fault)
        == f"cannot start {tmp_path}/codex: there is no such file; install it or give the right path"
    )
    assert not fault.temporary


async def test_a_program_that_is_not_on_the_path_is_named() -> None:
    fault = await refusal(command("no-such-agent"))
    assert str(fault) == "cannot start no-such-agent: it is not on PATH; install it or give its full path"


@pytest.mark.parametrize("name", ["codex", "./codex"])
async def test_a_file_that_is_not_executable_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "codex").write_text("#!/bin/sh\n")
    env = {"PATH": str(tmp_path)}
    fault = await refusal(Command(argv=(name,), env=env, cwd=str(tmp_path)))
    assert fault.program == f"{tmp_path}/codex" or fault.program == f"{tmp_path}/./codex"
    assert "chmod +x" in fault.reason


async def test_a_folder_is_not_a_program(tmp_path: Path) -> None:
    assert "not an executable file" in (await refusal(command(str(tmp_path)))).reason


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    fault = await refusal(command("/bin/sh", cwd=str(tmp_path / "work")))
    assert f"its folder {tmp_path}/work does not exist" in str(fault)


async def test_an_argument_that_no_system_can_pass_is_an_error_of_the_command() -> None:
    assert "in its arguments" in (await refusal(command("/bin/sh", "nul\0byte"))).reason


async def test_too_long_arguments_are_reported_in_the_systems_words() -> None:
    fault = await refusal(command("/bin/sh", "x" * 4_000_000))
    assert fault.reason == "Argument list too long"


async def test_a_program_is_found_on_the_path_of_the_child(start: Start, tmp_path: Path) -> None:
    (tmp_path / "agent").write_text('#!/bin/sh\necho "$0 $1 $(pwd)"\n')
    (tmp_path / "agent").chmod(0o755)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "agent").write_text("not executable")
    env = {"PATH": f"{tmp_path}/other:{tmp_path}:/usr/bin:/bin"}
    _, recorder = await start(Command(argv=("agent", "--flag"), env=env, cwd="/"))
    await recorder.exit()
    assert recorder.data.decode() == f"{tmp_path}/agent --flag /\n"


async def test_a_script_without_its_interpreter_ends_with_127_and_names_the_file(
    start: Start, tmp_path: Path
) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    _, recorder = await start(command(str(script)))
    assert await recorder.exit() == Exit(127, None, f"cannot run {script}: No such file or directory\n")


async def test_a_child_gets_the_given_environment_and_nothing_of_the_proxys(start: Start) -> None:
    env = {"LC_ALL": "C", "CODEX_HOME": "/x"}
    _, recorder = await start(Command(argv=("/usr/bin/env",), env=env, cwd="/"))
    await recorder.exit()
    assert sorted(recorder.data.decode().splitlines()) == ["CODEX_HOME=/x", "CODEX_PROXY_AGENT=1", "LC_ALL=C"]


async def test_a_child_has_no_terminal_and_inherits_no_descriptor_of_the_proxys(start: Start) -> None:
    ours = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        child, recorder = await start(shell("ls /proc/$$/fd; read line"))
        assert await recorder.lines(3) == ["0", "1", "2"]
        assert os.getsid(child.pid) == child.pid
        exit = await child.end(grace=PATIENCE)
    finally:
        os.close(ours)
    assert exit.code == 1
    assert recorder.data == b"0\n1\n2\n"


LIMITED = """
import asyncio, os, resource, sys
from codex_proxy.process.child import Command, SpawnError, spawn

class Listener:
    def on_output(self, chunk): pass
    def on_end(self, exit): print("ended", exit.code)

async def main():
    command = Command(argv=("/bin/sh", "-c", "exit 6"), env=dict(os.environ), cwd="/")
    count = lambda: len(os.listdir("/proc/self/fd"))
    before = count()
    for spare in range(10):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + spare, 4096))
        try:
            child = await spawn(command, Listener())
        except SpawnError as fault:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            print(spare, fault.temporary, count() - before, "ulimit -n" in str(fault))
        else:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            await child.end(grace=60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    child = await spawn(command, Listener())
    await child.end(grace=60)
    print("left", count() - before)

asyncio.run(main())
"""


async def test_reaching_the_limit_of_open_files_is_reported_and_leaks_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stderr == ""
    *refused, ended, left = ran.stdout.splitlines()
    # each of the ten descriptors that a start needs (four pipes, and one for the fork) was the one too many
    assert refused == [f"{spare} True 0 True" for spare in range(10)]
    assert (ended, left) == ("ended 6", "left 0")


async def test_a_full_machine_is_a_temporary_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    fault = await refusal(command("/bin/sh"))
    assert fault.temporary
    assert "ulimit -u" in fault.reason


async def test_a_start_does_not_wait_for_the_child(start: Start) -> None:
    child, recorder = await start(shell("read line; echo $line"))
    child.write(b"sent before it ran\n")
    await eventually(lambda: recorder.data == b"sent before it ran\n")
