"""What stands between a parsed request and a run: the folder of the turn, and what the agent can do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.server import make_server
from tests.http.serving import ENVIRONMENT, Answer, Proxy, fake_proxy, running_proxy, settings_of, user
from tests.weather_tool import CHAT_WEATHER


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The server's own folder, one in it, one of a configured root, and one outside."""
    named = {name: tmp_path / name for name in ("own", "own/inner", "root", "root/inner", "outside")}
    for folder in named.values():
        folder.mkdir()
    (tmp_path / "own" / "way_out").symlink_to(tmp_path / "outside")
    (tmp_path / "own" / "file").write_text("")
    return named


@pytest.fixture
async def proxy(tmp_path: Path, folders: dict[str, Path]) -> AsyncIterator[Proxy]:
    async with fake_proxy(
        tmp_path, workdir=folders["own"], workdir_roots=str(folders["root"]), state_dir=tmp_path / "state"
    ) as running:
        yield running


async def in_folder(proxy: Proxy, folder: Any, *, header: bool) -> Answer:
    if header:
        return await proxy.ask(user(), headers={"X-Codex-Workdir": str(folder)})
    return await proxy.ask(user(metadata={"workdir": str(folder)}))


BOTH_WAYS = pytest.mark.parametrize(
    ("header", "param"), [(True, "X-Codex-Workdir"), (False, "metadata.workdir")]
)


@pytest.mark.sampled(every=3)
@BOTH_WAYS
@pytest.mark.parametrize("name", ["own", "own/inner", "root", "root/inner"])
async def test_a_request_may_choose_a_folder_inside_the_roots(
    proxy: Proxy, folders: dict[str, Path], name: str, header: bool, param: str
) -> None:
    assert (await in_folder(proxy, folders[name], header=header)).status == 200


@BOTH_WAYS
@pytest.mark.parametrize("path", ["outside", "own/way_out", "own/../outside", "own/missing", "own/file"])
async def test_a_folder_outside_missing_or_none_is_400_and_names_who_asked(
    proxy: Proxy, tmp_path: Path, path: str, header: bool, param: str
) -> None:
    answer = await in_folder(proxy, tmp_path / path, header=header)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_folder_whose_name_begins_like_a_root_is_outside(proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "own2").mkdir()
    assert (await in_folder(proxy, tmp_path / "own2", header=True)).status == 400


@pytest.fixture
async def real_proto(tmp_path: Path, codex: Path) -> AsyncIterator[Proxy]:
    """A proxy whose agent can do only what the real proto dialect can."""
    settings = settings_of(tmp_path, agent="codex-proto", codex_bin=str(codex), codex_home=tmp_path)
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        yield proxy


async def test_a_request_that_the_agent_cannot_serve_is_a_400_that_names_parameter_and_agent(
    real_proto: Proxy,
) -> None:
    answer = await real_proto.ask(user(tools=[CHAT_WEATHER]))
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == ("tools", "unsupported_by_agent")
    assert "codex-proto" in answer.error["message"]


async def test_a_history_that_is_flattened_for_the_agent_is_reported_in_a_header(real_proto: Proxy) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    for stream in (True, False):
        flattened = await real_proto.ask({"model": "codex-5", "messages": messages, "stream": stream})
        assert flattened.status == 200
        assert flattened.headers["x-codex-history"] == "flattened"
    assert "x-codex-history" not in (await real_proto.ask(user())).headers


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("chat/completions", user("[[fake:error_500]]"), id="chat"),
        pytest.param("chat/completions", user("[[fake:error_500]]", n=2), id="two choices"),
        pytest.param("messages", user("[[fake:error_500]]", max_tokens=9), id="messages"),
        pytest.param("responses", {"model": "codex-5", "input": "[[fake:error_500]]"}, id="responses"),
        pytest.param(
            "responses", {"model": "codex-5", "input": "[[fake:error_500]]", "store": False}, id="unstored"
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_error_of_a_turn_that_failed_names_its_agent(
    proxy: Proxy, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = await proxy.send("POST", f"/v1/{path}", body | {"stream": stream})
    assert (answer.status >= 500, answer.headers["x-codex-agent"]) == (True, "fake")


async def test_a_request_that_is_refused_names_no_agent(proxy: Proxy) -> None:
    answer = await proxy.ask(user(n=0))
    assert (answer.status, "x-codex-agent" in answer.headers) == (400, False)


async def test_an_agent_with_a_history_gets_the_roles_as_they_are(proxy: Proxy) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "[[fake:echo]]"},
    ]
    answer = await proxy.ask({"model": "codex-5", "messages": messages})
    assert "x-codex-history" not in answer.headers
    heard = json.loads(answer.body["choices"][0]["message"]["content"])
    assert [item["role"] for item in heard["history"]][-3:] == ["user", "assistant", "user"]


async def test_a_service_tier_that_was_asked_for_is_answered_streamed_and_whole(proxy: Proxy) -> None:
    whole = (await proxy.ask(user(service_tier="auto"))).body
    assert whole["service_tier"] == "default"
    streamed = await proxy.ask(user(service_tier="flex", stream=True, stream_options={"include_usage": True}))
    assert {frame["service_tier"] for frame in streamed.frames[:-1]} == {"flex"}
    assert "service_tier" not in (await proxy.ask(user())).body


async def test_a_service_tier_that_the_agent_does_not_have_is_named_and_not_claimed(
    real_proto: Proxy,
) -> None:
    answer = await real_proto.ask(user(service_tier="flex"))
    assert (answer.body["service_tier"], answer.headers["x-codex-ignored-params"]) == (
        "default",
        "service_tier",
    )


async def test_a_search_that_the_agent_does_not_have_is_named(proxy: Proxy) -> None:
    answer = await proxy.ask(user(web_search_options={}))
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "web_search_options")


async def test_a_verbosity_that_the_agent_does_not_take_is_named(proxy: Proxy) -> None:
    answer = await proxy.ask(user(verbosity="low"))
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "verbosity")
    body = {"model": "codex-5", "input": "Hello.", "text": {"verbosity": "low"}}
    answer = await proxy.send("POST", "/v1/responses", body)
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "text.verbosity")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "[[fake:context_length]]"}]}),
        ("/v1/responses", {"input": "[[fake:context_length]]"}),
        ("/v1/completions", {"prompt": "[[fake:context_length]]"}),
    ],
)
async def test_a_context_that_is_too_long_is_blamed_on_the_field_that_has_it(
    proxy: Proxy, path: str, body: dict[str, Any]
) -> None:
    answer = await proxy.send("POST", path, json={"model": "codex-5", **body})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == next(iter(body))
