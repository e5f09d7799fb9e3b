"""Decides from OpenTelemetry's variables whether requests are traced, and starts the exporter, whose SDK reads the
others. `OTEL_EXPORTER_OTLP_ENDPOINT` switches traces on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import msgspec

from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.checks import Check, failed_check

if TYPE_CHECKING:
    from aiohttp import web

    from codex_proxy.parts.traces.watcher import Traces
    from codex_proxy.settings.fields import Settings

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Asks for prompts, answers, arguments and outputs in the spans."""
WITH_CONTENT: Final = frozenset({"true", "span_only", "span_and_event"})
HTTP: Final = "http/protobuf"


def traces_endpoint(environ: Mapping[str, str]) -> str:
    """Returns the address for traces; empty if nobody wants them."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none":
        return ""
    return _first(environ, ENDPOINTS)


def why_no_traces(environ: Mapping[str, str]) -> str:
    """Returns why the wanted traces cannot be sent, and what to do; empty if they can."""
    protocol = _first(environ, PROTOCOLS) or HTTP
    if protocol != HTTP:
        return (
            f"off, because they are sent by {HTTP}, and OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}. "
            f"Set it to {HTTP}, and the endpoint to the collector's port for it (usually 4318)."
        )
    if not _are_packages_installed():
        return (
            "off, because their packages are not installed, although OTEL_EXPORTER_OTLP_ENDPOINT is set. "
            "Run `pip install 'codex-openai-proxy[otel]'`."
        )
    return ""


def traces_note(environ: Mapping[str, str]) -> str:
    """Returns where traces are sent, or why not; empty if nobody wants them."""
    endpoint = traces_endpoint(environ)
    return endpoint and (why_no_traces(environ) or f"to {endpoint}")


class TracesPart(ServerPart):
    """The traces of one server, or why those that are wanted are off."""

    def __init__(self, environ: Mapping[str, str], traces: Traces | None = None) -> None:
        """`traces`: those that a test watches, in place of what the environment says."""
        self._environ = environ
        self.traces = traces

    async def start(self, server: ServerParts) -> None:
        if self.traces is None and not why_no_traces(self._environ):
            # Imported here, since most servers have no traces, and their packages take a quarter of a second.
            from codex_proxy.parts.traces.watcher import start_traces

            self.traces = start_traces(content=self._environ.get(CONTENT, "").lower() in WITH_CONTENT)
        if self.traces is not None:
            server.runs.watchers.append(self.traces)

    def add_to(self, app: web.Application) -> None:
        if self.traces is not None:
            app.middlewares.insert(0, self.traces.middleware)

    def banner(self) -> list[str]:
        note = traces_note(self._environ)
        return [f"  traces     {note}"] if note else []

    async def close(self) -> None:
        if self.traces is not None:
            await self.traces.close()


def server_part(_settings: Settings, environ: Mapping[str, str]) -> TracesPart | None:
    return TracesPart(environ) if traces_endpoint(environ) else None


async def checks(_settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    note = traces_note(environ)
    if not note:
        return []
    if why_no_traces(environ):
        return [msgspec.structs.replace(failed_check("traces", note), status="warning")]
    return [Check(name="traces", status="ok", message=f"Traces are sent {note}.")]


def _are_packages_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
