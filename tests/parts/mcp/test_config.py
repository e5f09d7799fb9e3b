"""The operator's file of MCP servers, as other clients write it."""

from __future__ import annotations

import json

import pytest

from codex_proxy.parts.mcp.config import HttpServer, StdioServer, parse_servers


def file(**servers: object) -> str:
    return json.dumps({"mcpServers": servers})


def test_a_program_has_a_command_arguments_environment_and_folder() -> None:
    entry = {
        "command": "npx",
        "args": ["-y", "server"],
        "env": {"KEY": "k"},
        "cwd": "/srv",
        "alwaysAllow": [],
    }
    assert parse_servers(file(files=entry), {}) == {
        "files": StdioServer(
            label="files", command="npx", args=("-y", "server"), env={"KEY": "k"}, cwd="/srv"
        )
    }


@pytest.mark.parametrize(
    ("type", "transport"),
    [(None, "either"), ("http", "streamable"), ("streamable-http", "streamable"), ("sse", "sse")],
)
def test_an_address_has_headers_and_a_transport(type: str | None, transport: str) -> None:
    entry = {"url": "https://example.com/mcp", "headers": {"X-Key": "k"}} | ({"type": type} if type else {})
    (server,) = parse_servers(file(web=entry), {}).values()
    assert isinstance(server, HttpServer)
    assert (server.url, server.headers, server.transport) == (
        "https://example.com/mcp",
        {"X-Key": "k"},
        transport,
    )


def test_variables_stand_for_what_is_set_or_for_their_default() -> None:
    entry = {"command": "${TOOL:-serve}", "args": ["--root=${ROOT}"], "env": {"KEY": "${env:KEY}"}}
    (server,) = parse_servers(file(a=entry), {"ROOT": "/r", "KEY": "k"}).values()
    assert isinstance(server, StdioServer)
    assert (server.command, server.args, server.env) == ("serve", ("--root=/r",), {"KEY": "k"})


def test_servers_keep_their_order_and_those_that_are_disabled_are_left_out() -> None:
    off = {"command": "x", "disabled": True}
    text = file(
        b={"command": "b"}, off=off, other={"command": "${UNSET}", "enabled": False}, a={"command": "a"}
    )
    assert list(parse_servers(text, {})) == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no json", "mcpServers"),
        ("{}", "mcpServers"),
        (file(a={}), "'a'.*`command` or a `url`"),
        (file(a={"command": "a", "url": "http://b"}), "not both"),
        (file(a={"command": ""}), "empty"),
        (file(a={"command": "a", "type": "sse"}), "of type stdio"),
        (file(a={"command": "a", "args": "sk-secret"}), r"'a'.*array.*args"),
        (file(a={"url": "ftp://sk-secret"}), "not an http or https"),
        (file(a={"url": "http://b", "type": "sk-secret"}), "`type`"),
        (file(a={"command": "a", "env": {"K": "sk-secret${UNSET}"}}), "'a'.*UNSET.*not set"),
        (file(a={"command": "a", "env": {"K": "${env:UNSET}"}}), "'a'.*UNSET.*not set"),
        (
            file(a={"command": "a", "env": {"K": "sk-secret${input:key}"}}),
            "'a'.*input:key.*cannot prompt for",
        ),
    ],
)
def test_an_error_names_the_server_and_no_values(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_servers(text, {})
    assert "sk-secret" not in str(caught.value)
