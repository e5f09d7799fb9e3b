"""No endpoint ignores a field of a body in silence: the table of endpoints says which take one."""

from __future__ import annotations

from typing import Any, Final

import pytest

from codex_proxy.http.endpoints import ENDPOINTS
from tests.http.serving import Proxy

ITEM: Final = {"type": "message", "role": "user", "content": "x"}
MODEL: Final = {"model": "codex-5"}
MESSAGES: Final = {**MODEL, "messages": [{"role": "user", "content": "x"}]}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "ChatRequest": MESSAGES,
    "MessagesRequest": {**MESSAGES, "max_tokens": 9},
    "ResponseRequest": {**MODEL, "input": [ITEM]},
    "CompactRequest": {**MODEL, "input": [ITEM]},
    "ContextFields": {**MODEL, "input": [ITEM]},
    "CreateBody": {"items": [ITEM]},
    "UpdateBody": {"metadata": {"a": "b"}},
    "AddItemsBody": {"items": [ITEM]},
    "OllamaChatRequest": MESSAGES,
    "OllamaGenerateRequest": {**MODEL, "prompt": "x"},
    "OllamaEmbedRequest": {**MODEL, "input": "x"},
    "OllamaEmbeddingsRequest": {**MODEL, "prompt": "x"},
    "OllamaShowRequest": MODEL,
    "PassedBody": {**MODEL, "prompt": "x"},
}
"""A body of each kind."""

BODY_ENDPOINTS: Final = {
    each.route: each
    for each in ENDPOINTS
    if isinstance(each.body, str) and (each.body != "PassedBody" or each.path == "/completions")
}
"""The endpoints that read bodies themselves; parts try theirs. The others send them on as they are."""


async def post(proxy: Proxy, route: str, fields: dict[str, Any]) -> Any:
    """Sends the endpoint a body with further fields."""
    made = (await proxy.send("POST", "/v1/conversations", {})).body["id"]
    endpoint = BODY_ENDPOINTS[route]
    path = endpoint.path.replace("{id}", made)
    return await proxy.send("POST", path, BODIES[str(endpoint.body)] | fields)


@pytest.mark.parametrize("route", BODY_ENDPOINTS)
async def test_a_field_that_no_endpoint_knows_is_named(proxy: Proxy, route: str) -> None:
    answer = await post(proxy, route, {"of_tomorrow": 1})
    assert answer.headers["x-codex-ignored-params"] == "of_tomorrow"


@pytest.mark.parametrize("route", BODY_ENDPOINTS)
async def test_an_unknown_field_with_an_id_of_this_server_is_refused(proxy: Proxy, route: str) -> None:
    answer = await post(proxy, route, {"of_tomorrow": "resp_0123456789abcdef"})
    assert answer.status == 400
    assert "'of_tomorrow'" in answer.text


@pytest.mark.parametrize(
    "route", [name for name, each in BODY_ENDPOINTS.items() if "items" in BODIES[str(each.body)]]
)
async def test_a_field_of_an_item_is_named(proxy: Proxy, route: str) -> None:
    answer = await post(proxy, route, {"items": [{**ITEM, "of_tomorrow": 1}]})
    assert answer.headers["x-codex-ignored-params"] == "items[].of_tomorrow"
