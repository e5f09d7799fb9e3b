"""What an agent asks permission for is decided by the person at the MCP client, and by no tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client import Client
from mcp_types import ElicitRequestFormParams, ElicitResult, ErrorData

from codex_proxy.agents.shared.forms import form_schema, read_form
from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.mcp_server import questions
from codex_proxy.parts.mcp_server.depth import BY_AGENT_HEADER
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.approvals import Ask
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.sessions.sessions import Session
from tests.http.serving import Proxy, fake_proxy
from tests.parts.mcp_server.driving import NEW, OLD, called, mcp_client
from tests.parts.mcp_server.test_stdio import connected
from tests.parts.sessions.approving import ASKING, KEY, START_KEY, answer, keyless_proxy, shown
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_approvals import with_keys
from tests.parts.test_forms_of_acp_programs import FORM, GIVEN, prompt
from tests.waiting import PATIENCE, eventually

ASKS = "[[fake:approval]]"
BOTH = pytest.mark.parametrize("mode", [OLD, NEW])


class Person:
    """The person at a client, who is shown forms and decides."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.shown: list[str] = []
        self.schemas: list[dict[str, Any]] = []
        self.withdrawn = False
        self.may_decide = asyncio.Event()
        self.may_decide.set()

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.shown.append(params.message)
        self.schemas.append(params.requested_schema)
        try:
            await self.may_decide.wait()
        except asyncio.CancelledError:
            self.withdrawn = True
            raise
        return ElicitResult(**self.answer)


def decides(decision: str) -> Person:
    return Person(action="accept", content={"decision": decision})


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        yield proxy


async def started(client: Client, prompt: str = ASKS) -> str:
    return str((await called(client, "start_session", prompt=prompt))["session_id"])


async def commands(proxy: Proxy, id: str, key: str = KEY) -> list[str]:
    """The states of the commands of a session."""
    items = await AgentsClient(proxy, key).all(f"/sessions/{id}/items")
    return [item["status"] for item in items if item["type"] == "command_execution"]


async def answered(proxy: Proxy, id: str) -> Any:
    """The answer to its form, which the agent of a session repeats."""
    items = await AgentsClient(proxy, KEY).all(f"/sessions/{id}/items")
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    return json.loads(next(text for text in texts if text.startswith('{"action"')).partition("} ")[0] + "}")


@BOTH
@pytest.mark.parametrize(("decision", "status"), [("approve", "completed"), ("deny", "failed")])
async def test_the_person_is_shown_what_is_asked_and_decides(
    asking: Proxy, mode: str, decision: str, status: str
) -> None:
    person = decides(decision)
    async with mcp_client(asking, KEY, mode=mode, elicitation_callback=person) as client:
        id = await started(client)
        ended = await called(client, "wait_session", session_id=id)
    assert ended["state"] == "finished"
    assert (await commands(asking, id))[0] == status
    (shown,) = person.shown
    assert '"command":"/bin/bash -lc \'rm -rf build\'"' in shown
    assert "SHA-256: " in shown


