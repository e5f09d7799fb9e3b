"""A page in a real browser: what it may not do, it cannot do, whatever a browser lets it try.

The browser is started once. It shows one page after the other, each of another origin, that tries everything it can
think of (`attacks.js`); a listed page comes last, since only it can change anything.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from codex_proxy.agents.process_pool.plan import AHEAD_USES
from codex_proxy.http.endpoint import add_endpoints
from codex_proxy.http.endpoints import ENDPOINTS
from tests.access.browser import Page, Pages, browser, rebound, required_browser
from tests.access.keyed import filled, ids_of_agents
from tests.http.serving import Proxy, fake_proxy, until, user
from tests.waiting import PATIENCE
from tests.web_application import serve_application

FOREIGN = ("same-site", "cross-site", "rebound")
STOLEN = ("chatcmpl-", "resp_", "conv_", '"object"', "codex-5", "pong")
"""What only an answer holds that was given."""

LISTED_DEEDS = {
    "models": "codex-5",
    "chat": "pong",
    "chat stream": "[DONE]",
    "response, read again and deleted": '"deleted":true}\n404',
    "conversation": "conv_",
    "request id": "req_",
    "socket": "response.created",
}


@dataclass
class Tour:
    """What the pages found, and what was seen of it on the server."""

    findings: dict[str, dict[str, dict[str, Any]]]
    before: str
    after: str
    """The store, before and after the foreign pages."""
    children: int
    """How many agents foreign pages have started."""
    lines: list[Any]
    """What the server logged meanwhile."""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    return asyncio.run(_tour(required_browser(), tmp_path_factory.mktemp("browser")))


async def _tour(program: str, folder: Path) -> Tour:
    started = folder / "started"
    pages = Pages()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve_application(pages.application()))
        proxy = await stack.enter_async_context(
            fake_proxy(
                folder,
                {"FAKE_CODEX_PID_FILE": str(started)},
                allowed_origins=f"http://localhost:{port}",
                test_endpoints=True,
                metrics=True,
            )
        )
        bait = await _bait(proxy)
        own = 1 + bool(bait["session"])
        # A command that is used often has a child that waits, which must not be taken for a foreign page's.
        await until(lambda: len(started.read_text().split()) == own + (own >= AHEAD_USES))
        relay = await stack.enter_async_context(rebound(port, proxy.server.port))
        _lay_out(pages, proxy, port, bait)
        children, before = len(started.read_text().split()), _dump(proxy)
        hosts = {"foreign.example": "127.0.0.1", "rebound.example": f"127.0.0.1:{relay}"}
        lines = stack.enter_context(structlog.testing.capture_logs())
        first = pages.pages["same-site"].url
        await stack.enter_async_context(browser(program, folder / "profile", first, hosts))
        findings = {name: await pages.pages[name].findings(PATIENCE) for name in FOREIGN}
        await proxy.settled()
        tour = Tour(findings, before, _dump(proxy), len(started.read_text().split()) - children, list(lines))
        pages.pages["listed"].may_be_shown.set()
        findings["listed"] = await pages.pages["listed"].findings(PATIENCE)
        return tour


async def _bait(proxy: Proxy) -> dict[str, str]:
    """Ids of what is worth having."""
    response = (await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."})).body
    conversation = (await proxy.send("POST", "/v1/conversations", {"metadata": {"topic": "mine"}})).body
    item = {"items": [{"type": "message", "role": "user", "content": "Mine."}]}
    items = (await proxy.send("POST", f"/v1/conversations/{conversation['id']}/items", item)).body
    found = {"response": response["id"], "conversation": conversation["id"], "item": items["data"][0]["id"]}
    return found | await ids_of_agents(proxy)


def _lay_out(pages: Pages, proxy: Proxy, port: int, bait: dict[str, str]) -> None:
    """The tour: each page knows what to try, on which server, and where it goes on."""
    origins = {
        "same-site": f"http://127.0.0.1:{port}",
        "cross-site": f"http://foreign.example:{port}",
        "rebound": "http://rebound.example",
        "listed": f"http://localhost:{port}",
    }
    urls = {name: f"{origin}/page/{name}" for name, origin in origins.items()}
    following = dict(zip(urls, [*list(urls.values())[1:], None], strict=True))
    for name, url in urls.items():
        plan = {
            "target": origins["rebound"] if name == "rebound" else proxy.url,
            "server": proxy.url,
            "listed": name == "listed",
            "next": following[name],
            "routes": _routes(proxy, bait),
            "reads": ["/v1/models", f"/v1/responses/{bait['response']}", "/healthz", "/metrics"],
            "bodies": _bodies(),
        }
        pages.pages[name] = Page(url, plan)
        if name != "listed":  # what it does must not be taken for a deed of the others
            pages.pages[name].may_be_shown.set()


def _routes(proxy: Proxy, bait: dict[str, str]) -> list[dict[str, str]]:
    """Every route there is, with ids of things that exist."""
    app = web.Application()
    app.update(proxy.app)
    add_endpoints(app, ENDPOINTS)
    paths = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    routes = []
    for method, path in sorted({*paths, ("GET", "/metrics")}):
        kinds = {
            "/conversations/": "conversation",
            "/agents/sessions/": "session",
            "/agents/environments/": "environment",
            "/agents/": "agent",
            "/sessions/": "session",
        }
        kind = next((kind for part, kind in kinds.items() if part in path), "response")
        id = "codex-5" if "/models/" in path else bait[kind]
        routes.append({"method": method, "path": filled(path, bait, id=id, item_id=bait["item"])})
    return routes


def _bodies() -> dict[str, Any]:
    """Requests that start a turn or store something where they are let in."""
    chat = user("[[fake:text say=pong]]")
    response = {"model": "codex-5", "input": "[[fake:text say=pong]]"}
    conversation = {"metadata": {"topic": "theirs"}}
    bodies: dict[str, Any] = {}
    for prefix in ("/v1", ""):
        bodies |= {
            f"{prefix}/chat/completions": chat,
            f"{prefix}/responses": response,
            f"{prefix}/conversations": conversation,
        }
    return bodies


def _dump(proxy: Proxy) -> str:
    """All that is stored, but for what is counted of turns: that is written some time after the turn."""
    with closing(sqlite3.connect(proxy.server.settings.store_file)) as connection:
        return "\n".join(line for line in connection.iterdump() if not line.startswith('INSERT INTO "usage"'))


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", FOREIGN)
def test_a_foreign_page_reads_nothing(tour: Tour, page: str) -> None:
    """On a name that was rebound to the server, a page can read: how it was refused."""
    read = {name: found["read"] for name, found in tour.findings[page].items() if found["read"] is not None}
    if page == "rebound":
        read = {name: text for name, text in read.items() if any(secret in text for secret in STOLEN)}
    assert read == {}
    assert len(tour.findings[page]) > 100


def test_a_foreign_page_starts_no_turn_and_changes_nothing(tour: Tour) -> None:
    assert tour.children == 0
    assert tour.before == tour.after


def test_every_request_of_a_foreign_page_is_refused(tour: Tour) -> None:
    """Whatever the browser lets through, with an origin or without."""
    seen = [(line["path"], line["status"]) for line in tour.lines if line["event"] == "request"]
    assert {status for _, status in seen} == {403}
    assert len(seen) > 200, "a tour that does not reach the server proves nothing"


@pytest.mark.parametrize("deed", LISTED_DEEDS)
def test_a_listed_page_can_do_all(tour: Tour, deed: str) -> None:
    found = tour.findings["listed"][deed]
    assert LISTED_DEEDS[deed] in (found["read"] or ""), found
