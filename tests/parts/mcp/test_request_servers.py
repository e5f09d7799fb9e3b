"""Servers that a request names: real ones over Streamable HTTP and SSE."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.mcp.config import SETTING, HttpServer
from codex_proxy.parts.mcp.request_servers import NamedServer, RequestServers
from codex_proxy.parts.mcp.servers import OperatorServers
from codex_proxy.parts.mcp.values import McpFaultKind, McpLimits, McpListing
from tests.mcp.serving import ManualClock, web_server
from tests.parts.mcp.definitions import LONG, arguments, command_of, texts
from tests.waiting import eventually, poll

Make = Callable[..., RequestServers]


@pytest.fixture(scope="module")
def streamable() -> Iterator[int]:
    with web_server("http", "--elsewhere", "http://127.0.0.1:9/mcp") as (port, _):
        yield port


@pytest.fixture(scope="module")
def sse() -> Iterator[int]:
    with web_server("sse") as (port, _):
        yield port


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Make]:
    """Makes `RequestServers` that permit the given URLs, and closes them after the test."""
    made: list[RequestServers] = []

    def make_one(
        *allowed: str,
        resolve: object = None,
        idle_seconds: float = LONG,
        max_sessions: int = 8,
        **limits: float,
    ) -> RequestServers:
        given = msgspec.structs.replace(McpLimits(list_seconds=LONG), **limits)
        made.append(
            RequestServers(
                allowed,
                clock=clock,
                limits=given,
                idle_seconds=idle_seconds,
                max_sessions=max_sessions,
                resolve=resolve,  # type: ignore[arg-type]
            )
        )
        return made[-1]

    yield make_one
    for servers in made:
        await servers.close()


def server_at(port: int, path: str = "/mcp", **more: object) -> NamedServer:
    url = f"http://127.0.0.1:{port}{path}"
    return msgspec.structs.replace(NamedServer(server_label="tests", server_url=url), **more)


def names(listing: McpListing) -> set[str]:
    return {tool.name for tool in listing.tools}


async def test_no_address_is_allowed_unless_the_operator_lists_it(make: Make) -> None:
    with pytest.raises(Fault) as caught:
        await make().tools(server_at(80), "me")
    assert caught.value.failure.kind == FaultKind.INVALID_REQUEST
    assert SETTING in caught.value.failure.message


@pytest.mark.parametrize("transport", ["streamable", "sse"])
async def test_tools_are_listed_and_run_over_both_transports(
    make: Make, request: pytest.FixtureRequest, transport: str
) -> None:
    port = request.getfixturevalue(transport)
    servers, server = make(f"http://127.0.0.1:{port}/"), server_at(port)
    listing = await servers.tools(server, "me")
    assert listing.faults == ()
    assert "echo" in names(listing)
    result = await servers.call(server, "me", "echo", arguments(text="hello"), LONG)
    assert (result.text, result.is_error) == ("hello", False)


async def test_a_url_that_ends_in_sse_is_taken_for_an_sse_server(make: Make, sse: int) -> None:
    assert "echo" in names(await make(f"http://127.0.0.1:{sse}").tools(server_at(sse, "/sse"), "me"))


async def test_an_sse_server_whose_address_for_messages_is_not_listed_is_refused(
    make: Make, sse: int
) -> None:
    listing = await make(f"http://127.0.0.1:{sse}/sse").tools(server_at(sse, "/sse"), "me")
    assert listing.tools == ()
    assert listing.faults[0].kind == McpFaultKind.FORBIDDEN
    assert SETTING in listing.faults[0].message


async def test_headers_and_authorization_reach_the_server(make: Make, streamable: int) -> None:
    servers = make(f"http://127.0.0.1:{streamable}/mcp")
    server = server_at(streamable, headers={"X-Key": "k1", "authorization": "Basic x"}, authorization="t0ken")
    for name, value in (("x-key", "k1"), ("authorization", "Bearer t0ken")):
        result = await servers.call(server, "me", "header", arguments(text=name), LONG)
        assert texts(result) == [value]


async def test_an_answer_of_very_many_values_is_not_decoded(make: Make, streamable: int) -> None:
    """A long one of few values is."""
    servers, server = make(f"http://127.0.0.1:{streamable}/"), server_at(streamable)
    result = await servers.call(server, "me", "values", arguments(size=400_000), LONG)
    assert texts(result) == ["MCP server 'tests' sent an answer that is too large."]
    result = await servers.call(server, "me", "big", arguments(size=2_000_000), LONG)
    assert texts(result)[1] == "[This result was too large: its text was cut to 1 MiB.]"


async def test_a_server_that_wants_credentials_is_a_fault_that_says_so_and_holds_none(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with web_server("http", "--token", "right-token") as (port, _):
        servers = make(f"http://127.0.0.1:{port}/")
        listing = await servers.tools(server_at(port, authorization="wrong-token"), "me")
        assert listing.faults[0].kind == McpFaultKind.UNAUTHORIZED
        assert "wrong-token" not in str(listing.faults)
        right = server_at(port, authorization="right-token")
        assert "echo" in names(await servers.tools(right, "me"))
        assert texts(await servers.call(right, "me", "echo", arguments(text="in"), LONG)) == ["in"]
    assert "-token" not in caplog.text


@pytest.mark.parametrize("name", ["Host", "content-length", "Mcp-Session-Id", "X-Bad Name", "X:Y"])
async def test_headers_that_lead_elsewhere_or_break_the_protocol_are_refused(make: Make, name: str) -> None:
    with pytest.raises(Fault, match="header") as caught:
        make("http://127.0.0.1:80/").check(server_at(80, headers={name: "secret-value"}))
    assert "secret-value" not in caught.value.failure.message


async def test_a_line_break_in_a_header_or_token_is_refused(make: Make) -> None:
    servers = make("http://127.0.0.1:80/")
    with pytest.raises(Fault, match="header"):
        servers.check(server_at(80, headers={"X-Key": "a\r\nHost: b"}))
    with pytest.raises(Fault, match="authorization"):
        servers.check(server_at(80, authorization="a\r\nHost: b"))


async def test_a_redirect_on_the_list_is_followed(make: Make, streamable: int) -> None:
    listing = await make(f"http://127.0.0.1:{streamable}/").tools(server_at(streamable, "/same"), "me")
    assert "echo" in names(listing)


async def test_a_redirect_off_the_list_is_not_followed(make: Make, streamable: int) -> None:
    servers = make(f"http://127.0.0.1:{streamable}/away", f"http://127.0.0.1:{streamable}/same")
    for path in ("/away", "/same"):
        listing = await servers.tools(server_at(streamable, path), "me")
        assert listing.tools == ()
        assert listing.faults[0].kind == McpFaultKind.FORBIDDEN


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["169.254.169.254"], ["::1"]]
)
async def test_a_listed_name_that_resolves_to_a_private_address_is_not_connected_to(
    make: Make, streamable: int, found: list[str]
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return found

    server = NamedServer(server_label="tests", server_url=f"http://tools.example:{streamable}/mcp")
    listing = await make(f"http://tools.example:{streamable}/mcp", resolve=resolve).tools(server, "me")
    assert listing.faults[0].kind == McpFaultKind.FORBIDDEN
    assert "not public" in listing.faults[0].message


async def test_localhost_on_the_list_is_this_machine_and_nothing_else(make: Make, streamable: int) -> None:
    found = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found

    url = f"http://localhost:{streamable}/mcp"
    server = NamedServer(server_label="tests", server_url=url)
    assert "echo" in names(await make(url, resolve=resolve).tools(server, "me"))
    found[:] = ["10.0.0.1"]
    listing = await make(url, resolve=resolve).tools(server, "me")
    assert listing.faults[0].kind == McpFaultKind.FORBIDDEN


async def test_what_was_resolved_and_checked_is_what_is_connected_to(make: Make, streamable: int) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    url = f"http://localhost:{streamable}/mcp"
    listing = await make(url, resolve=resolve).tools(NamedServer(server_label="tests", server_url=url), "me")
    assert len(asked) > 1  # each request is checked for itself, also one that reuses a connection
    assert listing.faults[0].kind == McpFaultKind.FORBIDDEN


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize(("certified", "reached"), [("localhost", True), ("127.0.0.1", False)])
async def test_a_certificate_is_checked_for_the_name_though_the_address_is_connected_to(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certified: str, reached: bool
) -> None:
    from tests.certificates import certificate  # a package that only some tests need

    file = certificate(tmp_path, certified)
    monkeypatch.setenv("SSL_CERT_FILE", file)
    with web_server("http", "--certificate", file) as (port, _):
        url = f"https://localhost:{port}/mcp"
        listing = await make(url).tools(NamedServer(server_label="tests", server_url=url), "me")
        assert ("echo" in names(listing)) == reached
        assert [fault.kind for fault in listing.faults] == ([] if reached else [McpFaultKind.UNREACHABLE])


async def test_an_unreachable_server_is_a_fault_without_its_url(make: Make) -> None:
    url = "http://127.0.0.1:9/mcp?key=sk-secret"
    listing = await make("http://127.0.0.1:9/").tools(NamedServer(server_label="gone", server_url=url), "me")
    assert listing.faults[0].kind == McpFaultKind.UNREACHABLE
    assert "sk-secret" not in listing.faults[0].message


async def test_sessions_are_kept_for_an_owner_and_shared_with_no_other(make: Make, streamable: int) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp"), server_at(streamable)

    async def session(owner: str, of: NamedServer = server) -> list[str]:
        return texts(await servers.call(of, owner, "header", arguments(text="mcp-session-id"), LONG))

    mine = await session("me")
    assert mine == await session("me")
    assert mine != await session("you")
    assert mine != await session("me", server_at(streamable, authorization="other"))


async def test_a_call_to_a_server_that_lost_the_session_is_repeated_in_a_new_one(
    make: Make, streamable: int
) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp"), server_at(streamable)

    async def session() -> list[str]:
        return texts(await servers.call(server, "me", "header", arguments(text="mcp-session-id"), LONG))

    before = await session()
    assert texts(await servers.call(server, "me", "lose_session", "{}", LONG)) == ["forgotten"]
    after = await session()
    assert len(after[0]) == len(before[0])
    assert after != before


async def test_a_server_that_lost_the_session_lists_its_tools_in_a_new_one(
    make: Make, streamable: int, clock: ManualClock
) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp"), server_at(streamable)
    await servers.call(server, "me", "lose_session", "{}", LONG)
    clock.now += 10
    listing = await servers.tools(server, "me")
    assert (listing.faults, "echo" in names(listing)) == ((), True)


async def test_a_session_that_nobody_uses_is_closed_after_a_while(make: Make, streamable: int) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp", idle_seconds=0.05), server_at(streamable)

    async def session() -> list[str]:
        return texts(await servers.call(server, "me", "header", arguments(text="mcp-session-id"), LONG))

    before = await session()
    await eventually(lambda: len(servers._sessions) == 0)
    assert await session() != before


async def test_a_session_in_use_outlives_the_time_of_those_that_nobody_uses(
    make: Make, streamable: int
) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp", idle_seconds=0.1), server_at(streamable)
    first = asyncio.create_task(servers.call(server, "me", "meet", arguments(count=2, text="1"), LONG))
    await eventually(lambda: len(servers._sessions) == 1)
    await servers.tools(server, "you")
    await eventually(lambda: len(servers._sessions) == 1)  # yours is closed, whose time began after mine
    assert texts(await servers.call(server, "me", "meet", arguments(count=2, text="2"), LONG)) == ["2"]
    assert texts(await first) == ["1"]


async def test_the_time_of_a_session_begins_at_the_end_of_its_last_use(
    make: Make, streamable: int, tmp_path: Path
) -> None:
    idle, clock = 0.1, asyncio.get_running_loop().time
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp", idle_seconds=idle), server_at(streamable)
    call = asyncio.create_task(servers.call(server, "me", "hang", arguments(folder=str(tmp_path)), LONG))
    await eventually((tmp_path / "called").exists)
    longer = clock() + 0.5 * idle
    await eventually(lambda: clock() > longer)
    call.cancel()
    ended = clock()
    await eventually(lambda: len(servers._sessions) == 0)
    assert clock() - ended >= idle


async def test_the_package_logs_nothing_since_it_would_log_addresses_and_messages(
    make: Make, streamable: int
) -> None:
    await make(f"http://127.0.0.1:{streamable}/mcp").tools(server_at(streamable), "me")
    for name in ("mcp.client.sse", "mcp.client.streamable_http", "client", "httpx2", "httpcore2.http11"):
        assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)


@pytest.mark.exhaustive
async def test_a_session_in_use_is_not_closed_for_another(
    make: Make, streamable: int, tmp_path: Path
) -> None:
    servers, server = make(f"http://127.0.0.1:{streamable}/mcp", max_sessions=1), server_at(streamable)
    call = asyncio.create_task(servers.call(server, "me", "hang", arguments(folder=str(tmp_path)), LONG))
    await eventually((tmp_path / "called").exists)
    listing = await servers.tools(server, "you")
    assert "too many MCP servers" in listing.faults[0].message
    call.cancel()
    await asyncio.wait((call,))
    assert "echo" in names(await servers.tools(server, "you"))


@pytest.mark.parametrize("transport", ["streamable", pytest.param("sse", marks=pytest.mark.exhaustive)])
async def test_a_call_that_hangs_ends_at_its_deadline_and_the_server_is_asked_to_stop(
    make: Make, request: pytest.FixtureRequest, transport: str, tmp_path: Path
) -> None:
    port = request.getfixturevalue(transport)
    servers, server = make(f"http://127.0.0.1:{port}/"), server_at(port)
    await servers.tools(server, "me")
    result = await servers.call(server, "me", "hang", arguments(folder=str(tmp_path)), 0.3)
    assert result.fault is not None
    assert result.fault.kind == McpFaultKind.TIMED_OUT
    await eventually((tmp_path / "cancelled").exists)
    assert texts(await servers.call(server, "me", "echo", arguments(text="well"), LONG)) == ["well"]


async def test_a_server_that_answers_no_notification_is_an_error_long_before_the_deadline_of_calls(
    make: Make, streamable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.mcp.http_transports.NOTIFICATION_SECONDS", 0.05)
    servers = make(f"http://127.0.0.1:{streamable}/silent")
    listing = await servers.tools(server_at(streamable, "/silent"), "me")
    assert [fault.kind for fault in listing.faults] == [McpFaultKind.UNREACHABLE]


@pytest.mark.exhaustive
async def test_a_result_of_20_mb_is_cut_over_streamable_http_too(make: Make, streamable: int) -> None:
    servers = make(f"http://127.0.0.1:{streamable}/mcp")
    result = await servers.call(server_at(streamable), "me", "big", arguments(size=20_000_000), LONG)
    assert (result.truncated, len(texts(result)[0])) == (True, McpLimits().text_bytes)


@pytest.mark.exhaustive
async def test_an_event_above_what_the_older_transport_takes_is_an_error_result(make: Make, sse: int) -> None:
    servers = make(f"http://127.0.0.1:{sse}/")
    result = await servers.call(server_at(sse), "me", "big", arguments(size=20_000_000), LONG)
    assert (result.is_error, result.fault is not None) == (True, True)
    assert texts(await servers.call(server_at(sse), "me", "echo", arguments(text="well"), LONG)) == ["well"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_dies_in_a_call_gives_an_error_result(make: Make, transport: str) -> None:
    with web_server(transport) as (port, process):
        servers, server = make(f"http://127.0.0.1:{port}/"), server_at(port)
        result = await servers.call(server, "me", "die", "{}", LONG)
        assert result.is_error
        assert result.fault is not None
        process.wait()
        again = await servers.call(server, "me", "echo", arguments(text="hello"), LONG)
        assert again.is_error
        assert again.fault is not None
        assert again.fault.kind in (McpFaultKind.UNREACHABLE, McpFaultKind.DIED)


@pytest.mark.exhaustive
async def test_an_operators_server_may_have_any_url_and_gets_its_headers(streamable: int) -> None:
    own = HttpServer(label="own", url=f"http://localhost:{streamable}/mcp", headers={"X-Key": "k2"})
    servers = OperatorServers({"own": own}, command_of, clock=ManualClock())
    try:
        assert texts(await servers.call("own", "header", arguments(text="x-key"), LONG)) == ["k2"]
        assert texts(await servers.call("own", "change", "{}", LONG)) == ["changed"]

        async def lists_the_new_one() -> bool:
            return "new" in names(await servers.tools())

        await poll(lists_the_new_one)  # it comes on a stream of its own
    finally:
        await servers.close()


@pytest.mark.exhaustive
async def test_after_close_a_session_is_refused(make: Make, streamable: int) -> None:
    servers = make(f"http://127.0.0.1:{streamable}/mcp")
    await servers.tools(server_at(streamable), "me")
    await servers.close()
    assert (await servers.tools(server_at(streamable), "me")).faults[0].kind == McpFaultKind.CLOSED
