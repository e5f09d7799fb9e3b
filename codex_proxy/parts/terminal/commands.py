"""What the user can type besides messages: `/sessions` and the other commands."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from rich.text import Text

from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import one_line
from codex_proxy.parts.terminal import file_commands
from codex_proxy.parts.terminal.conversation import Conversation, Object


class Chat(Protocol):
    """What commands use of the terminal."""

    conversation: Conversation
    draft: str
    """What the next prompt begins with."""

    @property
    def output(self) -> str:
        """The whole output that was folded last."""

    def say(self, text: str) -> None:
        """Prints a text."""

    def show_lines(self, lines: Iterable[Text], whole: str) -> None:
        """Prints lines, and keeps the whole text of which they may be a part."""

    async def read_line(self, label: str, *, hidden: bool = False) -> str:
        """Asks the user for one line."""

    async def resume(self, id: str) -> None:
        """Shows another session; `last` is the newest."""

    async def open(self, opening: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Shows another session, which a function opens."""

    def leave_session(self) -> None:
        """Leaves the session; the next message begins a new one."""

    async def use_key(self, key: str) -> None:
        """Uses another key."""


class _Command(NamedTuple):
    about: str
    run: Callable[[Chat, str], Awaitable[None]]


async def run_command(terminal: Chat, line: str) -> None:
    """Runs a line that begins with `/`. Raises `UserError`, and `EOFError` to leave."""
    name, _, argument = line.strip()[1:].partition(" ")
    found = COMMANDS.get(name)
    if found is None:
        raise UserError(f"There is no command /{name[:40]}. /help lists them.")
    await found.run(terminal, argument.strip())


async def _sessions(terminal: Chat, _: str) -> None:
    newest = await terminal.conversation.newest()
    if not newest:
        terminal.say("There is no session yet.")
        return
    for number, summary in enumerate(newest, 1):
        terminal.say(f"{number:3} {_described(summary, terminal.conversation.id)}")
    chosen = await terminal.read_line("Number, or nothing: ")
    if not chosen:
        return
    if not chosen.isdecimal() or not 1 <= int(chosen) <= len(newest):
        raise UserError(f"{chosen[:40]} is none of the numbers 1 to {len(newest)}.")
    await terminal.resume(newest[int(chosen) - 1]["id"])


def _described(summary: Object, current: str) -> str:
    age = max(int(time.time()) - summary["last_active_at"], 0)
    unit, name = next(
        each for each in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if age >= each[0] - 1
    )
    words = [summary["agent"], summary["status"].replace("_", " "), f"{age // unit} {name} ago"]
    if summary["folder"]:
        words.append(summary["folder"])
    mark = " (this one)" if summary["id"] == current else ""
    return f"{one_line(summary['title'])}{mark} · {' · '.join(words)}"


async def _resume(terminal: Chat, id: str) -> None:
    await terminal.resume(id or "last")


async def _new(terminal: Chat, _: str) -> None:
    terminal.leave_session()
    terminal.say("The next message begins a new session.")


async def _fork(terminal: Chat, arguments: str) -> None:
    conversation = terminal.conversation
    _require_session(terminal)
    back, _, folder = arguments.partition(" ")
    if not back.isdecimal():
        back, folder = "", arguments
    in_worktree = folder.strip() == "--worktree"
    if (back and int(back) == 0) or (folder.startswith("-") and not in_worktree):
        raise UserError(
            "/fork takes the number of your last messages that are left out, or nothing; then a folder or --worktree."
        )
    place = "" if in_worktree else file_commands.absolute(folder.strip())
    text = ""

    async def opening() -> int:
        nonlocal text
        text, before = await conversation.fork(int(back or 0), place, in_worktree=in_worktree)
        return before

    await terminal.open(opening)
    terminal.draft = text
    terminal.say("This is a copy: the session that it was made of stays as it is.")
    if in_worktree:
        terminal.say("It works in a worktree, with the files as they were then; /merge brings its work back.")
    if place:
        terminal.say(f"It works in {place}, with the files as they were then.")


async def _diff(terminal: Chat, which: str) -> None:
    _require_session(terminal)
    await file_commands.show_diff(terminal, which)


async def _revert(terminal: Chat, arguments: str) -> None:
    _require_session(terminal)
    await file_commands.revert(terminal, arguments)


