"""GET /metrics: who may read it, what is counted, and that labels are bounded."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from codex_proxy.core.events import OutputDelta, TextDelta, TurnEnded, Usage, UsageReported
from codex_proxy.http.exchange import TurnTimings
from tests.http.serving import Hands, Proxy, fake_agent, fake_proxy, proxy_of, until, user
from tests.waiting import hold_up_the_loop, poll

CHAT = "/v1/chat/completions"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
async def proxy_with_metrics(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, {"FAKE_CODEX_MODELS": "any"}, metrics=True) as proxy:
        yield proxy


async def samples(proxy: Proxy) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and labels."""
    answer = await proxy.send("GET", "/metrics")
    assert answer.status == 200, answer.text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def value(proxy: Proxy, name: str, **labels: str) -> float:
    """One sample; 0 where there is none yet."""
    return (await samples(proxy)).get((f"codex_proxy_{name}", frozenset(labels.items())), 0.0)


async def test_without_the_setting_metrics_are_a_404(proxy: Proxy) -> None:
    assert (await proxy.send("GET", "/metrics")).status == 404


async def test_choice_counts_and_finish_reasons_are_counted(proxy_with_metrics: Proxy) -> None:
    await proxy_with_metrics.ask(user())
    await proxy_with_metrics.ask(user("[[fake:length]]", stream=True, n=3))
    await proxy_with_metrics.ask(user("[[fake:future_finish_reason]]"))
    await proxy_with_metrics.ask(user("[[fake:error_500]]"))
    responses = "/v1/responses"
    await proxy_with_metrics.send("POST", responses, json={"model": "codex-5", "input": "Hello"})
    assert await value(proxy_with_metrics, "choice_count_sum") == 1 + 3 + 1 + 1
    assert await value(proxy_with_metrics, "choice_count_count") == 4
    reasons = {
        (labels["route"], labels["reason"]): count
        for (name, pairs), count in (await samples(proxy_with_metrics)).items()
        if name == "codex_proxy_finish_reasons_total" and (labels := dict(pairs))
    }
    assert reasons == {
        (CHAT, "stop"): 1,
        (CHAT, "length"): 1,
        (CHAT, "other"): 1,
        (responses, "completed"): 1,
    }


async def test_requests_are_counted_by_route_template_status_and_error(proxy_with_metrics: Proxy) -> None:
    await proxy_with_metrics.ask(user())
    await proxy_with_metrics.ask(user(stream=True))
    await proxy_with_metrics.ask(user(n=0))
    await proxy_with_metrics.send("GET", "/v1/models/codex-5")
    await proxy_with_metrics.send("GET", "/v1/models/another-name-that-nobody-knows")
    ok = {"route": CHAT, "method": "POST", "status": "200", "error": ""}
    assert await value(proxy_with_metrics, "requests_total", **ok) == 2
    refused = ok | {"status": "400", "error": "invalid_request"}
    assert await value(proxy_with_metrics, "requests_total", **refused) == 1
    one = {"route": "/v1/models/{id}", "method": "GET", "status": "200", "error": ""}
    assert await value(proxy_with_metrics, "requests_total", **one) == 2


async def test_a_stream_that_fails_after_its_first_byte_is_counted_with_its_error(
    proxy_with_metrics: Proxy,
) -> None:
    answer = await proxy_with_metrics.ask(user("[[fake:count n=30 misbehave=crash at=20]]", stream=True))
    assert answer.status == 200
    labels = {"route": CHAT, "method": "POST", "status": "200", "error": "agent_crashed"}
    assert await value(proxy_with_metrics, "requests_total", **labels) == 1


async def test_paths_and_methods_that_do_not_exist_make_no_labels(proxy_with_metrics: Proxy) -> None:
    for path in ("/a", "/b", "/v1/c"):
        await proxy_with_metrics.send("GET", path)
    await proxy_with_metrics.send("PURGE", "/a")
    counted = [dict(labels) for name, labels in await samples(proxy_with_metrics) if "requests_total" in name]
    assert {labels["route"] for labels in counted} == {"unknown"}
    unknown = {"route": "unknown", "method": "GET", "status": "404", "error": "not_found"}
    assert await value(proxy_with_metrics, "requests_total", **unknown) == 3
    assert await value(proxy_with_metrics, "requests_total", **unknown | {"method": "other"}) == 1


