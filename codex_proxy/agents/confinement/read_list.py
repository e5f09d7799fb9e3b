"""Lists what a program must read to run: the system's programs, libraries, settings and certificates; itself with its
package and interpreter; what its variables and arguments name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from codex_proxy.core.safety import is_inside
from codex_proxy.process.child import Command
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