async def test_a_wait_that_has_read_the_session_before_the_answer_asks_nobody_again(
    asking: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, person, before = Sessions.session, decides("deny"), list[Session]()

    async def late(sessions: Sessions, owner: str, id: str) -> Session:
        session = await read(sessions, owner, id)
        if session.open_asks and not before:
            before.extend([session] * 3)
        return before.pop() if before else session

    monkeypatch.setattr(Sessions, "session", late)
    async with mcp_client(asking, KEY, elicitation_callback=person) as client:
        id = await started(client)
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
    assert len(person.shown) == 1


@BOTH
async def test_with_the_key_of_this_start_the_person_decides(tmp_path: Path, mode: str) -> None:
    person = decides("approve")
    async with (
        keyless_proxy(tmp_path) as proxy,
        mcp_client(proxy, START_KEY, mode=mode, elicitation_callback=person) as client,
    ):
        id = await started(client)
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
        assert (await commands(proxy, id, START_KEY))[0] == "completed"
    assert len(person.shown) == 1


@BOTH
async def test_over_stdio_too_the_person_decides(asking: Proxy, mode: str) -> None:
    person = decides("approve")
    async with connected(asking.url, "--key", KEY, mode=mode, elicitation_callback=person) as client:
        id = await started(client)
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
    assert (await commands(asking, id))[0] == "completed"


@BOTH
async def test_the_person_fills_in_a_form_of_an_acp_program(tmp_path: Path, mode: str) -> None:
    person = Person(action="accept", content=GIVEN)
    async with (
        fake_proxy(tmp_path, **{**ASKING, "fake_dialect": "acp"}) as proxy,
        mcp_client(proxy, KEY, mode=mode, elicitation_callback=person) as client,
    ):
        id = await started(client, prompt(FORM))
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
        assert await answered(proxy, id) == {"action": "accept", "content": GIVEN}
    (shown,), (schema,) = person.shown, person.schemas
    assert "Where to?" in shown
    assert schema["required"] == ["city"]
    wanted = FORM["requestedSchema"]["properties"]
    assert {name: schema["properties"][name] | wanted[name] for name in wanted} == schema["properties"]


@BOTH
async def test_values_that_do_not_fit_are_asked_for_once_more_in_the_next_wait(
    tmp_path: Path, mode: str
) -> None:
    person = Person(action="accept", content={"city": "O"})
    async with (
        asyncio.timeout(PATIENCE),
        fake_proxy(tmp_path, **{**ASKING, "fake_dialect": "acp"}) as proxy,
        mcp_client(proxy, KEY, mode=mode, elicitation_callback=person) as client,
    ):
        id = await started(client, prompt(FORM))
        waits = await called(client, "wait_session", session_id=id)
        assert waits["state"] == "waits_for_a_person"
        assert len(person.shown) == 1
        person.answer = {"action": "accept", "content": {"city": "Oslo", "nights": None}}
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
        assert await answered(proxy, id) == {"action": "accept", "content": {"city": "Oslo"}}
    assert [text.startswith("The field 'city': ") for text in person.shown] == [False, True]


async def test_a_client_that_breaks_at_a_form_is_asked_once_in_a_wait(asking: Proxy) -> None:
    shown = list[str]()

    async def breaks(_: Any, params: Any) -> ErrorData:
        shown.append(params.message)
        return ErrorData(code=-32602, message="No such form.")

    async with asyncio.timeout(PATIENCE), mcp_client(asking, KEY, elicitation_callback=breaks) as client:
        id = await started(client)
        for count in (1, 2):
            assert (await called(client, "wait_session", session_id=id))["state"] == "waits_for_a_person"
            assert len(shown) == count


HIDDEN = "no\u202e\u001b[2J"
SEEN = r"no\\u202e\\x1b[2J"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (
            {"type": "string", "enum": ["yes", HIDDEN], "default": HIDDEN},
            '"oneOf":[{"const":"yes","title":"yes"},{"const":"no\u202e\\u001b[2J","title":"' + SEEN + '"}]',
        ),
        ({"type": "string", "default": HIDDEN}, ""),
        ({"type": "string", "default": "yes", "minLength": 2.0}, '"minLength":2,"default":"yes"'),
        ({"type": "integer", "minimum": 1.5, "maximum": 3.5}, '"minimum":2,"maximum":3'),
        ({"type": "number", "maximum": 3.5}, '"maximum":3.5'),
        (
            {"type": "array", "items": {"enum": [HIDDEN]}, "default": [HIDDEN], "maxItems": 1.0},
            '"maxItems":1,"items":{"anyOf":[{"const":"no\u202e\\u001b[2J","title":"' + SEEN + '"}]}',
        ),
    ],
)
def test_a_form_shows_every_character_and_has_whole_bounds(schema: dict[str, Any], shown: str) -> None:
    found = form_schema(read_form({"properties": {"one": schema}}))["properties"]["one"]
    beginning = f'{{"type":"{schema["type"]}","title":"one"'
    assert encode_json(found).decode() == ",".join(filter(None, (beginning, shown))) + "}"


@pytest.mark.parametrize(
    ("schema", "since"),
    [
        ({"type": "string", "enum": ["a"]}, "2025-06-18"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, "2025-11-25"),
        ({"type": "array", "items": {"enum": ["a"]}}, "2025-11-25"),
    ],
)
def test_a_form_with_lists_or_titled_options_goes_to_clients_that_know_them(
    schema: dict[str, Any], since: str
) -> None:
    fields = read_form({"properties": {"one": schema}})
    arguments = {"message": "?", "fields": msgspec.to_builtins(fields)}
    ask = Ask("r", "a", "t", "agent", "ask_user", arguments, "m", is_form=True)
    assert questions.can_show(ask, "2025-06-18") == (since == "2025-06-18")
    assert questions.can_show(ask, "2025-11-25")


@BOTH
async def test_a_form_of_an_acp_program_is_declined(tmp_path: Path, mode: str) -> None:
    person = Person(action="decline")
    async with (
        fake_proxy(tmp_path, **{**ASKING, "fake_dialect": "acp"}) as proxy,
        mcp_client(proxy, KEY, mode=mode, elicitation_callback=person) as client,
    ):
        id = await started(client, prompt(FORM))
        await called(client, "wait_session", session_id=id)
        assert await answered(proxy, id) == {"action": "decline"}


@BOTH
async def test_without_forms_the_wait_says_that_a_person_has_to_decide(asking: Proxy, mode: str) -> None:
    async with mcp_client(asking, KEY, mode=mode) as client:
        id = await started(client)
        ended = await called(client, "wait_session", session_id=id)
        assert ended["state"] == "waits_for_a_person"
        (question,) = ended["waits_for"]
        assert "rm -rf build" in question["message"]
        assert "no tool can" in ended["next"]