async def test_tokens_are_counted_by_kind_and_model_and_unknown_models_are_other(
    proxy_with_metrics: Proxy,
) -> None:
    said = "[[fake:text in=100 cached=40 out=20 reasoning=5]]"
    for model in ("codex-5", "CODEX-5:agent", "no-such-model-1", "no-such-model-2"):
        answer = await proxy_with_metrics.ask(user(said) | {"model": model})
        assert answer.status == 200
    for model in ("codex-5", "other"):
        for kind, count in (("input", 100), ("cached_input", 40), ("output", 20), ("reasoning", 5)):
            assert await value(proxy_with_metrics, "tokens_total", kind=kind, model=model) == 2 * count
    models = {
        dict(labels)["model"] for name, labels in await samples(proxy_with_metrics) if "tokens_total" in name
    }
    assert models == {"codex-5", "other"}


async def test_deltas_and_times_are_counted(proxy_with_metrics: Proxy) -> None:
    await proxy_with_metrics.ask(user("[[fake:count n=30]]", stream=True))
    assert await value(proxy_with_metrics, "deltas_total", route=CHAT) == 30
    assert await value(proxy_with_metrics, "first_token_seconds_count", route=CHAT) == 1
    assert await value(proxy_with_metrics, "request_seconds_count", route=CHAT) == 1
    first = await value(proxy_with_metrics, "first_token_seconds_sum", route=CHAT)
    assert 0 < first <= await value(proxy_with_metrics, "request_seconds_sum", route=CHAT)


async def test_an_open_stream_is_seen_with_its_turn_and_its_child(tmp_path: Path) -> None:
    release = tmp_path / "release"
    settings: dict[str, Any] = {"metrics": True, "sse_max_concurrency": 7}
    async with fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(release)}, **settings) as proxy:
        async with proxy.open(user("[[fake:text hold=1]]", stream=True)) as reply:
            await reply.content.readany()
            assert await value(proxy, "active_streams") == 1
            assert await value(proxy, "stream_limit") == 7
            assert await value(proxy, "turns_running") == 1
            assert await value(proxy, "children", state="busy") == 1
            release.touch()
            await reply.read()
        await proxy.settled()
        assert await value(proxy, "active_streams") == 0

        async def no_child_is_busy() -> bool:  # it may outlive its turn for a moment
            return await value(proxy, "children", state="busy") == 0

        await poll(no_child_is_busy)


async def test_a_client_that_leaves_is_counted_as_such(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(tmp_path / "never")}, metrics=True) as proxy:
        async with proxy.open(user("[[fake:text hold=1]]", stream=True)) as reply:
            await reply.content.readany()
            reply.close()
        await proxy.settled()
        labels = {"route": CHAT, "method": "POST", "status": "499", "error": "client_left"}
        assert await value(proxy, "requests_total", **labels) == 1


async def test_app_server_processes_and_their_restarts_are_seen(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, metrics=True, fake_dialect="app-server") as proxy:
        assert await value(proxy, "children", state="idle") == 1
        await proxy.ask(user("[[fake:text misbehave=crash]]"))
        agent = proxy.server.agent
        await until(lambda: agent.pool.restarts == 1)  # type: ignore[attr-defined]
        assert await value(proxy, "child_restarts_total") == 1


async def test_metrics_name_the_agent_and_whether_it_could_serve(proxy_with_metrics: Proxy) -> None:
    assert await value(proxy_with_metrics, "agent_ready") == 1
    infos = [dict(labels) for name, labels in await samples(proxy_with_metrics) if name == "codex_proxy_info"]
    assert [info["agent"] for info in infos] == ["fake"]
    assert await value(proxy_with_metrics, "store_bytes") > 0


async def test_without_a_store_it_has_no_size(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, metrics=True, store="off") as proxy:
        assert not any("store_bytes" in name for name, _ in await samples(proxy))


