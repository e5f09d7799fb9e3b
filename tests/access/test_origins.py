"""What a web page may do: a listed one everything, any other one nothing that changes or tells anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.start_checks import check
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from tests.http.serving import Answer, Proxy, fake_proxy, settings_of, user

LISTED = ["app://obsidian.md", "http://localhost:3000", "chrome-extension://abcdef"]
FOREIGN = [
    *("https://evil.example", "null", "http://localhost:30000", "http://localhost"),
    *("http://localhost:3000.evil.example", "https://localhost:3000", "app://obsidian.md.evil"),
]
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/responses"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/conversations"),
    ("DELETE", "/v1/conversations/conv_1"),
    ("POST", "/__test/conc/release"),
    ("POST", "/nowhere"),
]


@pytest.fixture
async def proxy_with_origins(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy with a key and a list of origins."""
    held = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(
        tmp_path, held, allowed_origins=",".join(LISTED), api_key="right", test_endpoints=True
    ) as proxy:
        yield proxy


def cors(answer: Answer) -> dict[str, str]:
    return {
        name.lower(): value for name, value in answer.headers.items() if name.lower().startswith("access-")
    }


def page(origin: str, **more: str) -> dict[str, str]:
    return {"Origin": origin, "Authorization": "Bearer right", **more}


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_that_is_not_listed_is_refused_and_reads_nothing(
    proxy_with_origins: Proxy, origin: str
) -> None:
    refused = await proxy_with_origins.ask(user(), headers=page(origin))
    assert (refused.status, refused.error["code"], cors(refused)) == (403, "not_allowed", {})
    asked = page(origin, **{"Access-Control-Request-Method": "POST"})
    for method, path, headers in (
        ("GET", "/v1/models", page(origin)),
        ("GET", "/healthz", page(origin)),
        ("OPTIONS", "/v1/chat/completions", asked),
    ):
        answer = await proxy_with_origins.send(method, path, headers=headers)
        assert (answer.status, cors(answer)) == (403, {})


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_changes_anything_for_a_foreign_page(
    proxy_with_origins: Proxy, method: str, path: str
) -> None:
    answer = await proxy_with_origins.send(method, path, headers=page("https://evil.example"))
    assert (answer.status, answer.error["code"]) == (403, "not_allowed")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_that_hides_its_origin_is_known_by_its_site(
    proxy_with_origins: Proxy, site: str
) -> None:
    headers = {"Authorization": "Bearer right", "Sec-Fetch-Site": site}
    assert (await proxy_with_origins.ask(user(), headers=headers)).status == 403


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/resp_1", "/healthz", "/metrics", "/nowhere"])
async def test_a_foreign_page_loads_nothing_as_a_script_or_an_image(
    proxy_with_origins: Proxy, path: str
) -> None:
    """Such a load says no origin. An old browser does not say whose it is: then it is told what the answer is not."""
    loaded = await proxy_with_origins.send("GET", path, headers={"Sec-Fetch-Site": "cross-site"})
    assert (loaded.status, loaded.error["code"]) == (403, "not_allowed")
    unsaid = await proxy_with_origins.send("GET", path)
    assert unsaid.headers["X-Content-Type-Options"] == "nosniff"
    assert unsaid.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("site", [None, "same-origin", "none"])
async def test_programs_and_pages_of_this_server_pass(proxy_with_origins: Proxy, site: str | None) -> None:
    own: dict[str, Any] = {} if site is None else {"Sec-Fetch-Site": site, "Origin": proxy_with_origins.url}
    headers = {"Authorization": "Bearer right", **own}
    assert (await proxy_with_origins.ask(user(), headers=headers)).status == 200


@pytest.mark.parametrize("origin", LISTED)
async def test_the_preflight_of_a_listed_page_permits_what_it_asks_for(
    proxy_with_origins: Proxy, origin: str
) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = await proxy_with_origins.send("OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status == 204
    assert answer.headers["Vary"] == "Origin"
    told = cors(answer)
    assert told["access-control-allow-origin"] == origin
    assert told["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert told["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in told


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("origin", LISTED)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_listed_page_reads_answers_and_faults(
    proxy_with_origins: Proxy, origin: str, stream: bool
) -> None:
    headers = page(origin, **{"Sec-Fetch-Site": "cross-site"})
    good = await proxy_with_origins.ask(user(stream=stream), headers=headers)
    bad = await proxy_with_origins.ask({"model": "codex-5"}, headers=headers)
    keyless = await proxy_with_origins.ask(user(), headers={"Origin": origin})
    assert [answer.status for answer in (good, bad, keyless)] == [200, 400, 401]
    assert {cors(answer)["access-control-allow-origin"] for answer in (good, bad, keyless)} == {origin}


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_a_foreign_page_opens_no_websocket(proxy_with_origins: Proxy, path: str) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer = await proxy_with_origins.send("GET", path, headers=page("https://evil.example", **upgrade))
    assert (answer.status, answer.error["code"]) == (403, "not_allowed")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_takes_a_body_that_a_form_can_send(
    proxy_with_origins: Proxy, method: str, path: str, kind: str
) -> None:
    headers = {"Authorization": "Bearer right", "Content-Type": kind}
    for body in (b"{}", b""):  # an empty form has a type, and a cancellation needs no body
        refused = 404 if path == "/nowhere" else 415
        assert (await proxy_with_origins.send(method, path, body, headers=headers)).status == refused


async def test_a_program_that_sends_nothing_says_nothing_of_its_type(proxy_with_origins: Proxy) -> None:
    answer = await proxy_with_origins.send(
        "POST", "/v1/responses/resp_1/cancel", headers={"Authorization": "Bearer right"}
    )
    assert (answer.status, answer.error["code"]) == (404, "not_found")


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_that_sends_neither_body_nor_type_cancels_and_deletes_nothing(
    proxy_with_origins: Proxy, headers: dict[str, str]
) -> None:
    key = {"Authorization": "Bearer right"}
    held = {"model": "codex-5", "input": "[[fake:text hold=1]]", "background": True}
    id = (await proxy_with_origins.send("POST", "/v1/responses", held, headers=key)).body["id"]
    for method, path in (("POST", f"/v1/responses/{id}/cancel"), ("DELETE", f"/v1/responses/{id}")):
        assert (await proxy_with_origins.send(method, path, headers=headers | key)).status == 403
    kept = (await proxy_with_origins.send("GET", f"/v1/responses/{id}", headers=key)).body
    assert kept["status"] in ("queued", "in_progress")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/conversations", "/v1/responses/resp_1/cancel"])
async def test_endpoints_that_change_something_do_not_answer_get(
    proxy_with_origins: Proxy, path: str
) -> None:
    answer = await proxy_with_origins.send("GET", path, headers={"Authorization": "Bearer right"})
    assert answer.status == 405


@pytest.mark.parametrize("origin", ["*", "null", "http://localhost:3000/", "http://*.example", "obsidian.md"])
def test_a_list_with_what_is_no_origin_stops_the_start(tmp_path: Path, origin: str) -> None:
    with pytest.raises(UserError, match="PROXY_ALLOWED_ORIGINS"):
        check(settings_of(tmp_path, allowed_origins=f"http://localhost:1,{origin}"), SystemClock(), {})
