"""codex-proxy chat at a terminal, with a person who changes their mind and an agent that asks."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.commands.running_server import Server
from codex_proxy.parts.terminal.conversation import Conversation, Object
from tests.commands.chatting import terminal
from tests.http.serving import Proxy, fake_proxy
from tests.waiting import eventually

pytestmark = pytest.mark.part("sessions")

SAYS = "Hello from the deterministic fake agent."
KEY = "the key of the operator"
ASKING: dict[str, Any] = {
    "sandbox": "danger-full-access",  # the fake agent has no other
    "approvals": "ask",
    "api_key": KEY,
    "fake_dialect": "app-server",
}


async def summaries(proxy: Proxy, key: str | None = None) -> Sequence[Object]:
    """Those of the server's sessions, the newest first."""
    async with Server(f"{proxy.url}/v1", key) as server:
        return await Conversation(server).newest()


async def items(proxy: Proxy, session: str, key: str | None = None) -> list[Object]:
    """The items of a session, oldest first."""
    async with Server(f"{proxy.url}/v1", key) as server:
        page = await server.ask("GET", f"/agents/sessions/{session}/items?order=asc&limit=100")
    return list(page["data"])


def text_of(item: Object) -> str:
    return "".join(part["text"] for part in item["content"])


async def test_a_person_asks_changes_the_model_begins_anew_and_leaves(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, terminal(proxy.url, tmp_path) as chat:
        await chat.shows("codex-5 at http://127.0.0.1")
        chat.type("hello")
        await chat.shows(SAYS)
        chat.type("/model")
        await chat.shows("codex-5-minimal")
        chat.type("/model codex-5-high")
        await chat.shows("Now using codex-5-high.")
        chat.type("/new")
        await chat.shows("begins a new session")
        chat.type("hello again")
        await chat.shows(SAYS, times=2)
        chat.type("/what")
        await chat.shows("There is no command /what.")
        chat.type("[[fake:auth_401]]")
        await chat.shows("credentials")
        chat.type("/quit")
        assert await chat.ends() == 0
        newest, older = await summaries(proxy)
        assert f"--resume {newest['id']}" in chat.shown.decode()
        assert (newest["model"], older["model"]) == ("codex-5-high", "codex-5-high")


async def test_work_is_shown_with_its_output_and_a_diff(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, fake_dialect="app-server") as proxy,
        terminal(proxy.url, tmp_path, "[[fake:activity]]") as chat,
    ):
        await chat.shows("All done.")
        shown = chat.shown.decode()
        assert "\x1b[1;36m$ /bin/bash -lc 'ls'" in shown
        assert "\x1b[2m  README.md" in shown
        assert "\x1b[32m+hello" in shown
        assert "[search] fake agents" in shown


async def test_a_long_output_is_folded_until_it_is_asked_for(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        said = "[[fake:activity misbehave=big_line bytes=100000]]"
        async with terminal(proxy.url, tmp_path, said) as chat:
            await chat.shows("more characters")
            assert len(chat.shown) < 50_000


async def test_typing_while_the_agent_works_steers_it(tmp_path: Path) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, release, fake_dialect="app-server") as proxy:
        async with terminal(proxy.url, tmp_path, "[[fake:count n=5 hold=1]]") as chat:
            await chat.shows("..0")
            chat.type('[[fake:text say="another way"]]')
            await chat.shows("another way", times=2)
        [summary] = await summaries(proxy)
        said = [item for item in await items(proxy, summary["id"]) if item["role"] == "user"]
        assert len({item["turn_id"] for item in said}) == 1


async def test_ctrl_c_ends_the_turn_and_twice_leaves(tmp_path: Path) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with (
        fake_proxy(tmp_path, release) as proxy,
        terminal(proxy.url, tmp_path, "[[fake:count n=5 hold=1]]") as chat,
    ):
        await chat.shows("..0")
        assert proxy.server.runs.running == 1
        chat.press("\x03")
        await chat.shows("(stopped)")
        await eventually(lambda: proxy.server.runs.running == 0)
        chat.type("hello")
        await chat.shows(SAYS)
        chat.press("\x03\x03")
        assert await chat.ends() == 0


