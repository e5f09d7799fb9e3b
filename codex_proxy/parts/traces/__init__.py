"""Traces by OpenTelemetry. Only `setup` may be imported without the extra `otel`."""

from typing import Final

from codex_proxy.parts import Part

PART: Final = Part(
    name="traces",
    page="operations.md#traces",
    checks="codex_proxy.parts.traces.setup:checks",
    server="codex_proxy.parts.traces.setup:server_part",
)
