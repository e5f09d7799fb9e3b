"""How many tokens a request has at most: what is counted, what is not shown to the model, and images by their size."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.tokens import max_tokens_in
from codex_proxy.surfaces.messages.parse import count_tokens, prompt_tokens
from codex_proxy.surfaces.models import ModelCatalog
from tests.cpu_time import assert_cpu_time_below
from tests.surfaces.chat.asking import CATALOG
from tests.surfaces.messages.asking import (
    ANY_MODEL,
    HELLO,
    RECORDINGS,
    message_of,
    parse_body,
    recordings,
    result,
    tool,
    use,
)

LONG = "The quick brown fox jumps over the lazy dog. " * 40
WORTH = max_tokens_in(LONG)


def count_tokens_of(catalog: ModelCatalog = CATALOG, **fields: Any) -> int:
    body = {"model": "codex-5", "messages": [HELLO], **fields}
    return count_tokens(json.dumps(body).encode(), catalog)[0]


def more(**fields: Any) -> int:
    """How many tokens these fields add to a greeting."""
    return count_tokens_of(**fields) - count_tokens_of()


def png(width: int, height: int) -> str:
    """A whole PNG of this size in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 64)
    made = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(made).decode()


def image(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize(
    "fields",
    [
        {"system": LONG},
        {"system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]},
        {"messages": [HELLO, message_of("assistant", LONG)]},
        {"messages": [HELLO, message_of("system", LONG)]},
        {"messages": [HELLO, message_of("user", result(content=LONG))]},
        {"messages": [HELLO, message_of("user", result(content=[{"type": "text", "text": LONG}]))]},
        {"messages": [HELLO, message_of("assistant", use(text=LONG))]},
        {
            "messages": [
                HELLO,
                message_of("user", {"type": "document", "source": {"type": "text", "data": LONG}}),
            ]
        },
        {"messages": [HELLO, message_of("user", {"type": "new_next_year", "of": [{"what": LONG}]})]},
        {"tools": [tool(description=LONG)]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "title": LONG}}}},
        {
            "output_config": {"effort": "low"},
            "output_format": {"type": "json_schema", "schema": {"type": "object", "title": LONG}},
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_each_text_of_a_request_counts_wherever_it_stands(fields: dict[str, Any]) -> None:
    assert WORTH <= more(**fields) <= WORTH * 1.1 + 60


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": LONG, "signature": "s"},
        {"type": "text", "text": "", "cache_control": {"type": "ephemeral", "ttl": LONG}},
    ],
)
def test_what_the_model_is_not_shown_costs_next_to_nothing(block: dict[str, Any]) -> None:
    assert more(messages=[HELLO, message_of("assistant", block)]) < 20


def test_encrypted_reasoning_counts_fewer_tokens_than_its_characters_would_as_text() -> None:
    sealed = base64.b64encode(bytes(range(256)) * 40).decode()
    block = {"type": "redacted_thinking", "data": sealed}
    assert 2_000 < more(messages=[HELLO, message_of("assistant", block)]) < max_tokens_in(sealed) / 2


def test_a_deferred_tool_counts_once_a_search_has_found_it_or_it_was_called() -> None:
    tools = [tool("search"), tool("mcp__files__read", description=LONG, defer_loading=True)]
    found = result(content=[{"type": "tool_reference", "tool_name": "mcp__files__read"}])
    assert more(tools=tools) < 60
    assert more(tools=tools, messages=[HELLO, message_of("user", found)]) > WORTH
    assert more(tools=tools, messages=[HELLO, message_of("assistant", use(name="mcp__files__read"))]) > WORTH


def test_a_deferred_tool_counts_where_it_is_offered_at_once() -> None:
    tools = [tool("mcp__files__read", description=LONG, defer_loading=True)]
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert more(tools=tools, tool_choice={"type": "tool", "name": "mcp__files__read"}) > WORTH
    assert more(tools=[search, *tools]) > WORTH


def test_a_deferred_tool_without_a_readable_name_is_counted_as_one_that_is_not_offered() -> None:
    assert more(tools=[{**tool(description=LONG, defer_loading=True), "name": {}}]) < 60


@pytest.mark.parametrize(
    ("data", "least", "most"),
    [
        (png(1, 1), 200, 400),
        (png(512, 512), 255, 600),
        (png(1024, 1024), 765, 2_000),
        (png(6000, 6000), 1_600, 2_800),
    ],
)
def test_an_image_costs_by_its_size(data: str, least: int, most: int) -> None:
    for content in ([image(data)], [result(content=[image(data)])]):
        assert least <= more(messages=[HELLO, message_of("user", *content)]) <= most


@pytest.mark.parametrize(
    "source", [None, {"type": "url", "url": "https://a.example/b.png"}, {"type": "base64", "data": "broken"}]
)
def test_an_image_whose_size_is_not_known_costs_as_much_as_the_largest(source: Any) -> None:
    assert more(messages=[HELLO, message_of("user", {"type": "image", "source": source})]) > 2_500


def test_a_pdf_costs_by_its_size_up_to_a_limit() -> None:
    def document(letters: int) -> int:
        source = {"type": "base64", "media_type": "application/pdf", "data": "A" * letters}
        return more(messages=[HELLO, message_of("user", {"type": "document", "source": source})])

    assert 10_000 <= document(30_000) < 11_000
    assert document(10_000_000) < 210_000


def test_a_request_beyond_every_context_takes_no_longer_than_one_that_is_full() -> None:
    """Nobody shall have a server count for minutes."""
    body = json.dumps({"messages": [message_of("user", "x" * (20 << 20))]}).encode()
    assert_cpu_time_below(1.0, lambda: count_tokens(body, CATALOG))
    assert count_tokens(body, CATALOG)[0] > 10 << 20


def test_a_model_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(Fault) as refused:
        count_tokens_of(model="nobody-knows-it")
    assert refused.value.failure.kind is FaultKind.MODEL_NOT_FOUND


def test_a_request_without_messages_is_refused_by_name() -> None:
    with pytest.raises(Fault) as refused:
        count_tokens(b'{"model": "codex-5"}', CATALOG)
    assert refused.value.failure.param == "messages"


def test_every_recorded_request_for_a_count_is_accepted() -> None:
    bodies = [
        json.dumps(entry["body"]).encode()
        for line in (RECORDINGS / "04-interactive.jsonl").read_text("utf-8").splitlines()
        if (entry := json.loads(line))["kind"] == "request" and "count_tokens" in entry["path"]
    ]
    assert len(bodies) == 26
    assert all(count_tokens(body, ANY_MODEL)[0] > 0 for body in bodies)


def test_the_count_of_a_recorded_conversation_is_not_below_the_estimate_of_what_the_model_reads() -> None:
    for _, entry in recordings("01-print-session", "06-interactive2"):
        body = json.dumps(entry["body"]).encode()
        assert count_tokens(body, ANY_MODEL)[0] >= prompt_tokens(parse_body(body, ANY_MODEL).turn)
