"""Turns of Chat Completions, Responses and Messages, whose files are kept if the settings say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.parts.snapshots.folders import FolderName
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.keeper import Keeper
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.store.health import require_store
from codex_proxy.store.leases import Node
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.snapshots.working import SETTINGS
from tests.waiting import PATIENCE, poll

ALL: dict[str, Any] = {**SETTINGS, "snapshots": "all", "mode": "agent", "fake_dialect": "app-server"}


def writing(**files: str | None) -> str:
    """Words that have the fake agent write files, or remove them."""
    changes = [{"path": path} | ({} if text is None else {"text": text}) for path, text in files.items()]
    return f"[[fake:echo files='{json.dumps(changes)}']]"


@asynccontextmanager
async def proxy_at(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Proxy, Path]]:
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    given = {**ALL, "state_dir": tmp_path / "state", "workdir": folder, **settings}
    async with fake_proxy(folder, **given) as proxy:
        yield proxy, folder


async def turns_of(proxy: Proxy, query: str = "", **headers: str) -> list[Any]:
    """The turns that are kept, when none is at work any more."""

    async def ended() -> tuple[list[Any]] | None:
        answer = await proxy.send("GET", f"/v1/turns{query}", headers=headers)
        assert answer.status == 200, answer.text
        found: list[Any] = answer.body["data"]
        return None if any(each["state"] == "running" for each in found) else (found,)

    found = await poll(ended)
    assert found is not None
    return found[0]


async def test_a_turn_of_each_api_is_kept_and_taken_back(tmp_path: Path) -> None:
    async with proxy_at(tmp_path) as (proxy, folder):
        (folder / "a").write_text("0\n")
        asked = {
            "/v1/chat/completions": "messages",
            "/v1/responses": "input",
            "/v1/messages": "messages",
        }
        for number, (path, field) in enumerate(asked.items(), 1):
            words: Any = writing(a=f"{number}\n", new=None if number == 2 else "x")
            body = {"model": "codex-5", "max_tokens": 100, field: [{"role": "user", "content": words}]}
            answer = await proxy.send("POST", path, body, headers={"x-request-id": f"request-{number}"})
            assert answer.status == 200, answer.text
        found = await turns_of(proxy)
        assert [each["request_id"] for each in found] == ["request-3", "request-2", "request-1"]
        assert {each["state"] for each in found} == {"kept"}
        assert {each["folder"] for each in found} == {str(folder)}
        [first] = await turns_of(proxy, "?request_id=request-1")
        assert first == found[2]
        assert await turns_of(proxy, f"?limit=1&after={found[0]['id']}") == found[1:2]
        unknown = await proxy.send("GET", "/v1/turns?after=turn_unknown")
        assert (unknown.status, unknown.body["error"]["param"]) == (400, "after")
        for number, turn in zip((3, 2, 1), found, strict=True):
            changes = (await proxy.send("GET", f"/v1/turns/{turn['id']}/changes")).body
            assert (changes["session_id"], changes["state"]) == (None, "kept")
            kinds = {each["path"]: each["kind"] for each in changes["data"]}
            assert kinds == {"a": "modified", "new": "deleted" if number == 2 else "added"}
            [diff] = [each["diff"] for each in changes["data"] if each["path"] == "a"]
            assert diff == f"@@ -1 +1 @@\n-{number - 1}\n+{number}\n"
            answer = await proxy.send("POST", f"/v1/turns/{turn['id']}/revert", {})
            assert (answer.status, answer.body["paths"]) == (200, ["a", "new"])
            assert (folder / "a").read_text() == f"{number - 1}\n"
        assert [each.name for each in folder.iterdir()] == ["a"]
        again = await proxy.send("POST", f"/v1/turns/{found[0]['id']}/revert", {})
        assert (again.status, again.body["error"]["param"]) == (409, "force")


async def test_only_turns_that_may_write_are_kept_and_only_if_all_are_wanted(tmp_path: Path) -> None:
    body = {"model": "codex-5", "input": writing(a="1")}
    async with proxy_at(tmp_path, snapshots="sessions") as (proxy, _):
        assert (await proxy.send("POST", "/v1/responses", body)).status == 200
        assert await turns_of(proxy) == []
    async with proxy_at(tmp_path) as (proxy, _):
        for given in ({"x-codex-sandbox": "read-only"}, {"x-codex-mode": "model"}):
            await proxy.send("POST", "/v1/responses", {**body, "input": "Hello."}, headers=given)
        assert await turns_of(proxy) == []
    async with proxy_at(tmp_path, snapshots="off") as (proxy, _):
        assert await turns_of(proxy) == []


async def test_a_turn_of_another_key_is_not_found(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    settings = {**ALL, "state_dir": tmp_path / "state", "workdir": folder}
    keys: dict[str, dict[str, Any]] = {"ann": {}, "bob": {}}
    async with keyed_proxy(tmp_path, keys, **settings) as proxy:
        ann, bob = key_header("ann"), key_header("bob")
        body = {"model": "codex-5", "input": writing(a="1")}
        assert (await proxy.send("POST", "/v1/responses", body, headers=ann)).status == 200
        [turn] = await turns_of(proxy, **ann)
        assert await turns_of(proxy, **bob) == []
        for method, what in (("GET", "changes"), ("POST", "revert")):
            answer = await proxy.send(method, f"/v1/turns/{turn['id']}/{what}", headers=bob)
            assert answer.status == 404
        assert (folder / "a").exists()


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_turn_is_at_work_as_long_as_its_server_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_live: bool
) -> None:
    async with proxy_at(tmp_path) as (proxy, folder):
        keeper, leases = proxy.app[KEEPER], require_store(proxy.app[RESPONSES].store).leases
        own = leases.records.node
        live = [Node(id=each, name="", url="", version="", started=0.0) for each in (own, "other")]

        async def nodes() -> list[Node]:
            return live if is_live else live[:1]

        monkeypatch.setattr(leases, "nodes", nodes)
        place = FolderName("local", str(folder)).place
        for server in ("other/1", f"{own}/of an earlier process"):
            files = TurnFiles(
                turn=f"turn_{server}", folder="/", place=place, state="running", request="r", server=server
            )
            await keeper.write("local", files)
        found = (await proxy.send("GET", "/v1/turns?order=asc")).body["data"]
        assert [each["state"] for each in found] == ["running" if is_live else "failed", "failed"]


async def test_a_turn_whose_end_was_not_stored_is_told_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_end(*_: object) -> None:
        """Keeps nothing after the turn, as a server that is killed."""

    body = {"model": "codex-5", "input": writing(a="1")}
    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "_end", no_end)
        async with proxy_at(tmp_path) as (proxy, _):
            assert (await proxy.send("POST", "/v1/responses", body)).status == 200
            [here] = await turns_of(proxy)
            assert here["state"] == "failed"
    async with proxy_at(tmp_path) as (proxy, _):
        [turn] = await turns_of(proxy)
        reason = "the server ended before the turn did, or could not store its end"
        assert (turn["state"], turn["reason"]) == ("failed", reason)
        changes = (await proxy.send("GET", f"/v1/turns/{turn['id']}/changes")).body
        assert (changes["state"], changes["data"]) == ("failed", [])
        assert (await proxy.send("POST", f"/v1/turns/{turn['id']}/revert", {})).status == 409


async def test_a_turn_that_needs_no_store_waits_for_it_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_at(tmp_path, snapshot_wait=0.5) as (proxy, folder):
        answers = asyncio.Event()

        async def no_answer(*_: object, **__: object) -> None:
            await answers.wait()

        store = require_store(proxy.app[RESPONSES].store)
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_records", no_answer)
            patched.setattr(store, "record", no_answer)
            body = {"model": "codex-5", "messages": [{"role": "user", "content": writing(a="1")}]}
            async with asyncio.timeout(PATIENCE):
                assert (await proxy.send("POST", "/v1/chat/completions", body)).status == 200
            assert (folder / "a").exists()
        answers.set()


async def test_what_is_kept_of_a_turn_goes_with_its_age(tmp_path: Path) -> None:
    async with proxy_at(tmp_path, store_max_age=0.001) as (proxy, _):
        body = {"model": "codex-5", "messages": [{"role": "user", "content": writing(a="1")}]}
        assert (await proxy.send("POST", "/v1/chat/completions", body)).status == 200
        assert len(await turns_of(proxy)) == 1
        for _ in range(2):
            await proxy.app[KEEPER].prune()
        assert await turns_of(proxy) == []
        assert not [*(tmp_path / "state" / "snapshots").glob("*/*")]
