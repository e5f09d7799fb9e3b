"""What the operator is told of approvals, and that nobody can approve what it asks itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.start_checks import check
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.checks import keys_check
from codex_proxy.commands.keys import add, listing
from codex_proxy.core.faults import UserError
from codex_proxy.core.keys import KeysError
from tests.http.claude import claude_proxy
from tests.http.serving import settings_of

KEY = "the key of the operator"


def test_a_server_where_nobody_may_approve_does_not_start(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, approvals="ask")
    with pytest.raises(UserError, match=r"^PROXY_APPROVALS=ask needs a key.*keys add NAME --may-approve"):
        check(settings, SystemClock(), {})
    add(settings, "other", {}, replace=False)
    with pytest.raises(UserError, match="needs a key that may approve"):
        check(settings, SystemClock(), {})
    assert keys_check(settings).status == "failed"
    add(settings, "mine", {"may_approve": True}, replace=False)
    check(settings, SystemClock(), {})
    assert "Asked for approvals in sessions: mine." in keys_check(settings).message
    assert "mine  made" in listing(settings, as_json=False)
    assert "may approve" in listing(settings, as_json=False)


def test_the_key_of_the_settings_may_approve(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, approvals="ask", api_key=KEY)
    check(settings, SystemClock(), {})
    assert "default" in keys_check(settings).message


def test_a_key_that_is_to_be_asked_and_may_not_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="needs may_approve = true"):
        add(settings_of(tmp_path), "mine", {"approvals": "ask"}, replace=False)


@pytest.mark.part("claude_code")
async def test_no_child_has_the_key_that_may_approve(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"approvals": "ask", "api_key": KEY, "sandbox": "danger-full-access"}
    async with claude_proxy(tmp_path, {"PROXY_API_KEY": KEY}, **settings) as proxy:
        body = {"model": "codex-5", "input": "Hello."}
        headers = {"Authorization": f"Bearer {KEY}", "X-Codex-Mode": "agent"}
        answer = await proxy.send("POST", "/v1/responses", body, headers=headers)
        assert answer.status == 200, answer.text
    environment = (tmp_path / "env").read_text()
    assert "PATH=" in environment
    assert KEY not in environment
    assert "\nPROXY_" not in f"\n{environment}"
