"""Runs a program that can write to some folders only, or also read some only, by Landlock, a security module of Linux.

python -I -S landlock.py FOLDER... [--read PATH...] -- PROGRAM ARGUMENT...

The program and what it starts can change files only below each FOLDER (or in that file), and in the usual devices. With
`--read` it can read, run and list only below each PATH and FOLDER, and does not see into other processes by /proc, even
as root. The network is free. Signals reach only its own processes, from Linux 6.12 on. Not limited: changing modes,
owners, times and extended attributes of files, seeing their size and owner, and programs behind Unix sockets.

The exit code is the program's, 126 if this kernel cannot confine it, or 127 if it cannot be started; the reason is on
stderr. It never runs unconfined. Imports nothing of the server: it is started by its path.
"""

import ctypes
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls, with the same numbers on every architecture."""
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
INSPECTION_CAPABILITIES = (19, 21, 38)
"""Capabilities of root that see other processes' memory in spite of Landlock: CAP_SYS_PTRACE, CAP_SYS_ADMIN,
CAP_PERFMON."""
VERSION_FLAG, PATH_BENEATH = 1, 1
OLDEST_VERSION = 3
"""The oldest usable version, which limits truncating files (Linux 6.2)."""
SCOPES_VERSION = 6
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
CHANGE_FOLDER = sum(1 << bit for bit in range(4, 14))
"""The rights to remove, create, link and move."""
WRITE = WRITE_FILE | TRUNCATE | CHANGE_FOLDER
READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
READ_OPTION = "--read"

DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    "/dev/tty", "/dev/ptmx", "/dev/pts",
)  # fmt: skip


class NotConfinedError(Exception):
    """This kernel cannot confine the program. The message says why."""


def confine(writable: list[str], readable: list[str] | None = None) -> None:
    """Limits this process and its children to writing below `writable` and, unless None, reading there and below
    `readable`. Missing paths are ignored. Raises `NotConfinedError`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)
    if version < OLDEST_VERSION:
        why = os.strerror(ctypes.get_errno()) if version < 0 else f"its version is {version}"
        raise NotConfinedError(f"Landlock is not available here ({why})")
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SCOPES_VERSION else 0
    limited = WRITE if readable is None else WRITE | READ
    # handled_access_fs, handled_access_net, scoped; older kernels take the first alone.
    attributes = struct.pack("=QQQ", limited, 0, scopes) if scopes else struct.pack("=Q", limited)
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    _check(ruleset, "no ruleset can be made")
    for path in (*writable, *DEVICES):
        _allow(libc, ruleset, path, limited)
    for path in readable or ():
        _allow(libc, ruleset, path, READ)
    if readable is not None:
        # Fails without effect for anybody but root, who alone has them.
        for capability in INSPECTION_CAPABILITIES:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges of setuid programs cannot be switched off"
    )
    _check(libc.syscall(RESTRICT_SELF, ruleset, 0), "the rules cannot be enforced")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    access = access if os.path.isdir(path) else access & OF_FILES
    rule = struct.pack("=Qi", access, descriptor)
    _check(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0), f"{path} cannot be allowed")
    os.close(descriptor)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise NotConfinedError(f"{what} ({os.strerror(ctypes.get_errno())})")


def main(arguments: list[str]) -> int:
    """Confines this process and executes the program. If that fails, returns 126 or 127, with the reason on stderr."""
    separator = arguments.index("--")
    paths, command = arguments[1:separator], arguments[separator + 1 :]
    named = paths.index(READ_OPTION) if READ_OPTION in paths else len(paths)
    try:
        confine(paths[:named], paths[named + 1 :] if named < len(paths) else None)
    except NotConfinedError as error:
        sys.stderr.write(f"{error}\n")
        return 126
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv))
