"""An agent without a sandbox of its own writes where its turn's sandbox lets it, by each mechanism that works here."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex.program import find_codex
from codex_proxy.agents.confinement import confine as confinement
from codex_proxy.agents.confinement.confine import (
    MECHANISMS,
    Confinement,
    FoundConfinement,
    Mechanism,
    find_confinement,
)
from codex_proxy.process.child import Command, Exit, run_to_end
from tests.waiting import PATIENCE

CODEX = find_codex(None, os.environ.get("PATH", os.defpath))
PATH = os.pathsep.join(
    [
        os.environ.get("PATH", os.defpath),
        *([str(Path(CODEX).parents[1] / "codex-resources")] if CODEX else []),  # Codex brings a bwrap
    ]
)

TRY = """
import os, sys
for path in sys.argv[1:]:
    try:
        open(path, "w").close()
        print(path, "was written", file=sys.stderr)
    except OSError:
        print(path, "was refused", file=sys.stderr)
    try:
        os.makedirs(path + ".folder")
    except OSError:
        pass
"""


async def find_here(
    wanted: Any, folder: Path, path: str = PATH, codex: str | None = "", *, reading: bool = False
) -> FoundConfinement:
    """What is found on this machine; `codex`: another program than the one that is found."""
    codex = find_codex(None, path) if codex == "" else codex
    return await find_confinement(wanted, folder / "state", codex=codex, path=path, reading=reading)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


@pytest.fixture(params=MECHANISMS)
async def works(request: pytest.FixtureRequest, tmp_path: Path) -> Confinement:
    """Each mechanism that works here; the others are skipped with the reason."""
    mechanism: Mechanism = request.param
    found = await find_here(mechanism, tmp_path)
    if found.confinement is None:
        pytest.skip(f"{mechanism} does not work here: {found.why_none()}")
    return found.confinement


async def run_writer(by: Confinement, folder: Path, writable: Sequence[Path], paths: Sequence[Path]) -> Exit:
    """The end of a child that tries to write each path."""
    argv = (sys.executable, "-c", TRY, *map(str, paths))
    command = Command(argv, {"PATH": PATH, "CODEX_HOME": "/nonexistent"}, str(folder))
    exit = await run_to_end(by.wrap(command, map(str, writable)), PATIENCE)
    assert exit is not None
    return exit


async def test_a_child_writes_to_its_folders_and_nowhere_else(works: Confinement, tmp_path: Path) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    link = workspace / "link"
    link.symlink_to(outside)
    allowed = [workspace / "file", Path(works.tmp, "file")]
    refused = [
        outside / "file",
        link / "by_link",
        workspace / ".." / "up",
        Path(works.codex_folder, "home", "x"),
    ]
    refused.append(Path("/tmp", f"codex-proxy-confinement-{os.getpid()}"))
    exit = await run_writer(works, workspace, [workspace], [*allowed, *refused])
    assert exit.stderr_tail.count("was written") == len(allowed), exit.stderr_tail
    assert [path.exists() for path in (*allowed, *refused)] == [True] * len(allowed) + [False] * len(refused)
    assert not any(Path(f"{path}.folder").exists() for path in refused)


async def test_a_child_of_a_read_only_turn_does_not_write_to_its_workspace(
    works: Confinement, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    await run_writer(works, workspace, [], [workspace / "file"])
    assert os.listdir(workspace) == []


async def test_a_confined_child_sees_its_environment_as_it_was_given(
    works: Confinement, tmp_path: Path
) -> None:
    show = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd()]), file=sys.stderr)"
    env = {"PATH": PATH, "CODEX_HOME": "/nonexistent", "OWN": "a b"}
    command = Command((sys.executable, "-c", show), env, str(tmp_path))
    exit = await run_to_end(works.wrap(command, ()), PATIENCE)
    assert exit is not None
    seen, folder = json.loads(exit.stderr_tail.splitlines()[-1])
    assert {name: seen.get(name) for name in (*env, "TMPDIR")} == {**env, "TMPDIR": works.tmp}
    assert folder == str(tmp_path)


async def test_a_mechanism_that_lets_its_child_write_outside_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Confinement, "wrap", lambda _, command, *__: command)
    found = await find_here("auto", tmp_path)
    assert found.confinement is None
    assert found.reasons["landlock"] == confinement.PROBE_WORDS[3]


async def test_a_mechanism_that_lets_its_child_read_outside_is_not_used_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap = Confinement.wrap
    monkeypatch.setattr(Confinement, "wrap", lambda self, command, writable, _: wrap(self, command, writable))
    found = await find_here("auto", tmp_path, reading=True)
    assert found.confinement is None
    assert found.reasons["landlock"] == confinement.PROBE_WORDS[6]


async def test_a_program_that_is_no_sandbox_is_not_used_and_the_next_one_is_tried(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bwrap", "codex"):
        program = folder / name
        program.write_text("#!/bin/sh\necho 'no permission to make a namespace' >&2\nexit 1\n")
        program.chmod(0o700)
    found = await find_here("auto", tmp_path, f"{folder}:{os.defpath}", str(folder / "codex"))
    assert found.reasons["codex"] == found.reasons["bubblewrap"] == "no permission to make a namespace"
    assert found.confinement is None or found.confinement.mechanism == "landlock"


async def find_with_bwrap(script: str, folder: Path) -> FoundConfinement:
    """What is found where `bwrap` is this shell script, and nothing else is on PATH."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return await find_confinement("bubblewrap", folder / "state", codex=None, path=str(folder))


