"""Results of MCP tools take time in proportion to their size, whatever they consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from mcp_types import CallToolResult

from codex_proxy.parts.mcp.values import McpLimits, result_of
from tests.growth import assert_linear
from tests.pictures import PIXEL

Make = Callable[[int], dict[str, Any]]


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


RESULTS: Final[dict[str, tuple[int, Make]]] = {
    "texts": (400, lambda n: {"content": [text("word")] * n}),
    "one long text": (1 << 20, lambda n: {"content": [text("word " * (n // 5))]}),
    "images": (
        150,
        lambda n: {
            "content": [{"type": "image", "data": PIXEL.partition(",")[2], "mimeType": "image/png"}] * n
        },
    ),
    "broken images": (
        400,
        lambda n: {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}] * n},
    ),
    "links": (
        500,
        lambda n: {
            "content": [{"type": "resource_link", "name": f"r{i}", "uri": f"file:///{i}"} for i in range(n)]
        },
    ),
    "files": (
        500,
        lambda n: {
            "content": [
                {"type": "resource", "resource": {"uri": f"file:///{i}", "blob": "AAAA"}} for i in range(n)
            ]
        },
    ),
    "structured": (3000, lambda n: {"content": [], "structuredContent": {f"field_{i}": i for i in range(n)}}),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("shape", RESULTS)
def test_a_result_of_a_tool_of_mcp_takes_time_proportional_to_its_size(shape: str) -> None:
    size, make = RESULTS[shape]
    limits = McpLimits(text_bytes=1 << 30, image_bytes=1 << 30, max_parts=1 << 30)
    assert_linear(
        lambda count: CallToolResult.model_validate(make(count)),
        lambda answer: result_of(answer, limits),
        size,
    )
