"""What an upstream lists: nothing in it breaks the server's own list, or takes the requests of another upstream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agents.damage import STRANGE, each_change
from tests.http.serving import fake_proxy, user
from tests.model_server import upstream

GOOD = {"id": "good", "owned_by": "somebody", "max_model_len": 8192, "meta": {"n_ctx": 1}}
ODD: list[Any] = [
    "\ud800",
    "a\ud83d",
    "\x00",
    "a\nb",
    "\u202e",
    " ",
    "x" * 10_000,
    10**30,
    -1,
    float("inf"),
    "b/",
    "/",
    "b",
]


def entries() -> list[Any]:
    """Entries of a list: a good one with one of its values replaced, by whatever JSON can hold."""
    changed = list(each_change(GOOD))
    made = changed + [{**GOOD, name: value} for name in GOOD for value in (*ODD, *STRANGE)]
    return [
        {**each, "id": f"good{n}"} if isinstance(each, dict) and each.get("id") == "good" else each
        for n, each in enumerate(made)
    ] + [GOOD]


async def test_no_list_of_an_upstream_breaks_the_servers_own(tmp_path: Path) -> None:
    async with upstream() as a, upstream() as b:
        a.models = [*entries(), {**GOOD, "id": "last"}]
        b.models = [GOOD]
        tables = {"a": {"url": a.url}, "b": {"url": b.url}}
        async with fake_proxy(tmp_path, agent="a", upstreams=tables) as proxy:
            for headers in ({}, {"anthropic-version": "2023-06-01"}):
                for path, field in (("/v1/models", "id"), ("/v1/models?client_version=1", "slug")):
                    answer = await proxy.send("GET", path, headers=headers)
                    assert answer.status == 200
                    listed = answer.body["models" if "models" in answer.body else "data"]
                    names = [(each.get(field) or each["id"]).removeprefix("claude-") for each in listed]
                    assert {"a/good", "a/last", "b/good"} <= set(names) or headers
                    json.dumps(answer.body, ensure_ascii=False).encode()
            assert (await proxy.send("GET", "/healthz")).status == 200


NAMES = ("b", "B", "b/good", "b/other", "b/", "a", "codex-5", "codex-5-high", "b-high", "claude-b")


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("listed", NAMES)
@pytest.mark.parametrize("up", [True, False], ids=["the other lists its models", "the other is away"])
async def test_a_name_that_begins_with_an_upstream_is_that_upstreams(
    listed: str, up: bool, tmp_path: Path
) -> None:
    async with upstream() as default, upstream() as a, upstream() as b:
        a.models, b.models = [{"id": listed}, {"id": f"{listed}/x"}], [{"id": "good"}]
        tables = {
            "c": {"url": default.url},
            "a": {"url": a.url},
            "b": {"url": b.url if up else "http://127.0.0.1:1/v1", "retries": 0},
        }
        async with fake_proxy(tmp_path, agent="c", upstreams=tables) as proxy:
            for name in ("b", "B", "b/good", "b/other", "codex-5", "codex-5-high"):
                await proxy.ask(user() | {"model": name})
                assert not a.requests, f"{name} went to the upstream that lists it"
            assert (await proxy.ask(user() | {"model": f"a/{listed}"})).status == 200
            assert a.requests[-1].body["model"] == listed
