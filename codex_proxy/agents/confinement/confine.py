"""Confines an agent's process: it can write only to listed folders and, if wanted, read only what is listed and
what a program must read to run. The network is free; sockets of the user's session (`/run/user`) are hidden if
possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.agents.codex.process_config import outermost_paths, toml_string
from codex_proxy.core.safety import is_inside
from codex_proxy.files.private import create, make_folder, temporary_folder
from codex_proxy.process.child import Command, Exit, run_to_end
from codex_proxy.process.launch import find_program

SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/proc",
    "/sys/devices/system", "/sys/fs/cgroup",
    # where /etc/resolv.conf leads to
    "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf",
    "/var/lib/ca-certificates", "/nix/store", "/run/current-system", "/snap", "/home/linuxbrew/.linuxbrew",
)  # fmt: skip
"""Folders with nothing of a user. /proc reveals nothing of other processes to a confined one."""
VARIABLES_NOT_READ: Final = frozenset({"HOME", "PWD", "OLDPWD", "PATH", "TMPDIR", "SHELL"})
"""Variables that name folders to search; a program does not have to read all that is there."""
PROVIDER_SIGN_INS: Final[Mapping[str, str]] = {
    "AWS_PROFILE": ".aws",
    "CLAUDE_CODE_USE_BEDROCK": ".aws",
    "CLAUDE_CODE_USE_VERTEX": ".config/gcloud",
    "CLAUDE_CODE_USE_FOUNDRY": ".azure",
    "GOOGLE_GENAI_USE_VERTEXAI": ".config/gcloud",
}
"""The folder in the home with the sign-in of the provider, by the variable that selects it."""
SCRIPTS: Final = (".js", ".mjs", ".cjs", ".ts", ".py")
PACKAGES: Final = "node_modules"
MAX_SHEBANG: Final = 256


def read_list(command: Command) -> tuple[str, ...]:
    """Returns the paths, of which some may not exist. Raises `SpawnError`."""
    home = command.env.get("HOME", "")
    named = [value for name, value in command.env.items() if name not in VARIABLES_NOT_READ]
    named += [
        os.path.join(home, PROVIDER_SIGN_INS[name]) for name in command.env if name in PROVIDER_SIGN_INS
    ]
    return tuple(
        dict.fromkeys(
            (
                *SYSTEM,
                os.path.realpath("/etc/resolv.conf"),
                *_paths_of_program(find_program(command), home, command.env.get("PATH", os.defpath)),
                *(
                    path
                    for each in command.argv[1:]
                    if _is_path(each, home)
                    for path in _argument(each, home)
                ),
                *(each for each in named if _is_path(each, home)),
            )
        )
    )


def _is_path(text: str, home: str) -> bool:
    return os.path.isabs(text) and len(text) < 4096 and os.path.exists(text) and not _contains(text, home)


def _contains(folder: str, path: str) -> bool:
    return is_inside(os.path.realpath(path) if path else "", os.path.realpath(folder))


def _argument(path: str, home: str) -> Iterator[str]:
    yield path
    if path.endswith(SCRIPTS) and os.path.isfile(path):  # which an interpreter runs
        yield from _package(path, home)


def _paths_of_program(program: str, home: str, search_path: str) -> Iterator[str]:
    for path in dict.fromkeys((program, os.path.realpath(program))):
        yield path
        yield from _package(path, home)
    interpreter = _interpreter(program, search_path)
    if interpreter:
        yield from _paths_of_program(interpreter, home, search_path)


def _package(path: str, home: str) -> Iterator[str]:
    """Yields what the program loads: packages installed together (npm), the installation above `bin`, else its folder;
    of a folder with the user's own files only libraries.
    """
    folder = os.path.dirname(path)
    parts = path.split("/")
    if PACKAGES in parts:
        yield "/".join(parts[: parts.index(PACKAGES) + 1])
        return
    if os.path.basename(folder) == "bin":
        folder = os.path.dirname(folder)
    shared = _contains(folder, home) or folder == os.path.join(home, ".local")
    yield from (os.path.join(folder, name) for name in ("lib", "lib64")) if shared else (folder,)


def _interpreter(program: str, search_path: str) -> str:
    try:
        with open(program, "rb") as file:
            line = file.readline(MAX_SHEBANG)
    except OSError:  # it may be executed but not read: then it is no script
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = os.fsdecode(line[2:]).split()
    if words and os.path.basename(words[0]) == "env":  # `env NAME` and `env -S NAME ARGUMENT...`
        words = [shutil.which(word, path=search_path) or "" for word in words[1:] if word[0] != "-"]
    return words[0] if words and os.path.isfile(words[0]) else ""


Mechanism: TypeAlias = Literal["codex", "bubblewrap", "landlock"]
Wanted: TypeAlias = Literal["auto", "codex", "bubblewrap", "landlock", "none"]
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)
"""Mechanisms for programs that run commands: the strictest first."""
CHEAPEST_FIRST: Final = tuple(reversed(MECHANISMS))
"""Mechanisms for programs that run no commands: Landlock costs a start 5 ms, and leaves no process between."""
TITLES: Final[Mapping[Mechanism, str]] = {
    "codex": "Codex's sandbox (codex sandbox)",
    "bubblewrap": "bubblewrap",
    "landlock": "Landlock",
}

LANDLOCK: Final = str(Path(__file__).parents[2] / "process" / "landlock.py")
PROBE_SECONDS: Final = 20.0
"""Maximum seconds for a probe; 0.1 to 0.3 are usual."""
CODEX_FOLDERS: Final = ("home", "tmp")
SESSION_SOCKETS: Final = "/run/user"
"""The folder with sockets (the session bus) by which a program could make others act for it."""
MAX_REASON: Final = 160

PROBE: Final = """
import os, socket, sys
port, *read = sys.argv[1:]
inside, outside = os.getcwd(), os.path.join(os.path.dirname(os.getcwd()), "outside")
def works(make):
    try:
        make()
    except OSError:
        return False
    return True
