"""`codex-proxy chat` at a terminal, with the real Codex or the real Claude Code behind the server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.commands.chatting import Terminal, terminal
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import call, plan, say
from tests.real.release import needs
from tests.real.shared import Proxies
from tests.real.test_approvals import patch
from tests.real.test_approvals_of_claude import tool

pytestmark = [pytest.mark.part("sessions"), pytest.mark.part("terminal"), needs("confined_reads")]

KEY = "the key of the operator"


async def allow(chat: Terminal, times: int) -> None:
    """Allows what is asked for, the `times`-th question of this chat, as soon as a key answers it."""
    await chat.shows("a allow once", times=times)
    allowed = partial(lambda: chat.shown.count(b"Allowed once.") >= times)
    await chat.press_until("a", allowed)


async def work(chat: Terminal, folder: Path, stalls: str) -> None:
    """What a person does with an agent that has been asked to write `new.txt` and then to run a command that waits for
    the file `gate`; `stalls`: a message whose answer never ends.
    """
    new, gate = folder / "new.txt", folder / "gate"
    await chat.shows("a allow once")
    await chat.shows("\x1b[32m+hello")
    assert not new.exists()
    await allow(chat, 1)
    await chat.shows("a allow once", times=2)
    assert new.read_text() == "hello\n"
    await chat.shows(f"until test -e {gate}", times=1)
    await chat.shows(f"  cwd: \x1b[1m{folder}")
    await allow(chat, 2)
    chat.type("\x15Be brief.")  # without the keys that came after the answer
    await chat.shows("(waits) Be brief.")
    gate.touch()
    await chat.shows("\x1b[2m  ready")
    await chat.shows("\x1b[1;34m> Be brief.")
    await chat.shows("Brief.", times=2)
    chat.type(stalls)
    await chat.shows("\x1b[0mword0\x1b[0m")  # as it comes; not in the message
    chat.press("\x03")
    await chat.shows("(stopped)")


async def resumes(url: str, home: Path, asks: str, told: str) -> None:
    """Finds the session in another terminal, and goes on; `told`: what is then said about it."""
    async with terminal(url, home, "--key", KEY, "--resume") as chat:
        await chat.shows("\x1b[32m+hello")
        await chat.shows("\x1b[2m  ready")
        chat.type(asks)
        await chat.shows("lRumpel.\r\n")  # after a control of the terminal, not in the message
        chat.type("/status")
        await chat.shows(told)


async def leave(chat: Terminal) -> None:
    chat.type("/quit")
    assert await chat.ends() == 0


def waiting(folder: Path) -> str:
    """A command that ends when the file `gate` is there."""
    return f"touch {folder / 'begun'}; until test -e {folder / 'gate'}; do sleep 0.05; done; echo ready"


async def test_a_person_works_with_codex_in_a_terminal_and_goes_on_after_a_restart(
    proxies: Proxies, tmp_path: Path
) -> None:
    folder = proxies.home.workdir
    restarts = proxies.restarts(sandbox="workspace-write", approvals="ask", api_key=KEY)
    try:
        steps = [patch("new.txt")], [call("exec_command", cmd=waiting(folder))], [say("Brief.")]
        arguments = "--key", KEY, "--folder", str(folder), f"{plan(*steps)} Do it."
        async with terminal((await restarts.next()).url, tmp_path, *arguments) as chat:
            await work(chat, folder, "[[model:stall n=1 gate=never]] Tell me.")
            await leave(chat)
        again = await restarts.next()
        await resumes(again.url, tmp_path, f"{plan([say('Rumpel.')])} Who am I?", "questions: asked")
    finally:
        await restarts.close()


@pytest.mark.exhaustive
async def test_a_person_works_with_claude_code_in_a_terminal_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "work"
    steps = (
        tool("Write", file_path=str(folder / "new.txt"), content="hello\n"),
        tool("Bash", command=waiting(folder), description="Waits."),
        {"text": "Brief."},
    )
    async with anthropic_model() as model:
        server = partial(
            claude_proxy, tmp_path, model, sandbox="danger-full-access", approvals="ask", api_key=KEY
        )
        async with server() as (client, _):
            arguments = "--key", KEY, "--folder", str(folder), f"Do it. {script(*steps)}"
            url = str(client.base_url).removesuffix("/v1/")
            async with terminal(url, tmp_path, *arguments) as chat:
                await work(chat, folder, f"Tell me. {script({'text': 'word0 word1', 'hold': 'never'})}")
                await leave(chat)
        async with server() as (client, _):
            url = str(client.base_url).removesuffix("/v1/")
            await resumes(url, tmp_path, f"Who am I? {script({'text': 'Rumpel.'})}", "claude --resume ")


async def test_a_person_allows_a_command_of_codex_by_a_key_and_sees_its_output(
    proxies: Proxies, tmp_path: Path
) -> None:
    proxy = await proxies.of(sandbox="workspace-write", approvals="ask", api_key=KEY)
    folder = proxies.home.workdir
    steps = [call("exec_command", cmd="echo ready; echo once >> within")], [say("All is well.")]
    arguments = "--key", KEY, "--folder", str(folder), f"{plan(*steps)} Do it."
    async with terminal(proxy.url, tmp_path, *arguments) as chat:
        await chat.shows("a allow once")
        await chat.shows(f"  cwd: \x1b[1m{folder}")
        assert not (folder / "within").exists()
        await chat.press_until("a", lambda: b"Allowed once." in chat.shown)
        await chat.shows("\x1b[2m  ready")
        await chat.shows("All is well.", times=2)
        assert (folder / "within").read_text() == "once\n"
        chat.type("/status")
        await chat.shows("sandbox: workspace-write")


async def test_a_session_of_codex_goes_on_in_another_terminal(proxies: Proxies, tmp_path: Path) -> None:
    proxy = await proxies.of()
    folder = ("--folder", str(proxies.home.workdir))
    async with terminal(proxy.url, tmp_path, *folder, f"{plan([say('The word is apple.')])} Go.") as chat:
        await chat.shows("The word is apple.", times=2)
        chat.type("/quit")
        assert await chat.ends() == 0
    async with terminal(proxy.url, tmp_path, "--resume") as chat:
        await chat.shows("The word is apple.", times=2)
        chat.type("/status")
        await chat.shows("codex resume ")
