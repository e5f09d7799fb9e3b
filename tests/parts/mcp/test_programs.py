"""Where the programs of the operator's MCP servers start, and with what."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.parts.mcp.config import StdioServer
from codex_proxy.parts.mcp.configured_servers import Programs, configured_servers
from codex_proxy.settings.fields import Settings


def settings_with(file: Path | None) -> Settings:
    return Settings(agent="fake", mcp_config=file)


def test_a_program_starts_in_the_folder_of_its_file_and_not_where_anybody_may_put_modules(
    tmp_path: Path,
) -> None:
    programs = Programs(settings_with(tmp_path / "mcp.json"), {})
    for given, folder in ((None, tmp_path), ("sub", tmp_path / "sub"), ("/srv", Path("/srv"))):
        server = StdioServer(label="a", command="./server", cwd=given)
        assert programs.command(server).cwd == str(folder)


def test_a_program_sees_its_own_variables_and_none_of_the_proxy_s_keys() -> None:
    environ = {"PATH": "/bin", "PROXY_API_KEY": "k", "HOME": "/h"}
    server = StdioServer(label="a", command="server", env={"HOME": "/mine", "X": "x"})
    command = Programs(settings_with(None), environ).command(server)
    assert {"PATH": "/bin", "HOME": "/mine", "X": "x"}.items() <= command.env.items()
    assert "PROXY_API_KEY" not in command.env


def test_the_error_about_the_file_names_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    with pytest.raises(UserError, match=r"mcp\.json cannot be read: No such file"):
        configured_servers(settings_with(file), {})
    file.write_text('{"mcpServers": {"a": {}}}')
    with pytest.raises(UserError, match=r"mcp\.json: MCP server 'a'"):
        configured_servers(settings_with(file), {})
    assert configured_servers(settings_with(None), {}) == {}
