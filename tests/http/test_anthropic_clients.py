"""What Anthropic's clients ask for beside messages: whether there is a server, its models, and keys in two headers."""

from __future__ import annotations

from pathlib import Path

import anthropic
import pytest
from anthropic import AsyncAnthropic

from tests.access.keyed import key_header, key_of, keyed_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.waiting import PATIENCE

VERSION = {"anthropic-version": "2023-06-01"}
KEYS: dict[str, dict[str, object]] = {"ada": {}, "bob": {"models": ["codex-5-low"]}}


def client_of(proxy: Proxy, key: str = "none") -> AsyncAnthropic:
    """The official SDK, which retries nothing."""
    return AsyncAnthropic(base_url=proxy.url, api_key=key, max_retries=0, timeout=PATIENCE)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("path", ["/", "/api/hello"])
async def test_a_probe_of_the_server_is_answered_without_a_key(
    tmp_path: Path, method: str, path: str
) -> None:
    async with fake_proxy(tmp_path, api_key="key") as proxy:
        answer = await proxy.send(method, path)
    assert answer.status == 200
    assert ("hello" in answer.text) == (method == "GET")


# --- models ---------------------------------------------------------------------------------------


async def test_the_official_sdk_lists_every_model_page_by_page(proxy: Proxy) -> None:
    async with client_of(proxy) as client:
        whole = await client.models.list(limit=1000)
        by_page = [model async for model in client.models.list(limit=2)]
        backwards = await client.models.list(limit=2, before_id=whole.data[-1].id)
    assert [model.id for model in by_page] == [model.id for model in whole.data]
    assert {"codex-5", "claude-codex-5-high"} <= {model.id for model in whole.data}
    assert [model.id for model in backwards.data] == [model.id for model in whole.data[-3:-1]]
    assert (whole.has_more, backwards.has_more) == (False, True)


async def test_the_official_sdk_retrieves_a_model(proxy: Proxy) -> None:
    async with client_of(proxy) as client:
        model = await client.models.retrieve("claude-codex-5")
        assert (model.type, model.id, model.lifecycle) == ("model", "claude-codex-5", "active")
        assert model.created_at.tzinfo is not None
        with pytest.raises(anthropic.NotFoundError) as refused:
            await client.models.retrieve("nobody-knows-it")
    assert refused.value.request_id is not None
    assert refused.value.request_id.startswith("req_")
    assert "GET /v1/models" in str(refused.value.message)


async def test_the_list_has_the_shape_of_the_api_whose_client_asks(proxy: Proxy) -> None:
    openais = await proxy.send("GET", "/v1/models", headers={"Authorization": "Bearer none"})
    assert openais.body["object"] == "list"
    for headers in (VERSION, {"x-api-key": "none"}, {**VERSION, "Authorization": "Bearer none"}):
        anthropics = await proxy.send("GET", "/v1/models?limit=1000", headers=headers)
        assert set(anthropics.body) == {"data", "has_more", "first_id", "last_id"}
    both = await proxy.send(
        "GET", "/v1/models", headers={"Authorization": "Bearer none", "x-api-key": "none"}
    )
    assert both.body["object"] == "list"


async def test_a_key_is_shown_its_models_only_in_either_shape(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, KEYS) as proxy, client_of(proxy, key_of("bob")) as client:
        listed = [model.id for model in (await client.models.list(limit=1000)).data]
        with pytest.raises(anthropic.PermissionDeniedError):
            await client.models.retrieve("codex-5-high")
    assert listed == ["codex-5-low", "claude-codex-5-low"]


async def test_a_page_that_cannot_be_is_a_bad_request(proxy: Proxy) -> None:
    async with client_of(proxy) as client:
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            await client.models.list(limit=0)


# --- faults that belong to no endpoint ------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/skills", "/v1/nowhere"])
async def test_an_endpoint_that_is_not_served_is_a_404_in_the_clients_own_shape(
    proxy: Proxy, path: str
) -> None:
    answer = await proxy.send("GET", path, headers=VERSION)
    assert (answer.status, answer.body["type"]) == (404, "error")
    assert answer.error["type"] == "not_found_error"
    assert answer.body["request_id"] == answer.headers["request-id"]
    error = (await proxy.send("GET", path)).error
    if path.startswith("/v1/messages/"):  # which is Anthropic's, whoever asks
        assert error["type"] == "not_found_error"
    else:
        assert error["code"] == "not_found"
    assert "GET /v1 lists the endpoints" in error["message"]


# --- keys -----------------------------------------------------------------------------------------


async def test_either_header_brings_the_key_and_of_two_keys_the_right_one_counts(tmp_path: Path) -> None:
    right, wrong = {"x-api-key": key_of("ada")}, {"x-api-key": "sk-ant-elsewhere"}
    async with keyed_proxy(tmp_path, KEYS) as proxy:

        async def status(headers: dict[str, str]) -> int:
            return (await proxy.send("GET", "/v1/models", headers={**VERSION, **headers})).status

        assert await status(right) == 200
        assert await status(key_header("ada")) == 200
        assert await status({**key_header("ada"), **wrong}) == 200
        assert await status({"Authorization": "Bearer sk-ant-elsewhere", **right}) == 200
        assert await status({"Authorization": "Bearer sk-ant-elsewhere", **wrong}) == 401
        assert await status({}) == 401


async def test_a_right_key_beside_a_wrong_one_is_no_guess(tmp_path: Path) -> None:
    """Else each request of a client with two keys would make the next wait longer."""
    headers = {"Authorization": "Bearer sk-ant-elsewhere", "x-api-key": key_of("ada")}
    async with keyed_proxy(tmp_path, KEYS) as proxy:
        for _ in range(20):
            assert (await proxy.send("GET", "/v1/models", headers=headers)).status == 200


async def test_a_wrong_key_is_reported_once_since_claude_code_would_try_for_minutes(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, KEYS) as proxy:
        answer = await proxy.send("GET", "/v1/models", headers={**VERSION, "x-api-key": "wrong"})
        async with client_of(proxy, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.with_options(max_retries=5).models.list()
    assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
    assert answer.error["type"] == "authentication_error"


async def test_a_key_that_is_there_twice_is_refused(proxy: Proxy) -> None:
    async with proxy.session.get(
        f"{proxy.url}/v1/models", headers=[("x-api-key", "one"), ("x-api-key", "two")]
    ) as reply:
        assert reply.status == 400