async def test_a_mechanism_whose_probe_is_killed_is_not_used_and_the_signal_is_named(tmp_path: Path) -> None:
    found = await find_with_bwrap("kill -KILL $$", tmp_path)
    assert found.confinement is None
    assert found.reasons["bubblewrap"] == "a command in it was ended by signal 9"


async def test_where_none_is_found_each_says_why(tmp_path: Path) -> None:
    found = await find_here("bubblewrap", tmp_path, str(tmp_path))
    assert found.confinement is None
    assert found.why_none() == "bubblewrap: bwrap is not on PATH"
    assert (await find_here("codex", tmp_path, codex=None)).why_none() == "codex: no Codex was found"


# --- what a child reads ---------------------------------------------------------------------------

READ = """
import json, os, sys
def read(path):
    try:
        return open(path, errors="replace").read(9)
    except OSError as error:
        return None
print("READ", json.dumps([read(path) for path in sys.stdin.read().split()]), file=sys.stderr)
"""


@pytest.fixture(params=MECHANISMS)
async def limits_reading(request: pytest.FixtureRequest, tmp_path: Path) -> Confinement:
    """Each mechanism that can limit reading here; the others are skipped with the reason."""
    found = await find_here(request.param, tmp_path, reading=True)
    if found.confinement is None:
        pytest.skip(f"{request.param} does not work here: {found.why_none()}")
    return found.confinement


def write_file(path: Path, text: str = "planted") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def contents_read(command: Command, paths: Sequence[Path | str]) -> list[object]:
    """What a program read of each path; None for one that it could not read. The program gets the paths in a file,
    since it may read what its arguments name."""
    names = write_file(Path(command.cwd, "paths"), " ".join(map(str, paths)))
    argv = ("/bin/sh", "-c", f'exec "$@" < {shlex.quote(str(names))}', "sh", *command.argv)
    exit = await run_to_end(msgspec.structs.replace(command, argv=argv), PATIENCE)
    assert exit is not None
    [said] = [line for line in exit.stderr_tail.splitlines() if line.startswith("READ ")]
    found: list[object] = json.loads(said.removeprefix("READ "))
    return found


async def test_a_child_that_may_read_its_own_files_reads_nothing_else_of_the_user(
    limits_reading: Confinement, tmp_path: Path
) -> None:
    home, own = tmp_path / "home", tmp_path / "empty"
    refused = [
        write_file(home / ".ssh" / "id_x"),
        write_file(home / "file"),
        write_file(home / ".local" / "share" / "keyrings" / "x"),
        write_file(tmp_path / "work" / "file"),
        write_file(tmp_path / "state" / "store.sqlite"),
        write_file(tmp_path / "elsewhere" / "file"),
    ]
    allowed = [
        write_file(home / ".agent" / "sign-in"),
        write_file(own / "file"),
        write_file(home / "certificates.pem"),
        write_file(home / ".local" / "lib" / "node_modules" / "neighbour" / "index.js"),
        Path("/etc/hosts"),
    ]
    package = home / ".local" / "lib" / "node_modules" / "agent" / "run.py"
    write_file(package, f"#!{sys.executable}\n{READ}").chmod(0o700)
    program = home / ".local" / "bin" / "agent"
    program.parent.mkdir(parents=True)
    program.symlink_to(package)
    (own / "link").symlink_to(home)
    refused += [own / "link" / "file", Path(f"/proc/{os.getpid()}/root{home}/file")]
    refused.append(Path(f"/proc/{os.getpid()}/environ"))
    env = {"PATH": PATH, "HOME": str(home), "NODE_EXTRA_CA_CERTS": str(home / "certificates.pem")}
    command = Command((str(program),), env, str(own))
    paths = [*allowed, *refused]
    assert None not in await contents_read(command, paths), "unconfined it reads all of them"
    found = await contents_read(limits_reading.wrap(command, [str(home / ".agent")], []), paths)
    assert None not in found[: len(allowed)], dict(zip(paths, found, strict=True))
    assert set(found[len(allowed) :]) == {None}, dict(zip(paths, found, strict=True))


async def test_landlock_does_not_hold_back_changes_of_modes_and_times(tmp_path: Path) -> None:
    """SECURITY.md says so: who reads it must be able to rely on it, in both directions."""
    found = await find_here("landlock", tmp_path, reading=True)
    if found.confinement is None:
        pytest.skip(f"Landlock does not work here: {found.why_none()}")
    outside, own = write_file(tmp_path / "outside"), tmp_path / "own"
    own.mkdir()
    argv = (sys.executable, "-c", "import os; f = '../outside'; os.chmod(f, 0o640); os.utime(f, (1, 1))")
    exit = await run_to_end(found.confinement.wrap(Command(argv, {"PATH": PATH}, str(own)), [], []), PATIENCE)
    assert (exit and exit.code, outside.stat().st_mode & 0o777, outside.stat().st_mtime) == (0, 0o640, 1)


async def test_a_mechanism_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    found = await find_with_bwrap("echo Starting. >&2\necho It is forbidden here. >&2\nexit 1", tmp_path)
    assert found.confinement is None
    assert found.reasons == {"bubblewrap": "It is forbidden here."}


# --- behind the whole server ----------------------------------------------------------------------
