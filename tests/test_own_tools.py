"""The tools of MCP servers before they are offered: which of them an agent would not take."""

from __future__ import annotations

import asyncio
import threading

import pytest

from codex_proxy import own_tools
from codex_proxy.own_tools import SchemaJudge, what_is_wrong


@pytest.mark.parametrize(
    "schema",
    [
        b"{}",
        b'{"type":"object"}',
        b'{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"type":"string"}}}',
        b'{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",'
        b'"properties":{"a":{"type":"array","items":[{"type":"string"}]}}}',
    ],
)
def test_a_schema_of_an_object_is_taken(schema: bytes) -> None:
    assert what_is_wrong(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"true",
        b"[" * 5000 + b"]" * 5000,
        b'{"type":"null"}',
        b'{"type":"array"}',
        b'{"type":7}',
        b'{"type":"object","properties":[]}',
        b'{"type":"object","properties":{"a":5}}',
        b'{"type":"object","required":["a",3]}',
    ],
)
def test_one_that_the_agent_would_refuse_the_turn_for_is_left_out(schema: bytes) -> None:
    assert what_is_wrong(schema)


async def test_schemas_are_looked_at_once_and_not_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 500 tools take a second or two, in which the streams of others have to go on."""
    threads: list[int] = []

    def watched(schema: bytes) -> str | None:
        threads.append(threading.get_ident())
        return what_is_wrong(schema)

    monkeypatch.setattr(own_tools, "what_is_wrong", watched)
    judge = SchemaJudge()
    schemas = [*(b'{"type":"object","title":"%d"}' % number for number in range(20)), b"true"]
    first, _ = await asyncio.gather(judge.wrong_of(schemas), judge.wrong_of(schemas))
    assert await judge.wrong_of(schemas[::-1]) == first[::-1]
    assert first[:-1] == [None] * 20
    assert first[-1]
    assert len(threads) == 21
    assert threading.get_ident() not in threads
