"""`codex-proxy chat` at a terminal, with the real Codex behind the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.chatting import terminal
from tests.real.model_plans import call, plan, say
from tests.real.release import needs
from tests.real.shared import Proxies

pytestmark = [pytest.mark.part("sessions"), needs("confined_reads")]

KEY = "the key of the operator"


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
