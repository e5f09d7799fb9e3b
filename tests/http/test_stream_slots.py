"""The guard of streams (docs/contract.md#the-guard-of-streams), through a real port."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.http.sse import StreamSlots
from tests.http.serving import Answer, fake_proxy, until, user

HELD_REQUEST = user("[[fake:text hold=1]]", stream=True)
"""A stream that says one word, then waits for the release file."""


def one_stream_proxy(folder: Path, **settings: Any) -> Any:
    """A proxy that allows one stream, with a release file for held turns."""
    file = folder / "release"
    given = {"sse_max_concurrency": 1, "test_endpoints": True, "stream_release_file": str(file)}
    return fake_proxy(folder, {"STREAM_RELEASE_FILE": str(file)}, **(given | settings))


def conc(answer: Any) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(f"X-Conc-{name}") for name in ("Before", "After", "Limit"))


def guard_lines(logged: list[Any]) -> list[tuple[Any, ...]]:
    lines = [line for line in logged if line.get("scope") == "sse_guard"]
    return [(line["outcome"], line["before"], line["after"], line["limit"]) for line in lines]


async def test_the_guard_rejects_additional_streams_with_429(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path) as proxy, proxy.open(HELD_REQUEST) as held:
        await held.content.readline()
        answer = await proxy.ask(user(stream=True))
        assert answer.status == 429
        assert answer.error["type"] == "rate_limit_error"
        assert answer.error["code"] == "concurrency_exceeded"
        assert int(answer.headers["Retry-After"]) >= 1
        await proxy.send("POST", "/__test/conc/release")
        assert (await held.text()).endswith("data: [DONE]\n\n")


async def test_accepted_and_rejected_streams_have_the_state_of_the_limit_in_headers(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path) as proxy, proxy.open(HELD_REQUEST) as held:
        assert conc(held) == ("0", "1", "1")
        assert conc(await proxy.ask(user(stream=True))) == ("1", "1", "1")


async def test_with_the_flag_off_no_header_and_no_endpoint_gives_the_guard_away(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path, test_endpoints=False) as proxy, proxy.open(HELD_REQUEST) as held:
        await held.content.readline()
        rejected = await proxy.ask(user(stream=True))
        assert rejected.status == 429
        assert conc(held) == conc(rejected) == (None, None, None)
        assert (await proxy.send("GET", "/__test/conc")).status == 404
        assert (await proxy.send("POST", "/__test/conc/release")).status == 404


async def test_the_guard_counts_streams_only(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path) as proxy, proxy.open(HELD_REQUEST) as held:
        await held.content.readline()
        assert (await proxy.ask(user())).status == 200


async def test_get_conc_returns_how_many_streams_are_open(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path, sse_max_concurrency=None) as proxy:
        assert (await proxy.send("GET", "/__test/conc")).body == {"conc": 0}
        async with proxy.open(HELD_REQUEST) as held:
            await held.content.readline()
            assert (await proxy.send("GET", "/__test/conc")).body == {"conc": 1}
        await until(lambda: proxy.streams == 0)
        assert (await proxy.send("GET", "/__test/conc")).body == {"conc": 0}


async def test_release_writes_the_release_file_and_held_streams_end(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path) as proxy, proxy.open(HELD_REQUEST) as held:
        assert not (tmp_path / "release").exists()
        assert (await proxy.send("POST", "/__test/conc/release")).body == {"released": True}
        assert (tmp_path / "release").exists()
        assert (await held.text()).endswith("data: [DONE]\n\n")


async def test_without_a_release_file_there_is_nothing_to_release_with(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, test_endpoints=True) as proxy:
        answer = await proxy.send("POST", "/__test/conc/release")
        assert answer.status == 404
        assert "STREAM_RELEASE_FILE" in answer.error["message"]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
async def test_the_test_endpoints_do_not_answer_through_a_reverse_proxy(tmp_path: Path, header: str) -> None:
    async with fake_proxy(tmp_path, test_endpoints=True) as proxy:
        assert (await proxy.send("GET", "/__test/conc", headers={header: "x"})).status == 403


async def test_a_slot_is_free_again_after_the_stream_has_finished(
    tmp_path: Path, log_lines: list[Any]
) -> None:
    async with one_stream_proxy(tmp_path) as proxy:
        for _ in range(3):
            assert (await proxy.ask(user(stream=True))).status == 200
            await until(lambda: proxy.streams == 0)
    assert guard_lines(log_lines) == [("acquired", 0, 1, 1), ("released", 1, 0, 1)] * 3
    assert {line["cause"] for line in log_lines if line.get("outcome") == "released"} == {"finish"}


async def test_a_slot_is_free_again_after_its_client_has_left(tmp_path: Path, log_lines: list[Any]) -> None:
    async with one_stream_proxy(tmp_path) as proxy:
        async with proxy.open(HELD_REQUEST) as held:
            await held.content.readline()
        await proxy.settled()
        assert (await proxy.ask(user(stream=True))).status == 200
        await proxy.settled()
    causes = [line["cause"] for line in log_lines if line.get("outcome") == "released"]
    assert causes == ["aborted", "finish"]


async def test_a_slot_is_free_again_after_the_turn_has_failed(tmp_path: Path, log_lines: list[Any]) -> None:
    async with one_stream_proxy(tmp_path) as proxy:
        assert (await proxy.ask(user("[[fake:error_500]]", stream=True))).status == 502
        assert proxy.streams == 0
        assert (await proxy.ask(user("[[fake:error_mid_text]]", stream=True))).status == 200
        await until(lambda: proxy.streams == 0)
    assert guard_lines(log_lines) == [("acquired", 0, 1, 1), ("released", 1, 0, 1)] * 2


async def test_a_response_that_gets_no_slot_does_not_hold_its_conversation(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path) as proxy, proxy.open(HELD_REQUEST) as held:
        await held.content.readline()
        conversation = (await proxy.send("POST", "/v1/conversations", {})).body["id"]
        body = {"model": "codex-5", "input": "Hello.", "conversation": conversation}
        refused = await proxy.send("POST", "/v1/responses", body | {"stream": True})
        assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
        assert (await proxy.send("POST", "/v1/responses", body)).status == 200


async def test_log_lines_are_keyed_by_req_id(tmp_path: Path, log_lines: list[Any]) -> None:
    async with (
        one_stream_proxy(tmp_path) as proxy,
        proxy.open(HELD_REQUEST, headers={"x-request-id": "one"}) as held,
    ):
        await held.content.readline()
        await proxy.ask(user(stream=True), headers={"x-request-id": "two"})
    lines = [(line["req_id"], line["outcome"]) for line in log_lines if line.get("scope") == "sse_guard"]
    assert lines == [("one", "acquired"), ("two", "rejected"), ("one", "released")]


async def test_acquisition_comes_before_the_child_is_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_stream_proxy(tmp_path) as proxy:
        seen: list[int] = []
        opening = proxy.server.agent.open

        async def open(turn: Any) -> Any:
            seen.append(proxy.streams)
            return await opening(turn)

        monkeypatch.setattr(proxy.server.agent, "open", open)
        async with proxy.open(HELD_REQUEST) as held:
            await held.content.readline()
            assert (await proxy.ask(user(stream=True))).status == 429
        assert seen == [1]


async def test_of_many_streams_at_once_exactly_the_limit_is_accepted(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path, sse_max_concurrency=3) as proxy:

        async def one() -> Answer | None:
            async with proxy.open(HELD_REQUEST) as reply:
                if reply.status == 200:
                    accepted.append(reply)
                    await everyone.wait()
                    return None
                return Answer(reply.status, reply.headers, await reply.text())

        accepted: list[Any] = []
        everyone = asyncio.Event()
        tasks = [asyncio.ensure_future(one()) for _ in range(8)]
        await until(lambda: sum(task.done() for task in tasks) + len(accepted) == len(tasks))
        assert len(accepted) == 3
        everyone.set()
        answers = await asyncio.gather(*tasks)
        assert [answer.status for answer in answers if answer] == [429] * 5


def test_a_released_slot_is_for_one_stream() -> None:
    guard = StreamSlots(1, lambda: 1)
    guard.acquire("one", "key")
    guard.release("one", "key", "close")
    assert guard.active == 0
    guard.acquire("two", "key")
    with pytest.raises(Fault):
        guard.acquire("three", "key")
    assert guard.active == 1


async def test_sampled_choices_share_one_slot(tmp_path: Path) -> None:
    async with one_stream_proxy(tmp_path, choices="sample") as proxy:
        answer: Answer = await proxy.ask(user(n=3, stream=True))
        assert answer.status == 200
        assert conc(answer) == ("0", "1", "1")
