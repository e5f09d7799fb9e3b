"""The table `[acp]`: its flags and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.parts import own_settings
from codex_proxy.parts.acp import AcpSettings, AcpTable
from codex_proxy.settings.load import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def acp_of(file: Path, flags: dict[str, Any] | None = None) -> AcpTable:
    return own_settings(load(flags or {}, file), AcpSettings).acp


def test_a_flag_wins_over_the_other_sources_and_leaves_the_other_keys(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[acp]\ncommand = 'a'\nusage = 'last'\n")
    monkeypatch.setenv("PROXY_ACP_COMMAND", "b")
    acp = acp_of(file, {"agent_command": "c", "agent_env": None})
    assert (acp.command, acp.usage) == ("c", "last")


def test_one_variable_may_have_a_whole_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_ACP", '{"command": "a", "unconfined": true}')
    acp = acp_of(file)
    assert (acp.command, acp.unconfined) == ("a", True)


def test_a_wrong_value_of_a_flag_is_named_by_the_flag(file: Path) -> None:
    with pytest.raises(UserError, match=r"^--agent-usage is invalid: it should be 'turn'"):
        load({"agent_usage": "x"}, file)
