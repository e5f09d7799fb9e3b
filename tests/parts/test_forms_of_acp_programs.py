"""What programs that speak ACP ask their user for, as a question of the session: forms, and pages to open."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.shared.forms import FormField, trouble_with
from codex_proxy.parts.sessions.turn_errors import expired
from tests.http.serving import Answer, fake_proxy
from tests.parts.managed_agents.following import ManagedClient, confirm
from tests.parts.sessions.approving import ASKING, KEY, answer_to
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_approvals import WAITS
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_summaries import summary

FORM: dict[str, Any] = {
    "mode": "form",
    "message": "Where to?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "minLength": 2, "default": "Rome"},
            "nights": {"type": "integer", "minimum": 1, "maximum": 30},
            "class": {
                "type": "string",
                "oneOf": [{"const": "1", "title": "First"}, {"const": "2", "title": "Second"}],
            },
            "meals": {"type": "array", "items": {"type": "string", "enum": ["lunch", "dinner"]}},
            "window": {"type": "boolean"},
        },
        "required": ["city"],
    },
}
GIVEN = {"city": "Oslo", "nights": 3, "class": "2", "meals": ["dinner"], "window": True}
URL = {"mode": "url", "elicitationId": "e1", "message": "Sign in.", "url": "https://example.com/sign-in?a=1"}


def prompt(asked: Any) -> str:
    return f"[[fake:text form='{json.dumps(asked)}']]"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path, **{**ASKING, "fake_dialect": "acp"}) as proxy:
        yield AgentsClient(proxy, KEY)


def folder_of(client: AgentsClient) -> Any:
    return hosted(Path(client.proxy.server.settings.workdir))


async def asked(client: AgentsClient, reader: Any) -> tuple[str, Any, Any]:
    """Waits for the question. Returns the session's id, the question and the required action."""
    session = (await reader.until(WAITS))["session"]
    (ask,) = (await summary(client, session["id"]))["asks"]
    (action,) = session["required_actions"]
    return session["id"], ask, action


async def answer(client: AgentsClient, id: str, ask: Any, decision: str = "approve", **more: Any) -> Answer:
    body = {"decision": decision, "digest": ask["digest"], **more}
    return await client.ask("POST", f"/sessions/{id}/asks/{ask['request_id']}", body)


def said(events: Any) -> Any:
    """What the agent was answered."""
    done = [event["item"] for event in events if event["type"].endswith("item.done")]
    texts = [part["text"] for item in done if item["type"] == "message" for part in item["content"]]
    return json.loads("".join(texts).partition("} ")[0] + "}")


