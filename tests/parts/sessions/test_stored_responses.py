"""Sessions that go on with a stored response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.keyed import key_header, key_of, write_keys
from tests.http.serving import Answer, fake_proxy
from tests.parts.sessions.driving import BETA, WEATHER, AgentsClient, check_object, message
from tests.parts.sessions.test_forks import items_of
from tests.parts.sessions.test_summaries import summary
from tests.pictures import png_of, url_of


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


async def respond(client: AgentsClient, input: Any, **more: Any) -> dict[str, Any]:
    """A stored response."""
    body = {"model": "codex-5", "input": input, **more}
    answer = await client.proxy.send("POST", "/v1/responses", body)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.body
    return found


async def to_session(client: AgentsClient, id: str, body: Any = None, **headers: str) -> Answer:
    return await client.proxy.send("POST", f"/v1/responses/{id}/session", body, headers=BETA | headers)


async def session_of(client: AgentsClient, id: str, **fields: Any) -> dict[str, Any]:
    answer = await to_session(client, id, fields)
    assert answer.status == 201, answer.text
    check_object(answer.body)
    made: dict[str, Any] = answer.body
    return made


def said(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["role"], each["content"][0]["text"]) for each in items if each["type"] == "message"]


async def test_a_session_goes_on_with_a_response_and_what_that_continued(client: AgentsClient) -> None:
    first = await respond(client, "[[fake:text say='One.']]", instructions="Be brief.")
    second = await respond(
        client, "[[fake:text say='Two.']]", previous_response_id=first["id"], instructions="Be brief."
    )
    made = await session_of(client, second["id"])
    assert made["agent"]["instructions"] == "Be brief."
    assert (made["status"], made["environment"]) == ("idle", {"type": "none"})
    assert said(await items_of(client, made["id"])) == [
        ("user", "[[fake:text say='One.']]"),
        ("assistant", "One."),
        ("user", "[[fake:text say='Two.']]"),
        ("assistant", "Two."),
    ]
    turns = await client.all(f"/sessions/{made['id']}/turns")
    assert [turn["status"] for turn in turns] == ["completed", "completed"]
    assert (await summary(client, made["id"]))["title"] == "[[fake:text say='One.']]"
    events = await client.turn(made["id"], message("And then?"))
    assert events[-2]["type"] == "agent.session.turn.completed"


async def test_calls_with_results_images_and_developers_words_are_kept(client: AgentsClient) -> None:
    pixel = url_of(png_of())
    tool = {**WEATHER, "strict": False}
    first = await respond(
        client,
        [
            {"role": "developer", "content": "Use the tool."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "[[fake:tool_call]]"},
                    {"type": "input_image", "image_url": pixel},
                ],
            },
        ],
        tools=[tool],
    )
    call = next(each for each in first["output"] if each["type"] == "function_call")
    waits = await session_of(client, first["id"])
    assert "function_call" not in [each["type"] for each in await items_of(client, waits["id"])]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = await respond(client, [output], previous_response_id=first["id"], tools=[tool])
    made = await session_of(client, second["id"])
    assert made["agent"]["instructions"] == "Use the tool."
    assert [each["name"] for each in made["agent"]["tools"]] == ["get_weather"]
    items = await items_of(client, made["id"])
    assert items[0]["content"][1] == {"type": "input_image", "image_url": pixel}
    (known,) = [each for each in items if each["type"] == "function_call"]
    (result,) = [each for each in items if each["type"] == "function_call_output"]
    assert (known["call_id"], known["status"]) == (result["call_id"], "completed")
    assert result["output"] == "sunny"


async def test_a_result_behind_a_message_is_kept_with_its_call(client: AgentsClient) -> None:
    tool = {**WEATHER, "strict": False}
    first = await respond(client, "[[fake:tool_call]]", tools=[tool])
    call = next(each for each in first["output"] if each["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    words = {
        "role": "user",
        "content": [{"type": "input_text", "text": ""}, {"type": "input_text", "text": "And hurry."}],
    }
    second = await respond(client, [words, output], previous_response_id=first["id"], tools=[tool])
    items = await items_of(client, (await session_of(client, second["id"]))["id"])
    assert {"function_call", "function_call_output"} <= {each["type"] for each in items}
    said = [each["content"] for each in items if each.get("role") == "user"]
    assert [part["text"] for part in said[-1]] == ["", "And hurry."]


async def test_a_response_of_a_conversation_brings_all_of_it(client: AgentsClient) -> None:
    conversation = (await client.proxy.send("POST", "/v1/conversations", {})).body["id"]
    await respond(client, "[[fake:text say='One.']]", conversation=conversation)
    last = await respond(client, "[[fake:text say='Two.']]", conversation=conversation)
    made = await session_of(client, last["id"])
    texts = [text for _, text in said(await items_of(client, made["id"]))]
    assert texts == ["[[fake:text say='One.']]", "One.", "[[fake:text say='Two.']]", "Two."]


async def test_the_session_may_have_a_folder_and_a_sandbox(client: AgentsClient, tmp_path: Path) -> None:
    response = await respond(client, "Hello.")
    folder = {"type": "self_hosted", "workspace_directory": str(tmp_path)}
    made = await session_of(client, response["id"], environment=folder)
    found = await summary(client, made["id"])
    assert (found["folder"], found["mode"], found["sandbox"]) == (str(tmp_path), "agent", "read-only")
    wrong = {"type": "self_hosted", "workspace_directory": "/"}
    refused = await to_session(client, response["id"], {"environment": wrong})
    assert (400 <= refused.status < 500, refused.error["param"]) == (
        True,
        "environment.workspace_directory",
    )
    refused = await to_session(client, response["id"], **{"X-Codex-Sandbox": "danger-full-access"})
    assert (refused.status, refused.error["param"]) == (403, "X-Codex-Sandbox")


async def test_a_response_that_is_not_there_or_anothers_is_a_404(tmp_path: Path) -> None:
    write_keys(tmp_path, one={}, other={})
    async with fake_proxy(tmp_path) as proxy:
        body = {"model": "codex-5", "input": "Hello."}
        made = await proxy.send("POST", "/v1/responses", body, headers=key_header("one"))
        client = AgentsClient(proxy, key_of("other"))
        for id in (made.body["id"], "resp_none"):
            assert (await to_session(client, id, **key_header("other"))).status == 404
        assert (await to_session(client, made.body["id"], **key_header("one"))).status == 201


async def test_a_response_that_runs_is_refused(client: AgentsClient) -> None:
    running = await respond(client, "[[fake:silent]]", background=True)
    answer = await to_session(client, running["id"])
    assert answer.status == 409
    await client.proxy.send("POST", f"/v1/responses/{running['id']}/cancel")
