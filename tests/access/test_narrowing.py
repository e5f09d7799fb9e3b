"""A request and a key can only narrow what the operator allows: the folder, the sandbox, the agent itself.

What counts is the turn that reaches the agent.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.admission.clients import limit_roots, resolve_workdir, workspace_of
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Turn
from tests.access.keyed import key_header, write_keys
from tests.http.serving import Proxy, fake_agent, proxy_of, user


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """The server's own folder with links that lead out of it, a configured root, and folders of nobody's."""
    for name in ("own/inner", "root/inner", "outside/inner", "own/\u00e4 \u00fc", "rooted"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own/file").write_text("")
    (tmp_path / "own/out").symlink_to(tmp_path / "outside")
    (tmp_path / "own/in").symlink_to(tmp_path / "root")
    (tmp_path / "own/loop").symlink_to(tmp_path / "own/loop")
    (tmp_path / "own/dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link_to_root").symlink_to(tmp_path / "root")
    return tmp_path


INSIDE = {
    "own": "own",
    "own/": "own",
    "own/inner": "own/inner",
    "own/inner/..": "own",
    "own/./inner//": "own/inner",
    "own/in": "root",
    "own/in/inner": "root/inner",
    "root": "root",
    "link_to_root/inner": "root/inner",
    "outside/../own": "own",
    "own/\u00e4 \u00fc": "own/\u00e4 \u00fc",
}
OUTSIDE = [
    *(
        "outside",
        "own/../outside",
        "own/out",
        "own/out/inner",
        "own/inner/../../outside",
        "own/in/../outside",
    ),
    *(
        "",
        "..",
        "rooted",
        "root/../rooted",
        "own/loop",
        "own/dangling",
        "own/missing",
        "own/file",
    ),
    *("own\0", "own/\ud800", "own/" + "x" * 300, "own/" + "a/" * 3000, "OWN"),
]


def turn_in(folder: str) -> Turn:
    return Turn(model="", history=(), workdir=folder)


@pytest.mark.parametrize(("asked", "resolved"), INSIDE.items())
def test_a_folder_inside_of_the_roots_is_taken_with_its_links_resolved(
    top: Path, asked: str, resolved: str
) -> None:
    workspace = workspace_of(str(top / "own"), [str(top / "link_to_root")])
    turn = resolve_workdir(turn_in(f"{top}/{asked}"), "metadata.workdir", workspace)
    assert turn.workdir == str(top / resolved)


@pytest.mark.parametrize("asked", OUTSIDE)
def test_any_other_is_refused_and_names_who_asked(top: Path, asked: str) -> None:
    workspace = workspace_of(str(top / "own"), [str(top / "link_to_root")])
    with pytest.raises(Fault, match="folder") as fault:
        resolve_workdir(turn_in(f"{top}/{asked}"), "metadata.workdir", workspace)
    assert fault.value.failure.param == "metadata.workdir"


def test_another_unicode_form_of_the_same_name_is_another_folder(top: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "\u00fc") for form in ("NFC", "NFD"))
    (top / "own" / composed).mkdir()
    workspace = workspace_of(str(top / "own"), [])
    assert resolve_workdir(turn_in(composed), "X-Codex-Workdir", workspace).workdir == str(
        top / "own" / composed
    )
    with pytest.raises(Fault, match="folder"):
        resolve_workdir(turn_in(decomposed), "X-Codex-Workdir", workspace)


@pytest.mark.parametrize(
    ("asked", "resolved"), [("inner", "own/inner"), (".", "own"), ("../own/inner", "own/inner")]
)
def test_a_part_of_a_path_is_one_of_the_servers_folder(top: Path, asked: str, resolved: str) -> None:
    turn = resolve_workdir(turn_in(asked), "X-Codex-Workdir", workspace_of(str(top / "own"), []))
    assert turn.workdir == str(top / resolved)


def test_roots_are_resolved_once_and_not_for_each_request(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = workspace_of(str(top / "own"), [str(top / "root")] * 50)
    seen: list[str] = []
    resolve = os.path.realpath

    def noted(path: str) -> str:
        seen.append(path)
        return resolve(path)

    monkeypatch.setattr(os.path, "realpath", noted)
    resolve_workdir(turn_in(str(top / "root")), "X-Codex-Workdir", workspace)
    assert seen == [str(top / "root")]


def test_the_root_of_the_disk_holds_everything(top: Path) -> None:
    assert resolve_workdir(turn_in(str(top)), "X-Codex-Workdir", workspace_of("/", [])).workdir == str(top)


@pytest.mark.parametrize(
    ("roots", "folder"),
    [(["own"], "own"), (["root"], "root"), (["root", "own/inner"], "root"), (["root", "own"], "own")],
)
def test_whose_folders_do_not_hold_the_servers_works_in_its_own_first(
    top: Path, roots: list[str], folder: str
) -> None:
    narrow = limit_roots(workspace_of(str(top / "own"), []), [str(top / root) for root in roots])
    assert narrow.folder == str(top / folder)


# --- the turn that the agent gets ---------------------------------------------------------------


class WatchedProxy:
    """A proxy, and every turn that has reached its agent."""

    def __init__(self, proxy: Proxy, turns: list[Turn]) -> None:
        self.proxy = proxy
        self.turns = turns

    async def turn_of(self, name: str, path: str = "/v1/chat/completions", /, **more: Any) -> Turn:
        """The turn that comes of a request with this key."""
        headers = {**key_header(name), **more.pop("headers", {})}
        words: Any = {"input": "Hello."} if "responses" in path else user()
        answer = await self.proxy.send("POST", path, {"model": "codex-5", **words, **more}, headers=headers)
        assert answer.status == 200, answer.text
        return self.turns[-1]


@asynccontextmanager
async def watched_proxy(
    top: Path, keys: dict[str, dict[str, Any]], **settings: Any
) -> AsyncIterator[WatchedProxy]:
    write_keys(top, **keys)
    agent, turns = fake_agent(), list[Turn]()
    open_as_it_is = agent.open

    async def open_and_note(turn: Turn) -> AgentSession:
        turns.append(turn)
        return await open_as_it_is(turn)

    agent.open = open_and_note  # type: ignore[method-assign]
    chosen = {"workdir": top / "own", "workdir_roots": str(top / "root"), **settings}
    async with proxy_of(agent, top, **chosen) as proxy:
        yield WatchedProxy(proxy, turns)


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])


@pytest.mark.sampled(every=3)
@PATHS
@pytest.mark.parametrize(
    ("server", "key", "given"),
    [
        ("read-only", "danger-full-access", "read-only"),
        ("workspace-write", "danger-full-access", "workspace-write"),
        ("workspace-write", "read-only", "read-only"),
        ("danger-full-access", "workspace-write", "workspace-write"),
        ("danger-full-access", None, "danger-full-access"),
    ],
)
async def test_the_narrower_sandbox_of_server_and_key_counts(
    top: Path, path: str, server: str, key: str | None, given: str
) -> None:
    keys: dict[str, dict[str, Any]] = {"one": {} if key is None else {"sandbox": key}}
    async with watched_proxy(top, keys, sandbox=server) as seen:
        turn = await seen.turn_of("one", path, sandbox="danger-full-access", metadata={"sandbox": "x"})
        assert (turn.sandbox, turn.mode) == (given, "agent")


@pytest.mark.sampled(every=3)
@PATHS
@pytest.mark.parametrize(
    ("server", "key", "asked", "given"),
    [
        ("workspace-write", None, "read-only", "read-only"),
        ("danger-full-access", "workspace-write", "read-only", "read-only"),
        ("danger-full-access", None, " Workspace-Write ", "workspace-write"),
        ("read-only", None, "read-only", "read-only"),
        ("workspace-write", None, "", "workspace-write"),
    ],
)
async def test_a_request_may_ask_for_a_narrower_sandbox(
    top: Path, path: str, server: str, key: str | None, asked: str, given: str
) -> None:
    keys: dict[str, dict[str, Any]] = {"one": {} if key is None else {"sandbox": key}}
    async with watched_proxy(top, keys, sandbox=server) as seen:
        assert (await seen.turn_of("one", path, headers={"X-Codex-Sandbox": asked})).sandbox == given


@PATHS
@pytest.mark.parametrize(
    ("asked", "status"), [("workspace-write", 403), ("danger-full-access", 403), ("none", 400)]
)
async def test_a_wider_sandbox_than_the_keys_is_refused(
    top: Path, path: str, asked: str, status: int
) -> None:
    async with watched_proxy(top, {"one": {"sandbox": "read-only"}}, sandbox="workspace-write") as seen:
        body = {"model": "codex-5", **({"input": "a"} if "responses" in path else user())}
        headers = {**key_header("one"), "X-Codex-Sandbox": asked}
        answer = await seen.proxy.send("POST", path, body, headers=headers)
        assert (answer.status, answer.error["param"]) == (status, "X-Codex-Sandbox")
        assert seen.turns == []


@PATHS
async def test_a_key_works_in_its_own_folders_alone(top: Path, path: str) -> None:
    keys = {
        "outsider": {"roots": [str(top / "outside")]},
        "inner": {"roots": [str(top / "own/inner")]},
        "any": {},
    }
    async with watched_proxy(top, keys) as seen:
        assert (await seen.turn_of("outsider", path)).workdir == str(top / "outside")
        assert (await seen.turn_of("any", path)).workdir == str(top / "own")
        asked = {"metadata": {"workdir": str(top / "outside/inner")}}
        assert (await seen.turn_of("outsider", path, **asked)).workdir == str(top / "outside/inner")
        for name, folder in (("outsider", "own"), ("outsider", "root"), ("inner", "own"), ("any", "outside")):
            answer = await seen.proxy.send(
                "POST",
                path,
                {"model": "codex-5", **({"input": "a"} if "responses" in path else user())},
                headers={**key_header(name), "X-Codex-Workdir": str(top / folder)},
            )
            assert (answer.status, answer.error["param"]) == (400, "X-Codex-Workdir"), (name, folder)


@pytest.mark.sampled(every=5)
@PATHS
@pytest.mark.parametrize(
    ("tools", "plain", "asked", "mode"),
    [
        ("always", True, {}, "model"),
        ("auto", True, {}, "model"),
        ("auto", False, {}, "agent"),
        ("always", False, {"headers": {"X-Codex-Mode": "model"}}, "model"),
        ("always", False, {"model": "codex-5:model"}, "model"),
        ("never", False, {}, "model"),
    ],
)
async def test_the_narrower_of_server_key_and_request_decides_whether_the_agent_works(
    top: Path, path: str, tools: str, plain: bool, asked: dict[str, Any], mode: str
) -> None:
    async with watched_proxy(top, {"one": {"plain_model": plain}}, builtin_tools=tools) as seen:
        assert (await seen.turn_of("one", path, **asked)).mode == mode


@PATHS
@pytest.mark.parametrize(("tools", "plain"), [("never", False), ("always", True)])
@pytest.mark.parametrize("asked", [{"headers": {"X-Codex-Mode": "agent"}}, {"model": "codex-5:agent"}])
async def test_asking_for_the_agent_where_it_is_not_allowed_is_refused(
    top: Path, path: str, tools: str, plain: bool, asked: dict[str, Any]
) -> None:
    async with watched_proxy(top, {"one": {"plain_model": plain}}, builtin_tools=tools) as seen:
        with pytest.raises(AssertionError, match="not_allowed"):
            await seen.turn_of("one", path, **asked)
        assert seen.turns == []