async def test_a_form_is_a_question_with_its_fields_which_the_client_answers(client: AgentsClient) -> None:
    async with client.creation(prompt(FORM), **folder_of(client)) as reader:
        id, ask, action = await asked(client, reader)
        assert (ask["name"], ask["server_label"], ask["rule"]) == ("ask_user", "agent", None)
        assert ask["arguments"] == action["request"]["arguments"]
        assert ask["arguments"]["message"] == "Where to?"
        assert ask["arguments"]["fields"] == [
            {
                "name": "city",
                "type": "text",
                "title": "City",
                "required": True,
                "minimum": 2,
                "default": "Rome",
            },
            {"name": "nights", "type": "integer", "title": "nights", "minimum": 1, "maximum": 30},
            {
                "name": "class",
                "type": "choice",
                "title": "class",
                "options": [{"value": "1", "title": "First"}, {"value": "2", "title": "Second"}],
            },
            {
                "name": "meals",
                "type": "choices",
                "title": "meals",
                "options": [{"value": each, "title": each} for each in ("lunch", "dinner")],
            },
            {"name": "window", "type": "boolean", "title": "window"},
        ]
        assert (await answer(client, id, ask, content=GIVEN)).status == 202
        assert said(await reader.rest()) == {"action": "accept", "content": GIVEN}


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({}, "content.city"),
        ({"city": "O"}, "content.city"),
        ({"city": ["Oslo"]}, "content.city"),
        ({"city": "x" * 20_000}, "content.city"),
        ({**GIVEN, "nights": 31}, "content.nights"),
        ({**GIVEN, "nights": True}, "content.nights"),
        ({**GIVEN, "nights": 1.5}, "content.nights"),
        ({**GIVEN, "nights": 10**400}, "content.nights"),
        ({**GIVEN, "class": "3"}, "content.class"),
        ({**GIVEN, "class": {}}, "content.class"),
        ({**GIVEN, "meals": ["dinner", "dinner"]}, "content.meals"),
        ({**GIVEN, "meals": [["dinner"]]}, "content.meals"),
        ({**GIVEN, "window": "yes"}, "content.window"),
        ({**GIVEN, "rooms": 1}, "content.rooms"),
    ],
)
async def test_values_that_do_not_fit_are_refused_by_their_field(
    client: AgentsClient, content: Any, param: str
) -> None:
    async with client.creation(prompt(FORM), **folder_of(client)) as reader:
        id, ask, _ = await asked(client, reader)
        refused = await answer(client, id, ask, content=content)
        assert (refused.status, refused.error["param"]) == (400, param)
        assert (await answer(client, id, ask, "deny")).status == 202
        assert said(await reader.rest()) == {"action": "decline"}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (FormField("n", "number", "n", minimum=1, maximum=5.5), "give a number (from 1 up to 5.5)."),
        (FormField("n", "integer", "n", maximum=-1234567.0), "give a whole number (up to -1234567)."),
        (FormField("n", "choices", "n", minimum=1), "give a list of different options (options from 1)."),
    ],
)
def test_the_bounds_of_a_field_are_told_to_the_digit(field: FormField, said: str) -> None:
    assert trouble_with(field, [] if field.type == "choices" else 0) == said


def test_a_long_wait_is_told_to_the_second() -> None:
    assert "within 1234567 seconds" in expired(1234567.0).message
    assert "within 0.5 seconds" in expired(0.5).message


async def test_the_event_of_openais_api_declines_but_gives_no_values(client: AgentsClient) -> None:
    async with client.creation(prompt(FORM), **folder_of(client)) as reader:
        id, _, action = await asked(client, reader)
        refused = await client.refused(id, answer_to(action, "approve"))
        assert (refused.status, refused.error["param"]) == (400, "content.city")
        await client.send(id, answer_to(action, "deny"))
        assert said(await reader.rest()) == {"action": "decline"}


async def test_a_page_to_open_is_a_question_without_values(client: AgentsClient) -> None:
    async with client.creation(prompt(URL), **folder_of(client)) as reader:
        id, ask, _ = await asked(client, reader)
        assert (ask["name"], ask["arguments"]) == ("open_url", {"message": "Sign in.", "url": URL["url"]})
        assert (await answer(client, id, ask, content={"city": "Oslo"})).error["param"] == "content.city"
        assert (await answer(client, id, ask)).status == 202
        assert said(await reader.rest()) == {"action": "accept", "content": {}}


async def test_a_stop_cancels_the_form(client: AgentsClient) -> None:
    async with client.creation(prompt(FORM), **folder_of(client)) as reader:
        id, _, _ = await asked(client, reader)
        await client.send(id, {"type": "agent.session.input.cancel"})
        assert (await reader.rest())[-1]["type"] == "agent.session.idle"
        assert (await summary(client, id))["asks"] == []


async def test_a_permission_takes_no_values(client: AgentsClient) -> None:
    async with client.creation("[[fake:approval]]", **folder_of(client)) as reader:
        id, ask, _ = await asked(client, reader)
        refused = await answer(client, id, ask, content={"city": "Oslo"})
        assert (refused.status, refused.error["param"]) == (400, "content")
        assert (await answer(client, id, ask, "deny")).status == 202
        await reader.rest()