async def test_leaving_ends_nothing(tmp_path: Path) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, release) as proxy:
        async with terminal(proxy.url, tmp_path, "[[fake:count n=5 hold=1]]") as chat:
            await chat.shows("..0")
            chat.press("\x04")
            assert await chat.ends() == 0
        assert proxy.server.runs.running == 1
        (tmp_path / "never").touch()
        async with terminal(proxy.url, tmp_path, "--resume") as chat:
            await chat.shows("..4")


async def test_a_command_runs_only_when_a_key_allows_it(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        async with terminal(proxy.url, tmp_path, "--key", KEY) as chat:
            await chat.shows("/help lists the commands")
            chat.type("[[fake:approval]]")
            chat.press("a")  # before there is a question
            await chat.shows("allow once")
            chat.press("a")  # as it appears
            await chat.shows("rm -rf build")
            [summary] = await summaries(proxy, KEY)
            assert [ask["name"] for ask in summary["asks"]] == ["run_command"]
            chat.press("\x15")  # clears the line
            await chat.press_until("a", lambda: b"Allowed once." in chat.shown)
            await chat.shows("Thank you.")
        done = [
            item for item in await items(proxy, summary["id"], KEY) if item["type"] == "command_execution"
        ]
        assert [item["status"] for item in done] == ["completed"]


async def test_a_person_declines_with_words(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        async with terminal(proxy.url, tmp_path, "--key", KEY, "[[fake:approval_patch]]") as chat:
            await chat.shows("allow once")
            await chat.shows("apply_patch")
            await chat.press_until("d", lambda: b"Words for the agent" in chat.shown)
            chat.type('[[fake:text say="So not that file."]]')  # the agent gets the words
            await chat.shows("Declined.")
            await chat.shows("So not that file.", times=2)
        [summary] = await summaries(proxy, KEY)
        done = [
            item for item in await items(proxy, summary["id"], KEY) if item["type"] == "command_execution"
        ]
        assert [item["status"] for item in done] == ["failed"]


async def test_a_person_fills_in_a_form_of_an_acp_program(tmp_path: Path) -> None:
    properties = {
        "nights": {"type": "integer", "title": "Nights"},
        "class": {"type": "string", "title": "Class", "enum": ["first", "second"]},
        "window": {"type": "boolean", "title": "Window"},
    }
    schema = {"type": "object", "properties": properties, "required": ["nights"]}
    form = json.dumps({"mode": "form", "message": "Where to?", "requestedSchema": schema})
    async with fake_proxy(tmp_path, **ASKING | {"fake_dialect": "acp"}) as proxy:
        async with terminal(proxy.url, tmp_path, "--key", KEY, f"[[fake:text form='{form}']]") as chat:
            await chat.shows("fill it in")
            await chat.press_until("a", lambda: b"Nights:" in chat.shown)
            chat.type("many")
            await chat.shows("is no number")
            told = chat.shown.count(b"Nights:")
            await chat.press_until("a", lambda: chat.shown.count(b"Nights:") > told)
            chat.press("\x15")  # clears what was pressed
            chat.type("3")
            await chat.shows("second")
            chat.type("2")
            await chat.shows("Window (y or n")
            chat.type("")
            await chat.shows("Sent.")
            await chat.shows(SAYS)
        [summary] = await summaries(proxy, KEY)
        messages = [item for item in await items(proxy, summary["id"], KEY) if item["type"] == "message"]
        given = {"action": "accept", "content": {"class": "second", "nights": 3}}
        assert json.dumps(given) in "".join(map(text_of, messages))


async def test_this_kind_is_allowed_for_the_session_by_the_rule_that_is_shown(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, **ASKING) as proxy,
        terminal(proxy.url, tmp_path, "--key", KEY, "[[fake:approval]]") as chat,
    ):
        await chat.shows("allow once")
        [summary] = await summaries(proxy, KEY)
        assert summary["asks"][0]["rule"][:60] in chat.shown.decode()
        await chat.press_until("s", lambda: b"Allowed for this session." in chat.shown)
        await chat.shows("Thank you.")
        chat.type("[[fake:approval]]")
        await chat.shows("Thank you.", times=2)
        assert chat.shown.count(b"The agent asks") == 1


async def test_a_key_is_asked_for_and_replaced_where_nobody_sees_it(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, **ASKING) as proxy,
        terminal(proxy.url, tmp_path, "--key", "a wrong one") as chat,
    ):
        await chat.shows("Incorrect API key")
        await chat.shows("API key:")
        chat.type(KEY)
        await chat.shows("/help lists the commands")
        chat.type("hello")
        await chat.shows(SAYS)
        chat.type("/key")
        await chat.shows("Another API key:")
        chat.type(KEY)
        await chat.shows("This key is used from now on.")
        chat.type("[[fake:approval]]")
        await chat.shows("allow once")
        assert KEY not in chat.shown.decode()


