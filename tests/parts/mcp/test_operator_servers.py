"""The operator's servers: real ones over stdio, under the warden."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from mcp_types import ToolListChangedNotification

from codex_proxy.core.items import ImagePart, TextPart
from codex_proxy.core.json_values import LONG_JSON
from codex_proxy.parts.mcp import stdio_transport
from codex_proxy.parts.mcp.config import Definition, StdioServer
from codex_proxy.parts.mcp.connection import McpConnection
from codex_proxy.parts.mcp.messages import Waiting
from codex_proxy.parts.mcp.servers import OperatorServers
from codex_proxy.parts.mcp.values import McpFaultKind, McpLimits
from tests.mcp.serving import ManualClock
from tests.parts.mcp.definitions import LONG, arguments, command_of, stdio, texts
from tests.process.children import have_ended
from tests.waiting import eventually

Make = Callable[..., OperatorServers]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make(clock: ManualClock) -> AsyncIterator[Make]:
    """Makes `OperatorServers` with the given definitions and limits, and closes them after the test."""
    made: list[OperatorServers] = []

    def make_one(*definitions: Definition, **limits: float) -> OperatorServers:
        by_label = {definition.label: definition for definition in definitions}
        given = msgspec.structs.replace(McpLimits(list_seconds=LONG), **limits)
        made.append(OperatorServers(by_label, command_of, clock=clock, limits=given))
        return made[-1]

    yield make_one
    for servers in made:
        await servers.close()


def test_the_mcp_package_is_imported_only_when_a_server_is_used() -> None:
    source = (
        "import sys, codex_proxy.parts.mcp.servers, codex_proxy.parts.mcp.request_servers\n"
        "print([name for name in ('mcp', 'mcp_types', 'httpx2', 'anyio') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


async def test_tools_are_listed_with_schema_and_annotations(make: Make) -> None:
    listing = await make(stdio("files")).tools()
    echo = next(tool for tool in listing.tools if tool.name == "echo")
    assert listing.faults == ()
    assert (echo.server_label, echo.description) == ("files", "Does echo.")
    assert msgspec.json.decode(echo.input_schema)["properties"] == {"text": {"type": "string"}}
    assert echo.annotations is not None
    assert msgspec.json.decode(echo.annotations) == {"readOnlyHint": True}


@pytest.mark.exhaustive
async def test_a_server_is_started_when_it_is_first_needed_and_then_kept(make: Make) -> None:
    servers = make(stdio("files"))
    first = await servers.call("files", "pid", "", LONG)
    second = await servers.call("files", "pid", "{}", LONG)
    assert texts(first) == texts(second)
    assert first.fault is None


@pytest.mark.exhaustive
async def test_a_result_is_a_json_array_of_its_texts_and_keeps_images(make: Make) -> None:
    result = await make(stdio("files")).call("files", "mixed", "{}", LONG)
    assert result.text == '["one","two"]'
    assert [type(part) for part in result.parts] == [TextPart, ImagePart, TextPart]
    assert isinstance(result.parts[1], ImagePart)
    assert result.parts[1].url.startswith("data:image/png;base64,iVBOR")
    assert (result.is_error, result.truncated) == (False, False)


@pytest.mark.exhaustive
async def test_500_tools_are_listed_page_by_page(make: Make) -> None:
    listing = await make(stdio("many", "--tools", "500")).tools()
    names = [tool.name for tool in listing.tools]
    assert [name for name in names if name.startswith("extra_")] == [f"extra_{n}" for n in range(500)]
    assert listing.faults == ()


@pytest.mark.exhaustive
async def test_of_too_many_tools_the_first_are_offered_and_the_rest_is_named_as_a_fault(make: Make) -> None:
    listing = await make(stdio("many", "--tools", "500"), max_tools=120).tools()
    assert len(listing.tools) == 120
    assert "all but the first 120 are left out" in listing.faults[0].message


@pytest.mark.exhaustive
async def test_a_list_whose_pages_never_end_is_cut_after_the_limit(make: Make) -> None:
    listing = await make(stdio("endless", "--endless"), max_pages=7).tools()
    assert [tool.name for tool in listing.tools if tool.name == "echo"] == ["echo"]
    assert listing.faults[0].kind == McpFaultKind.PROTOCOL


@pytest.mark.exhaustive
async def test_a_result_of_20_mb_is_cut_and_says_so(make: Make) -> None:
    result = await make(stdio("files")).call("files", "big", arguments(size=20_000_000), LONG)
    assert texts(result)[0] == "x" * McpLimits().text_bytes
    assert texts(result)[1] == "[This result was too large: its text was cut to 1 MiB.]"
    assert (result.truncated, result.is_error) == (True, False)


@pytest.mark.exhaustive
async def test_a_message_above_the_limit_ends_the_server_and_not_the_proxy(make: Make) -> None:
    servers = make(stdio("files"), message_bytes=1_000_000)
    result = await servers.call("files", "endless_line", arguments(size=2_000_000), LONG)
    assert texts(result) == ["MCP server 'files' sent a message that is too long."]
    assert texts(await servers.call("files", "echo", arguments(text="again"), LONG)) == ["again"]


@pytest.mark.exhaustive
async def test_a_message_of_very_many_values_ends_the_session(make: Make) -> None:
    servers = make(stdio("files"))
    result = await servers.call("files", "many_values", arguments(size=1_000_000), LONG)
    assert texts(result) == ["MCP server 'files' sent a message that is too long."]
    assert texts(await servers.call("files", "echo", arguments(text="again"), LONG)) == ["again"]


@pytest.mark.exhaustive
async def test_an_error_that_the_tool_returns_is_its_answer(make: Make) -> None:
    result = await make(stdio("files")).call("files", "refuse", "{}", LONG)
    assert (texts(result), result.is_error, result.fault) == (["not today"], True, None)


@pytest.mark.exhaustive
async def test_a_tool_that_does_not_exist_is_an_error_result_without_the_servers_secrets(make: Make) -> None:
    servers = make(stdio("files", env={"SECRET": "sk-very-secret"}))
    result = await servers.call("files", "nothing", "{}", LONG)
    assert result.is_error
    assert result.fault is not None
    assert result.fault.kind == McpFaultKind.TOOL_ERROR
    assert "sk-very-secret" not in result.text


DEEP = '{"a":' * 2000 + "1" + "}" * 2000


@pytest.mark.parametrize("given", ["[]", "nonsense", '{"a":', '"text"', DEEP], ids=lambda given: given[:8])
async def test_arguments_that_are_no_object_do_not_reach_the_server(make: Make, given: str) -> None:
    result = await make(stdio("files")).call("files", "echo", given, LONG)
    assert result.fault is not None
    assert result.fault.kind == McpFaultKind.BAD_ARGUMENTS


async def test_an_unknown_server_is_an_error_result(make: Make) -> None:
    result = await make().call("nobody", "echo", "{}", LONG)
    assert texts(result) == ["There is no MCP server 'nobody'."]


@pytest.mark.exhaustive
async def test_a_call_that_hangs_ends_at_its_deadline_and_the_server_is_asked_to_stop(
    make: Make, tmp_path: Path
) -> None:
    servers = make(stdio("files"))
    await servers.tools()
    result = await servers.call("files", "hang", arguments(folder=str(tmp_path)), 0.3)
    assert result.fault is not None
    assert result.fault.kind == McpFaultKind.TIMED_OUT
    assert "'hang' within 0.3 s" in result.text
    await eventually((tmp_path / "cancelled").exists)
    assert texts(await servers.call("files", "echo", arguments(text="well"), LONG)) == ["well"]


@pytest.mark.exhaustive
async def test_a_cancelled_call_asks_the_server_to_stop(make: Make, tmp_path: Path) -> None:
    servers = make(stdio("files"))
    call = asyncio.create_task(servers.call("files", "hang", arguments(folder=str(tmp_path)), LONG))
    await eventually((tmp_path / "called").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually((tmp_path / "cancelled").exists)
    assert texts(await servers.call("files", "echo", arguments(text="well"), LONG)) == ["well"]


@pytest.mark.exhaustive
async def test_calls_run_side_by_side(make: Make) -> None:
    servers = make(stdio("files"))
    calls = [servers.call("files", "meet", arguments(count=5, text=str(n)), LONG) for n in range(5)]
    assert [texts(result) for result in await asyncio.gather(*calls)] == [[str(n)] for n in range(5)]


async def test_a_server_that_dies_in_a_call_gives_an_error_result_and_is_started_again(make: Make) -> None:
    servers = make(stdio("files", env={"SECRET": "sk-very-secret"}))
    result = await servers.call("files", "die", "{}", LONG)
    assert texts(result) == ["MCP server 'files' ended with code 3."]
    assert result.fault is not None
    assert (result.is_error, result.fault.kind) == (True, McpFaultKind.DIED)
    assert result.fault.detail == "last words [...]\n"
    assert texts(await servers.call("files", "echo", arguments(text="again"), LONG)) == ["again"]


@pytest.mark.exhaustive
async def test_a_server_that_keeps_dying_is_started_again_later_each_time(
    make: Make, clock: ManualClock
) -> None:
    servers = make(stdio("files"))
    for wait in (0.0, 0.0, 1.0, 2.0, 4.0):
        if wait:
            clock.now += wait - 0.1
            held = await servers.call("files", "die", "{}", LONG)
            assert "It is tried again in" in held.text
            clock.now += 0.2
        result = await servers.call("files", "die", "{}", LONG)
        assert texts(result) == ["MCP server 'files' ended with code 3."]


@pytest.mark.exhaustive
async def test_a_server_that_ran_long_before_it_died_is_started_at_once(
    make: Make, clock: ManualClock
) -> None:
    servers = make(stdio("files"))
    for _ in range(3):
        await servers.tools()
        clock.now += McpLimits().stable_seconds
        assert texts(await servers.call("files", "die", "{}", LONG)) == [
            "MCP server 'files' ended with code 3."
        ]


@pytest.mark.exhaustive
async def test_the_tools_of_the_others_are_there_when_one_server_cannot_be_started(make: Make) -> None:
    missing = StdioServer(label="missing", command="no-such-program-here")
    listing = await make(missing, stdio("files")).tools()
    assert {tool.server_label for tool in listing.tools} == {"files"}
    assert [(fault.server_label, fault.kind) for fault in listing.faults] == [
        ("missing", McpFaultKind.UNREACHABLE)
    ]
    assert "no-such-program-here" in listing.faults[0].message


async def test_a_program_that_ends_at_once_is_a_fault_with_its_last_words_for_the_log(make: Make) -> None:
    loud = StdioServer(label="loud", command="/bin/sh", args=("-c", "echo my key is $KEY >&2; exit 7"))
    loud = msgspec.structs.replace(loud, env={"KEY": "sk-very-secret"})
    fault = (await make(loud).tools()).faults[0]
    assert fault.message == "MCP server 'loud' ended with code 7."
    assert fault.detail == "my key is [...]\n"


@pytest.mark.exhaustive
async def test_a_slow_server_is_not_waited_for_and_is_used_once_it_is_ready(
    make: Make, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    servers = make(stdio("slow", "--until", str(ready)), list_seconds=0.2)
    early = await servers.tools()
    assert (early.tools, early.faults[0].kind) == ((), McpFaultKind.STARTING)
    ready.touch()
    result = await servers.call("slow", "echo", arguments(text="at last"), LONG)
    assert texts(result) == ["at last"]


async def test_a_server_that_never_answers_is_given_up_and_ended(make: Make, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    deaf = StdioServer(label="deaf", command="/bin/sh", args=("-c", f"echo $$ > {pid_file}; exec sleep 600"))
    fault = (await make(deaf, start_seconds=0.5).tools()).faults[0]
    assert (fault.kind, fault.message) == (
        McpFaultKind.TIMED_OUT,
        "MCP server 'deaf' was not ready within 0.5 s.",
    )
    assert have_ended([int(pid_file.read_text())])


@pytest.mark.exhaustive
async def test_only_the_first_request_waits_for_a_start(
    make: Make, clock: ManualClock, tmp_path: Path
) -> None:
    servers = make(stdio("slow", "--until", str(tmp_path / "ready")))
    first = asyncio.create_task(servers.tools())
    for _ in range(5):  # until it waits
        await asyncio.sleep(0)
    clock.now += LONG
    late = await servers.tools()
    assert [fault.kind for fault in late.faults] == [McpFaultKind.STARTING]
    assert not first.done()
    (tmp_path / "ready").touch()
    assert (await first).tools


@pytest.mark.exhaustive
async def test_a_server_that_was_not_ready_in_time_is_started_again_and_not_waited_for(
    make: Make, tmp_path: Path
) -> None:
    servers = make(stdio("slow", "--until", str(tmp_path / "never")), start_seconds=0.2)
    kinds = [[fault.kind for fault in (await servers.tools()).faults] for _ in range(2)]
    assert kinds == [[McpFaultKind.TIMED_OUT], [McpFaultKind.STARTING]]


@pytest.mark.exhaustive
async def test_lines_that_are_not_json_rpc_and_a_flood_on_stderr_are_ignored(make: Make) -> None:
    servers = make(stdio("files", "--garbage"))
    assert texts(await servers.call("files", "noise", "{}", LONG)) == ["through"]
    assert texts(await servers.call("files", "echo", arguments(text="still"), LONG)) == ["still"]


async def test_notifications_that_nobody_handles_do_not_reach_the_package(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    async def note(self: McpConnection, message: object) -> None:
        seen.append(message)

    monkeypatch.setattr(McpConnection, "_on_message", note)
    servers = make(stdio("files"))
    assert texts(await servers.call("files", "flood", "{}", LONG)) == ["through"]
    assert seen == []
    await servers.call("files", "change", "{}", LONG)
    assert [type(message) for message in seen] == [ToolListChangedNotification]


async def test_others_are_served_between_the_look_at_a_long_message_and_its_decoding(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    decode = stdio_transport._messages

    def look(line: bytes) -> bool:
        if len(line) > LONG_JSON:
            steps.append("looked at")
            asyncio.get_running_loop().call_soon(steps.append, "others")
        return False

    def note_decoding(line: bytes, waiting: Waiting) -> object:
        steps.extend(["decoded"] if len(line) > LONG_JSON else [])
        return decode(line, waiting)

    monkeypatch.setattr(stdio_transport, "is_too_costly", look)
    monkeypatch.setattr(stdio_transport, "_messages", note_decoding)
    await make(stdio("files")).call("files", "big", arguments(size=LONG_JSON), LONG)
    assert steps == ["looked at", "others", "decoded"]


@pytest.mark.exhaustive
async def test_tools_that_change_are_seen_without_waiting_for_the_interval(make: Make) -> None:
    servers = make(stdio("files"))
    assert "new" not in {tool.name for tool in (await servers.tools()).tools}
    await servers.call("files", "change", "{}", LONG)
    assert "new" in {tool.name for tool in (await servers.tools()).tools}


@pytest.mark.exhaustive
async def test_a_list_is_kept_for_the_interval_and_then_asked_for_again(
    make: Make, clock: ManualClock
) -> None:
    servers = make(stdio("files"))
    first = (await servers.tools()).tools
    assert all(a is b for a, b in zip(first, (await servers.tools()).tools, strict=True))
    clock.now += 10
    assert not any(a is b for a, b in zip(first, (await servers.tools()).tools, strict=True))


@pytest.mark.exhaustive
async def test_a_busy_server_keeps_the_list_that_is_known(
    make: Make, clock: ManualClock, tmp_path: Path
) -> None:
    servers = make(stdio("files"), refresh_seconds=0.1, list_seconds=1.0)
    call = asyncio.create_task(servers.call("files", "block", arguments(folder=str(tmp_path)), LONG))
    await eventually((tmp_path / "called").exists)
    for _ in range(15):  # some of these are there when the question is given up
        clock.now += 10
        listing = await servers.tools()
        assert (listing.faults, len(listing.tools) > 5) == ((), True)
    (tmp_path / "go").touch()
    assert texts(await call) == ["done"]


@pytest.mark.exhaustive
async def test_close_ends_the_servers_and_calls_after_it_are_refused(make: Make) -> None:
    servers = make(stdio("files"))
    pid = int(texts(await servers.call("files", "pid", "{}", LONG))[0])
    orphan = int(texts(await servers.call("files", "orphan", "{}", LONG))[0])
    await servers.close()
    assert have_ended([pid, orphan])
    late = await servers.call("files", "pid", "{}", LONG)
    assert late.fault is not None
    assert late.fault.kind == McpFaultKind.CLOSED


async def test_close_during_a_start_ends_it(make: Make, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    deaf = StdioServer(label="deaf", command="/bin/sh", args=("-c", f"echo $$ > {pid_file}; exec sleep 600"))
    servers = make(deaf)
    asking = asyncio.create_task(servers.tools())
    await eventually(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    await servers.close()
    assert (await asking).faults[0].kind == McpFaultKind.CLOSED
    assert have_ended([int(pid_file.read_text())])


@pytest.mark.exhaustive
async def test_when_the_proxy_is_killed_no_process_of_a_server_is_left() -> None:
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("parent.py"))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    await eventually(lambda: have_ended(pids))
