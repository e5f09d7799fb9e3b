"""The tools of MCP servers before they are offered: which of them an agent would not take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from codex_proxy.app.server import make_server
from codex_proxy.core.faults import UserError
from codex_proxy.parts.mcp.configured_servers import checks
from codex_proxy.parts.mcp.tool_source import schema_errors
from codex_proxy.workers.schema_checks import SchemaChecks
from tests.http.serving import ENVIRONMENT, fake_proxy, settings_of, user


@pytest.mark.parametrize(
    "schema",
    [
        b"{}",
        b'{"type":"object"}',
        b'{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"type":"string"}}}',
        b'{"type":"object","properties":{"a":{"type":"string","pattern":"^\\\\p{L}+(?=x)$","format":"x"}}}',
        b'{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",'
        b'"properties":{"a":{"type":"array","items":[{"type":"string"}]}}}',
    ],
)
async def test_a_schema_of_an_object_is_taken(schema: bytes) -> None:
    assert await schema_errors(SchemaChecks(), [schema]) == [None]


@pytest.mark.sampled(every=3)
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
async def test_a_tool_for_which_the_agent_would_refuse_the_turn_is_left_out(schema: bytes) -> None:
    checks = SchemaChecks()
    assert all(await schema_errors(checks, [schema]))
    await checks.close()


@pytest.mark.parametrize(
    "setting", [{"mcp_config": "mcp.json"}, {"mcp_allowed_urls": "https://tools.example/"}]
)
async def test_without_the_extra_a_server_with_mcp_servers_does_not_start_and_says_what_to_install(
    setting: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    settings = settings_of(tmp_path, **setting)
    server = await make_server(settings, ENVIRONMENT)
    with pytest.raises(UserError, match=r"install it with `pip install 'codex-openai-proxy\[mcp\]'`"):
        await server.start()
    await server.stop()
    assert [check.status for check in await checks(settings, {})] == (
        ["failed"] if "mcp_config" in setting else []
    )
    async with fake_proxy(tmp_path) as proxy:
        assert (await proxy.ask(user())).status == 200, "without MCP servers nothing is missing"