async def test_a_program_is_told_of_no_forms_where_nobody_is_asked(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session(prompt(FORM), **hosted(Path(proxy.server.settings.workdir)))
        items = await client.all(f"/sessions/{id}/items")
        assert "nobody to ask" in json.dumps(items)


def with_fields(properties: Any, **more: Any) -> Any:
    return FORM | {"requestedSchema": {"type": "object", "properties": properties, **more}}


HOSTILE = {
    "a thousand fields": with_fields({f"f{n}": {"type": "string"} for n in range(1000)}),
    "no fields": with_fields({}),
    "a list of fields": with_fields([1]),
    "no schema": FORM | {"requestedSchema": None},
    "a wrong type": with_fields({"city": {"type": {"type": "string"}}}),
    "an object": with_fields({"city": {"type": "object"}}),
    "a huge title": with_fields({"city": {"type": "string", "title": "x" * 100_000}}),
    "a huge name": with_fields({"x" * 1000: {"type": "string"}}),
    "a name that turns around": with_fields({"city\u202e": {"type": "string"}}),
    "long descriptions": with_fields(
        {f"f{n}": {"type": "string", "description": "x" * 3000} for n in range(30)}
    ),
    "ten thousand options": with_fields(
        {"city": {"type": "string", "enum": [str(n) for n in range(10_000)]}}
    ),
    "a required field that is not there": with_fields({"city": {"type": "string"}}, required=["town"]),
    "required fields that are none": with_fields({"city": {"type": "string"}}, required="city"),
    "a list without options": with_fields({"city": {"type": "array", "items": {"type": "string"}}}),
    "a huge message": FORM | {"message": "x" * 100_000},
    "no message": FORM | {"message": {}},
    "no known kind": FORM | {"mode": "browser"},
    "a script": URL | {"url": "javascript:alert(1)"},
    "a file": URL | {"url": "file:///etc/passwd"},
    "data": URL | {"url": "data:text/html,<script>alert(1)</script>"},
    "a hidden host": URL | {"url": "https://bank.example@evil.example/"},
    "letters like others": URL | {"url": "https://b\u0430nk.example/"},
    "a line break": URL | {"url": "https://bank.example/\nhttps://evil.example"},
    "a backslash": URL | {"url": "https://evil.example\\@bank.example/"},
    "no host": URL | {"url": "https:///sign-in"},
    "half an address": URL | {"url": "https://[::1"},
    "a huge address": URL | {"url": "https://example.com/" + "x" * 10_000},
    "a number": URL | {"url": 1},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_form_is_declined_and_nobody_is_shown_it(client: AgentsClient, name: str) -> None:
    id = await client.idle_session(prompt(HOSTILE[name]), **folder_of(client))
    items = await client.all(f"/sessions/{id}/items")
    assert '{\\"action\\": \\"decline\\"}' in json.dumps(items)


async def test_anthropics_api_shows_and_declines_a_form_and_opens_a_page_but_gives_no_values(
    client: AgentsClient,
) -> None:
    managed = ManagedClient(client.proxy, KEY)
    for asked_of, name in ((FORM, "ask_user"), (URL, "open_url")):
        async with client.creation(prompt(asked_of), **folder_of(client)) as reader:
            id, ask, _ = await asked(client, reader)
            *_, shown, idle = await managed.events(id)
            assert (shown["type"], shown["name"], shown["input"]) == (
                "agent.tool_use",
                name,
                ask["arguments"],
            )
            assert idle["stop_reason"] == {"type": "requires_action", "event_ids": [shown["id"]]}
            if name == "ask_user":
                allowed = {"events": [confirm(shown["id"])]}
                refused = await managed.refused(400, f"/sessions/{id}/events", allowed)
                assert refused.startswith("events[0].result: the form needs values")
                assert f"/asks/{ask['request_id']}." in refused
                await managed.send(id, confirm(shown["id"], "deny"))
                assert said(await reader.rest()) == {"action": "decline"}
            else:
                await managed.send(id, confirm(shown["id"]))
                assert said(await reader.rest()) == {"action": "accept", "content": {}}
            told = [each for each in await managed.events(id) if each["type"] == "user.tool_confirmation"]
            assert [each["tool_use_id"] for each in told] == [shown["id"]]
