"""One line for a person about what the agent does by itself: fields of an event in, text out."""

from __future__ import annotations

import shlex

from codex_proxy.agents.codex_proto.wire import Msg

MAX_CHARS = 300
"""Characters of a line; a command can be a whole script."""

SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})
VERBS = frozenset({"add", "update", "delete"})


def command_line(msg: Msg) -> str:
    """The command as a person would type it: what a shell is told to run, without the shell."""
    command = msg.command
    if isinstance(command, str):
        return one_line(command)
    words = command or []
    if len(words) == 3 and words[0] in SHELLS and words[1] in ("-c", "-lc"):
        return one_line(words[2])
    return one_line(shlex.join(words))


def file_changes(msg: Msg, workdir: str) -> str:
    """`add a.txt, update b/c.py`: paths inside the workspace are relative to it."""
    root = workdir.rstrip("/") + "/"
    said = []
    for path, change in (msg.changes or {}).items():
        verb = next((key for key in change if key in VERBS), "change")
        said.append(f"{verb} {path.removeprefix(root) if workdir else path}")
    return one_line(", ".join(said))


def mcp_call(msg: Msg) -> str:
    """`server.tool`."""
    called = msg.invocation
    return one_line(f"{called.server}.{called.tool}" if called else "")


def plan(msg: Msg) -> str:
    """`read (completed), write (in progress), test (pending)`."""
    return one_line(", ".join(f"{step.step} ({step.status.replace('_', ' ')})" for step in msg.plan or ()))


def with_reason(text: str, reason: str | None) -> str:
    """What is asked for, and why the agent wants it."""
    return one_line(f"{text} ({reason})" if reason else text)


def one_line(text: str) -> str:
    """White space of any kind becomes one blank; what is too long is cut."""
    text = " ".join(text[: MAX_CHARS * 4].split())
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