async def test_a_session_that_waits_for_a_person_is_stopped(asking: Proxy) -> None:
    async with mcp_client(asking, KEY) as client:
        id = await started(client)
        assert (await called(client, "wait_session", session_id=id))["state"] == "waits_for_a_person"
        said = (await called(client, "continue_session", session_id=id, prompt="Hello."))["said"]
        assert said == "The agent works, and gets the message."
        stopped = await called(client, "stop_session", session_id=id)
    assert stopped["state"] != "waits_for_a_person"
    assert "waits_for" not in stopped


@BOTH
@pytest.mark.parametrize("action", ["cancel", "decline"])
async def test_a_form_that_is_closed_decides_nothing_and_one_that_is_declined_denies(
    asking: Proxy, mode: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WAIT_SECONDS", 0.5)
    person = Person(action=action)
    async with mcp_client(asking, KEY, mode=mode, elicitation_callback=person) as client:
        id = await started(client)
        states = [(await called(client, "wait_session", session_id=id))["state"]]
        if action == "cancel":
            assert states == ["waits_for_a_person"]
            assert await commands(asking, id) == []
        else:
            while states[-1] != "finished":
                states.append((await called(client, "wait_session", session_id=id))["state"])
            assert (await commands(asking, id))[0] == "failed"


async def test_a_form_stays_open_while_waits_come_and_go(
    asking: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = decides("approve")
    person.may_decide.clear()
    async with mcp_client(asking, KEY, elicitation_callback=person) as client:
        id = await started(client)
        monkeypatch.setattr(questions, "WAIT_SECONDS", 0.3)
        for _ in range(2):
            assert (await called(client, "wait_session", session_id=id))["state"] == "waits_for_a_person"
        monkeypatch.undo()
        person.may_decide.set()
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
    assert len(person.shown) == 1
    assert (await commands(asking, id))[0] == "completed"


@BOTH
async def test_a_question_that_is_answered_elsewhere_while_the_form_is_open_ends_the_wait(
    asking: Proxy, mode: str
) -> None:
    person, agents = decides("deny"), AgentsClient(asking, KEY)
    person.may_decide.clear()
    async with mcp_client(asking, KEY, mode=mode, elicitation_callback=person) as client:
        id = await started(client)
        waiting = asyncio.create_task(called(client, "wait_session", session_id=id))
        await eventually(lambda: person.shown)
        (ask,) = await shown(agents, id)
        assert (await answer(agents, id, ask, "approve")).status == 202
        if mode == NEW:
            person.may_decide.set()
        assert (await waiting)["state"] == "finished"
        assert (await commands(asking, id))[0] == "completed"
        if mode == OLD:
            await eventually(lambda: person.withdrawn)


async def test_a_wait_ends_when_the_person_closes_the_form(
    asking: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WAIT_SECONDS", PATIENCE * 2)
    person = Person(action="cancel")
    async with asyncio.timeout(PATIENCE), mcp_client(asking, KEY, elicitation_callback=person) as client:
        id = await started(client)
        person.may_decide.clear()
        waiting = asyncio.create_task(called(client, "wait_session", session_id=id))
        await eventually(lambda: person.shown)
        person.may_decide.set()
        assert (await waiting)["state"] == "waits_for_a_person"


@BOTH
async def test_a_client_that_is_an_agent_is_asked_nothing(asking: Proxy, mode: str) -> None:
    person, mark = decides("approve"), {BY_AGENT_HEADER: "1"}
    async with mcp_client(asking, KEY, mode=mode, headers=mark, elicitation_callback=person) as client:
        id = await started(client)
        assert (await called(client, "wait_session", session_id=id))["state"] == "waits_for_a_person"
    assert person.shown == []


async def test_a_key_that_may_not_approve_is_asked_nothing(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one may_approve=true", "two")
    person = decides("approve")
    async with (
        fake_proxy(tmp_path, **{**ASKING, "api_key": None, **keys}) as proxy,
        mcp_client(proxy, "two", elicitation_callback=person) as client,
    ):
        await called(client, "wait_session", session_id=await started(client))
    assert person.shown == []


@BOTH
async def test_another_question_than_the_one_that_was_shown_is_not_answered(
    asking: Proxy, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(Ask, "digest", property(lambda _: next(digests)))
    digests = iter([f"{number:064x}" for number in range(1000)])
    person = decides("approve")
    async with mcp_client(asking, KEY, mode=mode, elicitation_callback=person) as client:
        id = await started(client)
        await client.call_tool("wait_session", {"session_id": id})
        assert person.shown
        assert await commands(asking, id) == []


def test_a_form_has_the_exact_text_and_one_that_is_too_long_is_none() -> None:
    session = Session(
        id="s", created_at=0, last_active_at=0, agent_id="a", agent=AgentSettings(model="m"), environment={}
    )
    ask = Ask("r", "a", "t", "agent", "run_command", {"command": "echo \u202e\x1b[1m"}, "m")
    text = questions.text_of(session, ask)
    assert '{"command":"echo \\u202e\\u001b[1m"}' in text
    assert ask.digest in text
    long = Ask("r", "a", "t", "agent", "run_command", {"command": "x" * questions.MAX_SHOWN}, "m")
    assert questions.text_of(session, long) == ""
