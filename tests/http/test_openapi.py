"""GET /openapi.json: it describes what is served, all of it, and its schemas say what the parsers say."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from codex_proxy import __version__
from codex_proxy.core.faults import Fault
from codex_proxy.http.endpoint import served_endpoints
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.surfaces.chat import parse as chat
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.requests.body import parse_as
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from codex_proxy.surfaces.responses import parse as responses
from codex_proxy.surfaces.responses.wire import ResponseRequest
from scripts.gen_api import whole_document
from tests.fuzz.requests import CHAT, ITEMS, LEGACY, RESPONSE, corrupt_bodies
from tests.http.serving import Proxy, fake_proxy
from tests.surfaces.catalogs import catalog_of


@pytest.fixture
async def full_proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A server with every route that there is."""
    async with fake_proxy(tmp_path, metrics=True, test_endpoints=True, ui=True) as proxy:
        yield proxy


def routes_of(found: dict[str, Any]) -> set[tuple[str, str]]:
    """Every method and whole path that a document tells of."""
    return {
        (method.upper(), server["url"].rstrip("/") + path)
        for path, item in found["paths"].items()
        for server in item.get("servers", found["servers"])
        for method in item
        if method != "servers"
    }


async def test_every_route_is_in_the_document_and_the_other_way_round(full_proxy: Proxy) -> None:
    found = (await full_proxy.send("GET", "/openapi.json")).body
    runner = full_proxy.server.runner
    assert runner is not None
    app = runner.app
    own = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert routes_of(found) == own
    assert set(served_endpoints(app)) == set(ENDPOINTS)


async def test_endpoints_that_are_switched_off_are_not_in_the_document(proxy: Proxy) -> None:
    found = (await proxy.send("GET", "/openapi.json")).body
    missing = set(whole_document()["paths"]) - set(found["paths"])
    assert {path for path in missing if not path.startswith("/ui/")} == {
        "/metrics",
        "/__test/conc",
        "/__test/conc/release",
    }
    assert (found["openapi"], found["info"]["version"]) == ("3.1.0", __version__)


async def test_the_document_needs_no_key_but_the_right_host_name(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="a-key", max_chat_choices=3) as proxy:
        answer = await proxy.send("GET", "/openapi.json")
        assert answer.status == 200
        assert "a-key" not in answer.text
        n = answer.body["components"]["schemas"]["ChatRequest"]["properties"]["n"]
        assert n["anyOf"][0]["maximum"] == 3
        refused = await proxy.send("GET", "/openapi.json", headers={"Host": "elsewhere.example"})
        assert refused.status == 403