elsewhere = [
    lambda: open(os.path.join(outside, "new"), "w").close(),
    lambda: open(os.path.join(outside, "kept"), "w").close(),
    lambda: os.truncate(os.path.join(outside, "kept"), 0),
    lambda: os.rename(os.path.join(outside, "kept"), os.path.join(inside, "taken")),
    lambda: os.unlink(os.path.join(outside, "kept")),
]
if any([works(each) for each in elsewhere]):
    sys.exit(3)
if not works(lambda: open(os.path.join(inside, "new"), "w").close()):
    sys.exit(4)
if read and any([works(each) for each in [lambda: open(os.path.join(outside, "kept")), lambda: os.listdir(outside)]]):
    sys.exit(6)
if not works(lambda: socket.create_connection(("127.0.0.1", int(port)), 5).close()):
    sys.exit(5)
"""
PROBE_WORDS: Final[Mapping[int, str]] = {
    3: "a command in it could write outside of its folder",
    4: "a command in it could not write to its folder",
    5: "a command in it had no network access",
    6: "a command in it could read outside of its folder",
}


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: Mechanism
    codex_folder: str
    """The folder of `codex sandbox` itself; confined programs cannot write to it."""
    tmp: str
    """The folder that confined programs use in place of `/tmp`."""
    program: str = ""
    sees_others: bool = False
    """Whether confined programs see processes outside: there is no process namespace."""

    @property
    def title(self) -> str:
        return TITLES[self.mechanism]

    def clear_tmp(self) -> None:
        for entry in os.scandir(self.tmp):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def wrap(
        self, command: Command, writable: Iterable[str], readable: Iterable[str] | None = None
    ) -> Command:
        """Returns a command that runs `command` confined: it can write only to existing paths in `writable` and its
        temporary folder. With `readable` it can read nothing but these, the paths in `readable`, its working folder
        and its `read_list`. Raises `SpawnError`.
        """
        program = find_program(command)
        written = _existing((*writable, self.tmp), by_name=readable is not None)
        read = None
        if readable is not None:
            needed = (*read_list(command), *readable, command.cwd, *self._needs)
            read = outermost_paths(_existing(needed, by_name=True))
        inner = (program, *command.argv[1:])
        env = {**command.env, "TMPDIR": self.tmp}
        match self.mechanism:
            case "codex":
                argv = self._codex(inner, written, read, env)
                home, tmp = (os.path.join(self.codex_folder, name) for name in CODEX_FOLDERS)
                env = {**env, "CODEX_HOME": home, "TMPDIR": tmp}
            case "bubblewrap":
                argv = self._bubblewrap(inner, written, read, command.cwd)
            case "landlock":
                listed = () if read is None else ("--read", *read)
                argv = (sys.executable, "-I", "-S", LANDLOCK, *written, *listed, "--", *inner)
        return msgspec.structs.replace(command, argv=argv, env=env)

    @property
    def _needs(self) -> tuple[str, ...]:
        package = os.path.dirname(os.path.dirname(os.path.realpath(self.program)))
        return (package,) if self.mechanism == "codex" else ()

    def _codex(
        self,
        inner: Sequence[str],
        writable: Sequence[str],
        readable: Sequence[str] | None,
        env: Mapping[str, str],
    ) -> tuple[str, ...]:
        """Returns arguments for `codex sandbox`, which gets its own CODEX_HOME and TMPDIR and changes PATH; for `inner`
        they are restored. The profile has a random name: Codex merges it with one of the same name in other files.
        """
        name = f"confined_{secrets.token_hex(8)}"
        # Codex takes whatever may be written for a folder; a single file stays readable.
        access = dict.fromkeys(readable or (), "read")
        access |= {path: "write" if os.path.isdir(path) else "read" for path in writable}
        extends = ""
        if readable is not None:
            access[":minimal"] = "read"
        else:
            extends = 'extends=":read-only",'
            if os.path.isdir(SESSION_SOCKETS):
                access[SESSION_SOCKETS] = "deny"
        paths = ",".join(f"{toml_string(path)}={toml_string(what)}" for path, what in access.items())
        profile = f"{{{extends}filesystem={{{paths}}},network={{enabled=true}}}}"
        home = env.get("CODEX_HOME")
        restored = ("-u", "CODEX_HOME") if home is None else (f"CODEX_HOME={home}",)
        return (
            *(self.program, "sandbox", "-c", f"permissions.{name}={profile}"),
            *("-c", f"default_permissions={toml_string(name)}", "-P", name, "--"),
            *("/usr/bin/env", *restored, f"PATH={env.get('PATH', os.defpath)}", f"TMPDIR={self.tmp}", *inner),
        )

    def _bubblewrap(
        self, inner: Sequence[str], writable: Sequence[str], readable: Sequence[str] | None, cwd: str
    ) -> tuple[str, ...]:
        """Returns arguments for bubblewrap. User namespace and dropped capabilities keep root from mounting the folders
        writable again.
        """
        devices = ("--dev", "/dev", *(() if self.sees_others else ("--unshare-pid", "--proc", "/proc")))
        hidden = ("--tmpfs", SESSION_SOCKETS) if os.path.isdir(SESSION_SOCKETS) else ()
        binds = dict.fromkeys(readable or (), "--ro-bind") | dict.fromkeys(writable, "--bind")
        if not self.sees_others:
            binds.pop("/proc", None)  # it has its own
        mounts = ("--ro-bind", "/", "/", *devices, *hidden) if readable is None else devices
        return (
            *(self.program, "--unshare-user", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent"),
            # A folder before what is in it, which it would hide.
            *(*mounts, *(part for path in sorted(binds) for part in (binds[path], path, path))),
            *(() if readable is None else ("--remount-ro", "/")),
            *("--chdir", cwd, "--", *inner),
        )


def _existing(paths: Iterable[str], *, by_name: bool) -> tuple[str, ...]:
    spellings = (os.path.abspath, os.path.realpath) if by_name else (os.path.realpath,)
    found = dict.fromkeys(spelled(path) for path in paths for spelled in spellings)
    return tuple(path for path in found if os.path.exists(path))


class FoundConfinement(msgspec.Struct, frozen=True):
    confinement: Confinement | None
    reasons: Mapping[Mechanism, str]

    def why_none(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in self.reasons.items())


async def find_confinement(
    wanted: Wanted,
    folder: Path,
    *,
    codex: str | None,
    path: str,
    reading: bool = False,
    unusable: Mapping[Mechanism, str] = {},
) -> FoundConfinement:
    """Tries the mechanisms of `wanted` by a probe that writes and, with `reading`, reads outside. `folder` gets the
    folders for confined programs. Raises `OSError`.
    """
    codex_folder, tmp = folder / "codex", folder / "tmp"
    for each in (tmp, *(codex_folder / name for name in CODEX_FOLDERS)):
        make_folder(each)
    bubblewrap = shutil.which("bwrap", path=path)
    programs: dict[Mechanism, str | None] = {"codex": codex, "bubblewrap": bubblewrap, "landlock": ""}
    missing: dict[Mechanism, str] = {"codex": "no Codex was found", "bubblewrap": "bwrap is not on PATH"}
    reasons: dict[Mechanism, str] = {}
    for mechanism in CHEAPEST_FIRST if reading else MECHANISMS:
        if wanted not in ("auto", mechanism):
            continue
        program = programs[mechanism]
        if mechanism in unusable or program is None:
            reasons[mechanism] = unusable.get(mechanism) or missing[mechanism]
            continue
        plain = Confinement(
            mechanism=mechanism, codex_folder=str(codex_folder), tmp=str(tmp), program=program
        )
        variants = [plain]
        if (
            mechanism == "bubblewrap"
        ):  # a process namespace mounts /proc, which is often forbidden in containers
            variants.append(msgspec.structs.replace(plain, sees_others=True))
        for candidate in variants:
            why = await _reason_unusable(candidate, folder, reading)
            if not why:
                return FoundConfinement(candidate, reasons)
            reasons.setdefault(mechanism, why)
    return FoundConfinement(None, reasons)


async def _reason_unusable(candidate: Confinement, folder: Path, reading: bool) -> str:
    if sys.platform != "linux" and candidate.mechanism == "landlock":
        return "only Linux has it"

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with temporary_folder("probe", folder) as (place, _):
        inside, outside = Path(place, "inside"), Path(place, "outside")
        make_folder(inside)
        make_folder(outside)
        kept = create(outside / "kept")
        os.write(kept, b"kept")
        os.close(kept)
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            port = str(server.sockets[0].getsockname()[1])
            more = ("read",) if reading else ()
            argv = (sys.executable, "-I", "-S", "-c", PROBE, port, *more)
            command = Command(argv, {"PATH": os.defpath}, str(inside))
            confined = candidate.wrap(command, [str(inside)], () if reading else None)
            exit = await run_to_end(confined, PROBE_SECONDS)
        why = _reason_against(exit)
        if not why and (os.listdir(outside) != ["kept"] or (outside / "kept").read_bytes() != b"kept"):
            why = PROBE_WORDS[3]
        return why


def _reason_against(exit: Exit | None) -> str:
    """Returns why the mechanism cannot be used, by the probe's exit (None: late or not started); empty if it can."""
    if exit is None:
        return "it did not start, or did not end in time"
    if exit.code == 0:
        return ""
    said = exit.stderr_tail.strip().splitlines()
    if said:
        return said[-1][:MAX_REASON]
    if exit.code is None:
        return f"a command in it was ended by signal {exit.signal}"
    return PROBE_WORDS.get(exit.code, f"exit status {exit.code}")
