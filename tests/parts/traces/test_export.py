"""What reaches a collector over OTLP/HTTP, and what happens where none can be reached."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from codex_proxy.commands.serve import banner
from codex_proxy.parts.traces import watcher
from codex_proxy.parts.traces.setup import TracesPart, checks, traces_note
from codex_proxy.settings.fields import Settings
from tests.http.serving import fake_proxy, user
from tests.parts.traces.test_requests import loop
from tests.waiting import PATIENCE

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector(http.server.ThreadingHTTPServer):
    """A collector of traces, which keeps what it is sent, and answers while it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def story(self) -> list[str]:
        """The names of the spans in the order of a viewer: each below its parent, indented, by their start."""
        spans = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        spans.sort(key=lambda span: span.start_time_unix_nano)

        def below(parent: bytes, depth: int) -> Iterator[str]:
            for span in spans:
                if span.parent_span_id == parent:
                    yield "  " * depth + span.name
                    yield from below(span.span_id, depth + 1)

        return list(below(b"", 0))


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        collector: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        collector.may_answer.wait(PATIENCE)
        collector.paths.append(self.path)
        collector.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv(ENDPOINT, collector.url)
        yield collector
        collector.may_answer.set()
        collector.shutdown()
        thread.join()


async def test_a_collector_gets_a_tool_loop_as_one_trace(collector: Collector, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, {ENDPOINT: collector.url}) as proxy:
        await loop(proxy, {})
        assert f"  traces     to {collector.url}" in banner(proxy.server)
    # The end of the server has sent what was left.
    assert set(collector.paths) == {"/v1/traces"}
    (resource,) = collector.requests[0].resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "codex-proxy"
    assert [line for line in collector.story if "start" not in line] == [
        "POST /v1/chat/completions",
        "  invoke_agent fake",
        "    chat fake-model",
        "    execute_tool get_weather",
        "      POST /v1/chat/completions",
        "        invoke_agent fake",
        "          chat fake-model",
    ]


async def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "CLOSE_SECONDS", 0.1)
    collector.may_answer.clear()
    async with fake_proxy(tmp_path, {ENDPOINT: collector.url}) as proxy:
        assert (await proxy.ask(user())).status == 200
    assert collector.requests == []


@pytest.mark.exhaustive
def test_a_server_without_traces_imports_nothing_of_them() -> None:
    code = (
        "import sys, codex_proxy.app.server, codex_proxy.commands.serve;"
        "print([m for m in sys.modules if 'opentelemetry' in m or m == 'codex_proxy.parts.mcp.tool_source'])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert told.stdout.strip() == "[]"


COLLECTOR = MappingProxyType({ENDPOINT: "http://c:4318"})


@pytest.mark.parametrize(
    ("environ", "note"),
    [
        ({}, ""),
        (COLLECTOR, "to http://c:4318"),
        ({**COLLECTOR, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "to http://t/x"),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "true"}, ""),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
async def test_opentelemetrys_own_variables_switch_traces_on_and_off(
    environ: dict[str, str], note: str
) -> None:
    assert traces_note(environ) == note
    assert [check.status for check in await checks(Settings(), environ)] == (["ok"] if note else [])


async def test_a_protocol_that_is_not_supported_is_named() -> None:
    (check,) = await checks(Settings(), {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (check.status, "grpc" in check.message, "4318" in check.advice) == ("warning", True, True)


async def test_without_the_extra_the_server_starts_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    (check,) = await checks(Settings(), COLLECTOR)
    assert (check.status, check.advice) == ("warning", "Run `pip install 'codex-openai-proxy[otel]'`.")
    async with fake_proxy(tmp_path, COLLECTOR) as proxy:
        assert (await proxy.ask(user())).status == 200
        assert "pip install 'codex-openai-proxy[otel]'" in banner(proxy.server)
        assert [part.traces for part in proxy.server.parts if isinstance(part, TracesPart)] == [None]