@pytest.mark.exhaustive
def test_a_server_starts_without_making_the_document() -> None:
    program = (
        "import sys, codex_proxy.app.server; print([name for name in sys.modules if 'http.openapi.' in name])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_every_reference_has_a_target_and_every_component_is_referred_to() -> None:
    text = msgspec.json.encode(whole_document()).decode()
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert referred <= set(whole_document()["components"]["schemas"])
    assert set(whole_document()["components"]["schemas"]) == referred


def test_every_handler_says_in_its_docstring_what_its_endpoint_does() -> None:
    summaries = {endpoint.name: endpoint.summary for endpoint in ENDPOINTS}
    assert [name for name, summary in summaries.items() if not summary.endswith(".")] == []
    assert [name for name, summary in summaries.items() if "`Fault`" in summary] == []


def test_every_body_has_a_name_of_its_own() -> None:
    bodies = {endpoint.body for endpoint in ENDPOINTS if isinstance(endpoint.body, type)}
    assert len({body.__name__ for body in bodies}) == len(bodies)


def test_every_operation_has_a_name_of_its_own_and_parameters_for_its_path() -> None:
    names = [endpoint.name for endpoint in ENDPOINTS]
    assert len(set(names)) == len(names)
    for endpoint in ENDPOINTS:
        in_path = {parameter.name for parameter in endpoint.all_parameters if parameter.place == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", endpoint.path)), endpoint.path


# --- the schemas of bodies and the parsers --------------------------------------------------------


def says(name: str) -> Any:
    """A validator of one component."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": whole_document()["components"]}
    return jsonschema.Draft202012Validator(schema)


CHAT_SCHEMA, RESPONSE_SCHEMA = says("ChatRequest"), says("ResponseRequest")
CATALOG = catalog_of(any_model=True)


def as_json(body: dict[str, Any]) -> bytes:
    """As JSON; the standard library's encoder takes lone surrogates and integers of any size."""
    return json.dumps(body).encode()


def refusal_of(parse: Any, body: dict[str, Any]) -> str:
    """Why the parser refuses it; empty where it takes it."""
    try:
        parse(as_json(body))
    except Fault as fault:
        return fault.failure.message
    return ""


def complaints(schema: Any, body: dict[str, Any]) -> list[str]:
    """Where the schema refuses it."""
    return [error.json_path for error in schema.iter_errors(body)]


def parse_chat(body: bytes) -> None:
    chat.parse(body, context=ParseContext(RequestSettings(structured_output=True), CATALOG, RequestHints()))


def parse_response(body: bytes) -> None:
    responses.parse(body, context=ParseContext(RequestSettings(), CATALOG, RequestHints()))


@pytest.mark.parametrize("body", [CHAT, LEGACY])
def test_a_chat_request_with_everything_is_right_to_both(body: dict[str, Any]) -> None:
    assert [error.message for error in CHAT_SCHEMA.iter_errors(body)] == []
    parse_chat(as_json(body))


@pytest.mark.parametrize("body", [RESPONSE, ITEMS])
def test_a_response_request_with_everything_is_right_to_both(body: dict[str, Any]) -> None:
    assert [error.message for error in RESPONSE_SCHEMA.iter_errors(body)] == []
    parse_response(as_json(body))


MANY = settings(
    max_examples=min(2 * settings().max_examples, 250),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@MANY
@given(corrupt_bodies(CHAT, LEGACY))
def test_the_schema_and_the_parser_of_chat_refuse_the_same(body: dict[str, Any]) -> None:
    # What several fields or the meaning of a text decide is refused behind the types.
    found = complaints(CHAT_SCHEMA, body)
    assert bool(refusal_of(parse_chat if found else functools.partial(parse_as, ChatRequest), body)) == bool(
        found
    ), found


@pytest.mark.exhaustive
@MANY
@given(corrupt_bodies(RESPONSE, ITEMS))
def test_the_schema_and_the_parser_of_responses_refuse_the_same(body: dict[str, Any]) -> None:
    found = complaints(RESPONSE_SCHEMA, body)
    parse = parse_response if found else functools.partial(parse_as, ResponseRequest)
    assert bool(refusal_of(parse, body)) == bool(found), found


UNHEARD = [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]
SEARCH = [{"type": "web_search"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"logprobs": True},
        {"logprobs": 3},
        {"top_logprobs": 0},
        {"audio": {}},
        {"modalities": ["text", "audio"]},
        {"n": 0},
        {"n": 6},
    ],
    ids=str,
)
def test_a_field_that_chat_always_refuses_is_no_part_of_its_schema(fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    assert refusal_of(parse_chat, body)
    assert complaints(CHAT_SCHEMA, body)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": UNHEARD},
        {"input": [{"id": "x", "role": "nobody", "content": "x"}]},
        {"prompt": {"id": "x"}},
        {"top_logprobs": 1},
        {"include": ["message.output_text.logprobs"]},
        {"conversation": "x"},
        {"conversation": {"id": "x"}},
        {"tools": [{"type": "computer"}]},
        {"tools": SEARCH, "tool_choice": {"type": "computer"}},
    ],
    ids=str,
)
def test_a_field_that_responses_always_refuses_is_no_part_of_its_schema(fields: dict[str, Any]) -> None:
    body = {"model": "codex-5", "input": "x", **fields}
    assert refusal_of(parse_response, body)
    assert complaints(RESPONSE_SCHEMA, body)


# --- the schemas of answers and a server ----------------------------------------------------------


def validator_of(method: str, path: str, status: int) -> Any:
    """A validator of what the document says of an answer."""
    content = whole_document()["paths"][path][method.lower()]["responses"][str(status)]["content"]
    schema = {**content["application/json"]["schema"], "components": whole_document()["components"]}
    return jsonschema.Draft202012Validator(schema)


TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
USER_MESSAGE = {"role": "user", "content": "Hello."}


@pytest.mark.exhaustive
async def test_stored_objects_are_answered_as_described(full_proxy: Proxy) -> None:
    async def send(method: str, path: str, body: Any = None, /, status: int = 200, **names: str) -> Any:
        answer = await full_proxy.send(method, "/v1" * (path in PREFIXED) + path.format(**names), body)
        assert answer.status == status, answer.text
        complaints = [error.message for error in validator_of(method, path, status).iter_errors(answer.body)]
        assert complaints == [], path
        return answer.body

    turn = {"model": "codex-5", "tools": [TOOL], "metadata": {"a": "b"}, "reasoning": {"effort": "low"}}
    made = await send("POST", "/responses", {**turn, "input": "[[fake:tool_call]]"})
    assert [item["type"] for item in made["output"]] == ["function_call"]
    await send("POST", "/responses", {**turn, "input": "[[fake:refusal]]", "user": "somebody"})
    cut = await send("POST", "/responses", {"model": "codex-5", "input": "[[fake:length]]"})
    assert cut["incomplete_details"] is not None
    behind = await send("POST", "/responses", {"model": "codex-5", "input": "Hello.", "background": True})
    await send("POST", "/responses/{id}/cancel", id=behind["id"])
    await send("POST", "/responses/{id}/cancel", status=400, id=made["id"])
    await send("GET", "/responses/{id}", id=made["id"])
    await send("GET", "/responses/{id}/input_items", id=made["id"])
    await send("POST", "/responses/compact", {"model": "codex-5", "input": "Hello."})
    await send("POST", "/responses/input_tokens", {"model": "codex-5", "input": "Hello."})
    await send("DELETE", "/responses/{id}", id=made["id"])
    await send("GET", "/responses/{id}", status=404, id=made["id"])
    talk = (await send("POST", "/conversations", {"items": [USER_MESSAGE], "metadata": {"a": "b"}}))["id"]
    await send("POST", "/responses", {"model": "codex-5", "input": "Hello.", "conversation": talk})
    await send("POST", "/conversations/{id}", {"metadata": {"a": None}}, id=talk)
    (item,) = (await send("POST", "/conversations/{id}/items", {"items": [USER_MESSAGE]}, id=talk))["data"]
    assert len((await send("GET", "/conversations/{id}/items", id=talk))["data"]) == 4
    await send("GET", "/conversations/{id}/items/{item_id}", id=talk, item_id=item["id"])
    await send("DELETE", "/conversations/{id}/items/{item_id}", id=talk, item_id=item["id"])
    await send("GET", "/conversations/{id}", id=talk)
    await send("DELETE", "/conversations/{id}", id=talk)
    for text in ("[[fake:tool_calls]]", "[[fake:refusal]]", "[[fake:reasoning]]", "[[fake:usage_missing]]"):
        await send("POST", "/chat/completions", {"messages": [{"role": "user", "content": text}]})
    await send("GET", "/models")
    await send("GET", "/models/{id}", id="codex-5")
    await send("GET", "/usage")
    for path in ("/v1", "/healthz", "/livez", "/readyz", "/__test/conc", "/openapi.json"):
        await send("GET", path)


PREFIXED = {endpoint.path for endpoint in ENDPOINTS if endpoint.versioned}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    "scenario", ["text", "tool_calls", "function_call", "refusal", "reasoning", "multi_choice"]
)
async def test_frames_of_chat_are_as_described(full_proxy: Proxy, scenario: str) -> None:
    body = {
        "messages": [{"role": "user", "content": f"[[fake:{scenario}]]"}],
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    frames = (await full_proxy.ask(body)).frames
    assert frames.pop() == "[DONE]"
    for frame in frames:
        assert complaints(says("ChatCompletionChunk"), frame) == []


async def test_a_frame_of_an_error_is_the_envelope(full_proxy: Proxy) -> None:
    body = {"messages": [{"role": "user", "content": "[[fake:error_mid_text]]"}], "stream": True}
    *_, error, done = (await full_proxy.ask(body)).frames
    assert done == "[DONE]"
    assert complaints(says("Error"), error) == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    "scenario", ["text", "tool_calls", "refusal", "reasoning", "activity", "error_mid_text"]
)
async def test_events_of_responses_are_as_described(full_proxy: Proxy, scenario: str) -> None:
    body = {"model": "codex-5", "input": f"[[fake:{scenario}]]", "stream": True, "store": False}
    answer = await full_proxy.send("POST", "/v1/responses", body)
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert complaints(says("ResponseEvent"), event) == []
        if "response" in event:
            assert complaints(says("Response"), event["response"]) == []


