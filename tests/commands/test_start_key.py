"""The key of a start without keys: made only where a person reads it, and printed only there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.server import make_server
from codex_proxy.commands.checks import keys_check
from codex_proxy.commands.doctor import settings_check
from codex_proxy.commands.serve import banner, page_of, serve_to_the_end, start_key_for
from codex_proxy.core.keys import digest_of
from tests.http.serving import ENVIRONMENT, running_proxy, settings_of


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_every_start_in_a_terminal_has_another_key(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    one, two = start_key_for(settings, 0), start_key_for(settings, 0)
    assert one.startswith("cpx_")
    assert len(one) >= 40
    assert one != two


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("worker", "more"),
    [
        (1, {}),
        pytest.param(0, {"store": "postgresql://localhost/x"}, marks=pytest.mark.part("machines")),
        (0, {"api_key": "the key of the operator"}),
    ],
)
def test_several_processes_and_servers_with_keys_have_none(
    tmp_path: Path, worker: int, more: dict[str, Any]
) -> None:
    assert start_key_for(settings_of(tmp_path, **more), worker) == ""


def test_what_is_no_terminal_is_shown_none(tmp_path: Path) -> None:
    assert start_key_for(settings_of(tmp_path), 0) == ""


async def test_a_server_that_asks_without_keys_and_outside_of_a_terminal_does_not_start(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    status = await serve_to_the_end(
        settings_of(tmp_path, approvals="ask"), lambda text, **more: said.append(text)
    )
    assert status == 1
    assert "in a terminal" in said[0]
    assert "keys add NAME --may-approve" in said[0]


@pytest.mark.parametrize("ui", [True, False])
async def test_the_banner_has_the_key_behind_the_number_sign_of_the_pages_link(
    tmp_path: Path, ui: bool
) -> None:
    settings, key = settings_of(tmp_path, approvals="ask", ui=ui), "cpx_key"
    server = await make_server(settings, ENVIRONMENT, page_of, start_digest=digest_of(key))
    async with running_proxy(server) as proxy:
        shown = banner(server, key)
        assert (f"page       {proxy.url}/#key={key}" in shown) is ui
        assert shown.count(key) == 1
        assert "who has the key of this start" in shown
        assert key not in banner(server)


def test_doctor_says_that_only_a_terminal_shows_such_a_key(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, approvals="ask")
    assert settings_check(settings, None, {}).status != "failed"
    found = keys_check(settings)
    assert (found.status, "only in a terminal" in found.message) == ("warning", True)
