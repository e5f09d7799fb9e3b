"""`codex-proxy chat`: a session of the Agents API at a terminal; in a pipe one answer as plain text."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rich.console import Console

from codex_proxy.commands.chat.client import Server
from codex_proxy.commands.chat.conversation import Conversation
from codex_proxy.core.shown_text import escape_lines


def run(
    server: Server,
    model: str | None,
    *,
    agent: str | None,
    folder: Path | None,
    sandbox: str | None,
    in_worktree: bool,
    resume: str | None,
    message: str,
    state_dir: Path,
) -> int:
    """Shows a session at the terminal, or prints the answer to one message where input or output is none. `agent`: its
    name, where the server has several. `in_worktree`: whether a new session works in a copy of its folder. `resume`:
    the id of the session to go on with, or `last`, whose model changes only to a `model` that is named. `state_dir`:
    the folder of what was typed before. Returns the exit status. Raises `UserError`.
    """
    conversation = Conversation(server, model, agent, folder, sandbox, in_worktree=in_worktree)
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            return asyncio.run(_at_terminal(conversation, message, resume, state_dir))
        return asyncio.run(_plain(conversation, message, resume))
    except KeyboardInterrupt:
        return 130


async def _at_terminal(conversation: Conversation, message: str, resume: str | None, state_dir: Path) -> int:
    from codex_proxy.commands.chat.prompt import history_in
    from codex_proxy.commands.chat.terminal import Terminal

    async with conversation.server:
        terminal = Terminal(conversation, Console(highlight=False), history_in(state_dir))
        return await terminal.run(message, resume)


async def _plain(conversation: Conversation, message: str, resume: str | None) -> int:
    from codex_proxy.commands.chat.plain import PlainChat, question_from

    def write(text: str) -> None:
        # A file or a program gets the text as it is, a terminal nothing that controls it.
        print(escape_lines(text) if sys.stdout.isatty() else text, end="", flush=True)

    def tell(text: str) -> None:
        print(escape_lines(f"codex-proxy: {text}"), file=sys.stderr, flush=True)

    question = message or question_from(sys.stdin)
    async with conversation.server:
        return await PlainChat(conversation, write, tell).run(question, resume)