@pytest.mark.part("managed_agents")
def test_every_operation_has_an_answer_without_error_unless_it_only_refuses() -> None:
    without = [
        operation["operationId"]
        for item in whole_document()["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict) and not any(status < "400" for status in operation["responses"])
    ]
    of_openai = ["create_environments", "create_templates", "create_automations", "create_vaults"]
    assert without == [*of_openai, "archive_session_thread"]


@pytest.mark.part("sessions")
def test_the_agents_api_is_described_with_its_header_its_filters_and_its_conflicts() -> None:
    paths = whole_document()["paths"]
    sessions = {each["name"]: each for each in paths["/agents/sessions"]["get"]["parameters"]}
    assert sessions["OpenAI-Beta"]["required"]
    assert sessions["OpenAI-Beta"]["schema"] == {"const": "agents=v1"}
    assert sessions["metadata"]["style"] == "deepObject"
    assert "agent_id" in sessions
    session = paths["/agents/sessions/{id}"]
    assert ("409" in session["delete"]["responses"], "409" in session["get"]["responses"]) == (True, False)
    assert {"413", "415"}.isdisjoint(session["post"]["responses"])
    sandbox = {each["name"] for each in paths["/agents/sessions"]["post"]["parameters"]}
    assert {"Idempotency-Key", "X-Codex-Sandbox", "X-Codex-Worktree"} <= sandbox
    for path in ("", "/events", "/fork", "/merge", "/summary", "/turns/{turn_id}/revert"):
        assert "409" in paths[f"/agents/sessions/{{id}}{path}"]["post"]["responses"], path
    assert "409" in paths["/responses/{id}/session"]["post"]["responses"]