async def test_two_servers_in_one_process_count_apart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metrics": True, "store": "off"}
    async with fake_proxy(tmp_path, **settings) as one, fake_proxy(tmp_path, **settings) as two:
        await one.send("GET", "/livez")
        labels = {"route": "/livez", "method": "GET", "status": "200", "error": ""}
        assert await value(one, "requests_total", **labels) == 1
        assert await value(two, "requests_total", **labels) == 0


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer api"}])
async def test_with_a_key_of_their_own_metrics_want_that_key(tmp_path: Path, header: dict[str, str]) -> None:
    async with fake_proxy(tmp_path, metrics=True, metrics_key="mine", api_key="api") as proxy:
        refused = await proxy.send("GET", "/metrics", headers=header)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        answer = await proxy.send("GET", "/metrics", headers={"Authorization": "Bearer mine"})
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain")


async def test_without_a_metrics_key_this_machine_reads_metrics_even_where_clients_need_a_key(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, metrics=True, api_key="api") as proxy:
        assert (await proxy.send("GET", "/metrics")).status == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
async def test_without_a_metrics_key_nobody_behind_a_reverse_proxy_reads_metrics(
    proxy_with_metrics: Proxy, header: str
) -> None:
    answer = await proxy_with_metrics.send("GET", "/metrics", headers={header: "for=192.0.2.1"})
    assert (answer.status, answer.error["code"]) == (403, "not_allowed")


async def test_a_request_with_a_foreign_host_name_does_not_read_metrics(proxy_with_metrics: Proxy) -> None:
    assert (await proxy_with_metrics.send("GET", "/metrics", headers={"Host": "evil.example"})).status == 403


async def test_without_a_metrics_key_another_machine_does_not_read_metrics(tmp_path: Path) -> None:
    other = own_address()
    settings: dict[str, Any] = {"metrics": True, "host": "0.0.0.0", "api_key": "api"}
    async with proxy_of(fake_agent(), tmp_path, **settings) as proxy:
        url = f"http://{other}:{proxy.server.port}/metrics"
        async with proxy.session.get(url) as reply:
            assert reply.status == 403


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses a way out
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return address


@pytest.mark.part("upstream")
async def test_the_dashboard_and_the_document_name_the_metrics_that_there_are(
    proxy_with_metrics: Proxy, tmp_path: Path
) -> None:
    await proxy_with_metrics.ask(user(stream=True))
    found = set(await samples(proxy_with_metrics))
    dead = {"dead": {"url": "http://127.0.0.1:1/v1"}}
    async with fake_proxy(tmp_path, metrics=True, store="memory", upstreams=dead) as several:
        await several.ask(user())
        found |= set(await samples(several))
    there_are = {name for name, _ in found if not name.endswith("_created")}
    ours = {name for name in there_are if name.startswith("codex_proxy_")}
    dashboard = (DOCS / "grafana-dashboard.json").read_text("utf-8")
    asked = set(re.findall(r"\b(?:codex_proxy|process)_\w+", dashboard))
    assert asked - there_are == set()
    document = (DOCS / "operations.md").read_text("utf-8")
    told = set(re.findall(r"\bcodex_proxy_\w+", document))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in ours}
    assert told == families


def test_a_tally_counts_deltas_and_keeps_the_newest_usage() -> None:
    counts = TurnTimings(Hands(), counts=True)
    counts.record([TextDelta("a", "x"), TextDelta("a", "y"), UsageReported(Usage(1, 0, 1, 0))])
    counts.record(
        [
            OutputDelta("b", "z"),
            UsageReported(Usage(2, 0, 2, 0)),
            UsageReported(Usage(3, 0, 3, 0)),
            TurnEnded("stop"),
        ]
    )
    assert counts.deltas == 3
    assert counts.usage == Usage(3, 0, 3, 0)


def test_without_metrics_nothing_is_counted() -> None:
    timings = TurnTimings(Hands())
    timings.record([TextDelta("a", "x")])
    assert timings.deltas == 0


async def test_metrics_show_that_the_event_loop_was_held_up(proxy_with_metrics: Proxy) -> None:
    hold_up_the_loop(0.2)
    await poll(lambda: value(proxy_with_metrics, "event_loop_delay_seconds_count"))
    assert await value(proxy_with_metrics, "event_loop_delay_max_seconds") >= 0.1
    within = await value(proxy_with_metrics, "event_loop_delay_seconds_bucket", le="0.1")
    assert await value(proxy_with_metrics, "event_loop_delay_seconds_count") > within