async def test_without_keys_the_key_of_this_start_allows(tmp_path: Path) -> None:
    from tests.parts.sessions.approving import START_KEY, keyless_proxy  # it needs the part

    async with keyless_proxy(tmp_path) as proxy, terminal(proxy.url, tmp_path, "[[fake:approval]]") as chat:
        await chat.shows("This key may not answer")
        chat.type("/key")
        await chat.shows("Another API key:")
        chat.type(START_KEY)
        await chat.shows("allow once")
        await chat.press_until("a", lambda: b"Allowed once." in chat.shown)
        await chat.shows("Thank you.")


async def test_a_session_goes_on_when_the_server_is_there_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
            first = '[[fake:text say="before the restart"]]'
            chat = await stack.enter_async_context(terminal(proxy.url, tmp_path, first))
            await chat.shows("before the restart", times=2)
        await chat.shows("Trying again.")
        chat.type("nobody is there")
        await chat.shows("No server is running")
        async with fake_proxy(tmp_path, fake_dialect="app-server", port=proxy.server.port) as proxy:
            await chat.press_until("[[fake:echo]]\r", lambda: chat.shown.count(b"before the restart") >= 3)
            [summary] = await summaries(proxy)
            said = [text_of(item) for item in await items(proxy, summary["id"]) if item["role"] == "user"]
        assert said[:2] == [first, "[[fake:echo]]"]


async def test_a_session_that_the_server_has_no_more_is_left(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with fake_proxy(tmp_path, store="memory") as proxy:
            chat = await stack.enter_async_context(terminal(proxy.url, tmp_path, "hello"))
            await chat.shows(SAYS)
        await chat.shows("Trying again.")
        async with fake_proxy(tmp_path, store="memory", port=proxy.server.port) as proxy:
            await chat.shows("The session is gone.")
            chat.type("hello again")
            await chat.shows(SAYS, times=2)
            assert len(await summaries(proxy)) == 1


async def test_a_person_finds_renames_forks_and_archives_a_session(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        async with terminal(proxy.url, tmp_path, '[[fake:text say="the first answer"]]') as chat:
            await chat.shows("the first answer", times=2)
            chat.type("/rename A name of mine")
            await chat.shows("title is A name of mine")
            chat.type("/status")
            await chat.shows("tokens: ")
            chat.type("/fork -1")
            await chat.shows("/fork takes the number")
            chat.type("/fork")
            await chat.shows("This is a copy")
            chat.type("/archive")
            await chat.shows("is archived")
            chat.type("/sessions")
            await chat.shows("Number, or nothing")
            chat.type("1")
            await chat.shows("A name of mine (sess_")
            chat.press("\x04")
            assert await chat.ends() == 0
        [left] = await summaries(proxy)
        assert left["title"] == "A name of mine"


HOSTILE = "\x1b]52;c;b3duZWQ=\x07\x1b]0;owned\x07\x1b[2J\x9b31m\x1b]8;;http://x.test\x07link\u202egpj.\u2066"


async def test_no_text_of_an_agent_controls_the_terminal(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        escaped = "".join(f"\\u{ord(char):04x}" if not char.isprintable() else char for char in HOSTILE)
        say = f'[[fake:text say="{escaped} &#27;]0;owned&#7; [a](http://x.test/b)"]]'
        async with terminal(proxy.url, tmp_path, "--key", KEY, say) as chat:
            await chat.shows("http://x.test/b", times=2)
        shown = chat.shown.decode(errors="replace")
        assert r"\x1b]52;c;" in re.sub("\x1b\\[[0-9;]*m", "", shown)
        assert not set(shown) & set("\x07\x9b\u202e\u2066")
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown


async def test_an_interrupt_of_the_system_is_ctrl_c(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, terminal(proxy.url, tmp_path) as chat:
        await chat.shows("/help lists the commands")
        chat.process.send_signal(signal.SIGINT)
        await chat.shows("Ctrl-C again leaves.")
