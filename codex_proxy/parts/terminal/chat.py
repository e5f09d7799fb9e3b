"""`codex-proxy chat`: a session of the Agents API at a terminal; in a pipe one answer as plain text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from codex_proxy.core.shown_text import escape_lines
from codex_proxy.settings.flags import URL_OPTION

if TYPE_CHECKING:
    from codex_proxy.parts.terminal.conversation import Conversation


def commands(_say: Callable[..., None], settings_option: Callable[..., Any]) -> list[click.Command]:
    """Returns the command."""

    @click.command(short_help="Work with an agent of the running server in the terminal.")
    @click.option("--agent", metavar="NAME", help="Agent of a new session, where the server has several.")
    @click.option("--model", metavar="NAME", help="Model to use (default: the agent's, or codex-5).")
    @click.option(
        "--resume",
        metavar="[ID]",
        is_flag=False,
        flag_value="last",
        help="Go on with the session ID, or with the newest one.",
    )
    @click.option(
        "--folder",
        type=click.Path(path_type=Path),
        help="Folder of a new session (default: the current one if the server allows it, else the server's).",
    )
    @click.option(
        "--sandbox",
        type=click.Choice(["read-only", "workspace-write", "danger-full-access"]),
        help="Sandbox of a new session; at most what the server and the key allow.",
    )
    @click.option(
        "--worktree",
        "in_worktree",
        is_flag=True,
        help="Let a new session work in a copy of the folder; /merge brings its work back.",
    )
    @URL_OPTION
    @click.option(
        "--key",
        metavar="KEY",
        help="API key to send, if the server needs one (default: that of the settings).",
    )
    @settings_option
    @click.argument("prompt", required=False)
    def chat(prompt: str | None, resume: str | None, settings: Any, **of_session: Any) -> None:
        """Work with an agent of the running server: a session that stays, also when you leave. /help lists the
        commands.

        If input or output is a pipe, PROMPT or the input is one message:
        echo "What does this folder hold?" | codex-proxy chat
        """
        of_new = {name: of_session[name] for name in ("agent", "folder", "sandbox", "in_worktree")}
        if resume is not None and (given := [name for name, value in of_new.items() if value]):
            flag = "--worktree" if given[0] == "in_worktree" else f"--{given[0]}"
            raise click.UsageError(f"{flag} is chosen when a session begins: leave it out, or --resume.")
        sys.exit(run(prompt or "", resume, settings, **of_session))

    return [chat]


def run(
    message: str,
    resume: str | None,
    settings: Any,
    *,
    base_url: str | None,
    key: str | None,
    model: str | None,
    agent: str | None,
    folder: Path | None,
    sandbox: str | None,
    in_worktree: bool,
) -> int:
    """Shows a session at the terminal, or prints the answer to one message where input or output is none. `agent`: its
    name, where the server has several. `in_worktree`: whether a new session works in a copy of its folder. `resume`:
    the id of the session to go on with, or `last`, whose model changes only to a `model` that is named. Returns the
    exit status. Raises `UserError`.
    """
    from codex_proxy.commands.running_server import Server, address_and_key
    from codex_proxy.parts.terminal.conversation import Conversation

    server = Server(*address_and_key(base_url, key, settings))
    conversation = Conversation(server, model, agent, folder, sandbox, in_worktree=in_worktree)
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            return asyncio.run(_at_terminal(conversation, message, resume, settings.state_dir.expanduser()))
        return asyncio.run(_plain(conversation, message, resume))
    except KeyboardInterrupt:
        return 130


async def _at_terminal(conversation: Conversation, message: str, resume: str | None, state_dir: Path) -> int:
    """`state_dir`: the folder of what was typed before."""
    from rich.console import Console

    from codex_proxy.parts.terminal.prompt import history_in
    from codex_proxy.parts.terminal.terminal import Terminal

    async with conversation.server:
        terminal = Terminal(conversation, Console(highlight=False), history_in(state_dir))
        return await terminal.run(message, resume)


async def _plain(conversation: Conversation, message: str, resume: str | None) -> int:
    from codex_proxy.parts.terminal.plain import PlainChat, question_from

    def write(text: str) -> None:
        # A file or a program gets the text as it is, a terminal nothing that controls it.
        print(escape_lines(text) if sys.stdout.isatty() else text, end="", flush=True)

    def tell(text: str) -> None:
        print(escape_lines(f"codex-proxy: {text}"), file=sys.stderr, flush=True)

    question = message or question_from(sys.stdin)
    async with conversation.server:
        return await PlainChat(conversation, write, tell).run(question, resume)
