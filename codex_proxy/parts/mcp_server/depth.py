"""How deep sessions may start one another: an agent of this server that is a client of it, too, would otherwise start
agents without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.process.launch import AGENT_MARK

BY_AGENT_HEADER: Final = "X-Codex-Agent"
"""The header of a client that is an agent of this server: `1`."""
MAX_DEPTH: Final = 3
"""How many sessions may have started one another through MCP."""
DEPTH: Final = "mcp_depth"
"""The metadata of a session that was started through MCP: 1, or one more than the session whose agent did it."""
MAX_ANCESTORS: Final = 32
"""How many processes are looked at."""


def depth_of(session: Session) -> int:
    """Returns the depth of a session; 0 if it was not started through MCP."""
    given = session.metadata.get(DEPTH, "")
    return min(int(given), MAX_DEPTH) if given.isascii() and given.isdigit() and len(given) < 4 else 0


def next_depth(working: Iterable[Session], *, by_agent: bool) -> int:
    """Returns the depth of a session that starts now. `working`: the sessions of the key that have a turn; `by_agent`:
    whether an agent of this server starts it. Which session that agent belongs to is not known, but it is one of these.
    Raises `Fault` NOT_ALLOWED beyond `MAX_DEPTH`.
    """
    depth = 1 + (max(map(depth_of, working), default=0) if by_agent else 0)
    if depth > MAX_DEPTH:
        raise Fault.of(
            FaultKind.NOT_ALLOWED,
            f"Agents of this server have started one another {MAX_DEPTH} times, which is the limit. Do the work in "
            "this session, or let the session that was started first do it.",
        )
    return depth


def has_agent_above(process: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process, or one above it, was started by an agent of a codex-proxy, as its variables say: some programs
    give few of theirs to the MCP servers that they start. False where the system does not tell (it does on Linux).
    """
    mark = f"{AGENT_MARK}=".encode()
    for _ in range(MAX_ANCESTORS):
        folder = proc / str(process)
        if any(each.startswith(mark) for each in _variables(folder)):
            return True
        try:
            # The name of the program, in brackets, may have spaces and brackets.
            process = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # no such process any more
            return False
        if process <= 1:
            return False
    return False


def _variables(folder: Path) -> list[bytes]:
    """Returns the variables of a process, as NAME=VALUE. None of one that cannot be read: another user's, or one that
    lets nobody look into it, as Codex does.
    """
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