async def _patch(terminal: Chat, file: str) -> None:
    _require_session(terminal)
    await file_commands.save_patch(terminal, file)


async def _merge(terminal: Chat, branch: str) -> None:
    _require_session(terminal)
    await file_commands.merge(terminal, branch)


async def _model(terminal: Chat, name: str) -> None:
    conversation = terminal.conversation
    if name:
        await conversation.use_model(name)
        terminal.say(f"Now using {name}.")
        return
    for each in await conversation.models():
        terminal.say(f"{each} (this one)" if each == conversation.model else each)


async def _rename(terminal: Chat, title: str) -> None:
    _require_session(terminal)
    await terminal.conversation.change(title=title or None)
    terminal.say(f"The session's title is {one_line(terminal.conversation.summary['title'])}")


async def _archive(terminal: Chat, _: str) -> None:
    _require_session(terminal)
    id = terminal.conversation.id
    await terminal.conversation.change(archived=True)
    terminal.leave_session()
    terminal.say(f"{id} is archived: it is not listed. The next message begins a new session.")


async def _status(terminal: Chat, _: str) -> None:
    conversation = terminal.conversation
    if not conversation.id:
        terminal.say(f"No session yet. Model: {conversation.model}. Server: {conversation.server.base_url}")
        return
    await conversation.refresh()
    summary = conversation.summary
    usage, context = summary["usage"] or {}, summary["context"]
    rows = {
        "session": summary["id"],
        "title": one_line(summary["title"]),
        "state": summary["status"].replace("_", " "),
        "agent": summary["agent"],
        "model": conversation.model,
        "folder": summary["folder"] or "none: the plain model",
        "sandbox": summary["sandbox"],
        "questions": "asked" if summary["approvals"] == "ask" else "declined",
        "tokens": f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out" if usage else None,
        "context": f"{context['used']:,} of {context['window'] or 'unknown'} tokens" if context else None,
        "forked from": summary["forked_from"],
        "in the agent's own program": summary["resume"],
        "server": conversation.server.base_url,
    }
    for name, value in rows.items():
        if value is not None:
            terminal.say(f"{name}: {value}")


async def _output(terminal: Chat, _: str) -> None:
    for line in (terminal.output or "(No output was folded.)").split("\n"):
        terminal.say(line)


async def _key(terminal: Chat, _: str) -> None:
    key = await terminal.read_line("Another API key: ", hidden=True)
    if key:
        await terminal.use_key(key)


async def _help(terminal: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        terminal.say(f"/{name:10} {command.about}")
    terminal.say(
        "Enter sends, also while the agent works: it takes the message as soon as it can. Alt-Enter begins a line.\n"
        "Ctrl-C stops the turn, twice leaves; Ctrl-D leaves. Leaving ends nothing: the agent works on."
    )


async def _quit(_: Chat, __: str) -> None:
    raise EOFError


def _require_session(terminal: Chat) -> None:
    if not terminal.conversation.id:
        raise UserError("There is no session yet: send a message first.")


COMMANDS: Final[Mapping[str, _Command]] = {
    "sessions": _Command("list the sessions, and choose one", _sessions),
    "resume": _Command("go on with the session ID, or with the newest", _resume),
    "new": _Command("begin a new session with the next message", _new),
    "fork": _Command(
        "go on with a copy; /fork N leaves out your last N messages; /fork N FOLDER also has the files of then, and so "
        "has /fork N --worktree",
        _fork,
    ),
    "diff": _Command("show what the last turn has done to the files; /diff 2 the turn before it", _diff),
    "revert": _Command(
        "make the files what they were before the last turn; /revert 2 force also overwrites what was changed since",
        _revert,
    ),
    "merge": _Command(
        "bring the work of a session with --worktree into its folder; /merge BRANCH [MESSAGE] makes a branch of it",
        _merge,
    ),
    "patch": _Command(
        "write all that the session has done to the files to a new file, for git apply", _patch
    ),
    "model": _Command("list the models; /model NAME changes to that one", _model),
    "rename": _Command("give the session a title", _rename),
    "archive": _Command("put the session away, and begin a new one", _archive),
    "status": _Command("show tokens, context, folder, sandbox and thread", _status),
    "output": _Command("show the last folded output whole", _output),
    "key": _Command("use another API key", _key),
    "help": _Command("show this", _help),
    "quit": _Command("leave", _quit),
}
