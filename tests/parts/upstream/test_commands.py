"""What a person sees of an upstream: what `doctor` finds, and the banner of a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from codex_proxy.core.checks import Check
from tests.model_server import Upstream, proxy_before, upstream


async def doctor_checks(folder: Path, url: str, **settings: Any) -> dict[str, Check]:
    """The checks of `doctor`, by name."""
    flags = {"agent": "openai-chat", "port": 0, "workdir": folder, "state_dir": folder / "state", **settings}
    checkup = await examine({**flags, "upstream_url": url}, None, os.environ)
    return {check.name: check for check in checkup.checks}


async def test_doctor_asks_the_upstream_for_its_models_and_pays_for_no_turn(tmp_path: Path) -> None:
    async with upstream() as server:
        checks = await doctor_checks(tmp_path, server.url)
    assert checks["upstream"].status == "ok"
    assert "2 models; the default is small" in checks["upstream"].message
    assert checks["workspace"].status == checks["codex home"].status == "skipped"
    assert server.requests == []


async def test_doctor_says_that_the_model_server_cannot_be_reached(tmp_path: Path) -> None:
    check = (await doctor_checks(tmp_path, "http://127.0.0.1:1/v1"))["upstream"]
    assert check.status == "failed"
    assert "--upstream-url" in check.advice


async def test_doctor_says_that_the_key_is_wrong_and_shows_none(tmp_path: Path) -> None:
    async with upstream() as server:
        server.key = "right"
        check = (await doctor_checks(tmp_path, server.url, upstream_key="sk-wrong"))["upstream"]
    assert check.status == "failed"
    assert "PROXY_UPSTREAM_KEY" in check.advice
    assert "sk-wrong" not in str(check)


async def test_doctor_says_that_an_address_is_missing(tmp_path: Path) -> None:
    assert "--upstream-url" in (await doctor_checks(tmp_path, ""))["upstream"].message


async def test_an_upstream_without_a_list_of_models_wants_a_default(tmp_path: Path) -> None:
    async with upstream() as server:
        server.models = []
        check = (await doctor_checks(tmp_path, server.url))["upstream"]
    assert check.status == "warning"
    assert "CODEX_MODEL" in check.advice
    assert "--upstream-url (PROXY_UPSTREAM_URL), which usually ends with /v1" in check.advice


async def test_the_banner_speaks_of_models_and_of_no_workspace(server: Upstream, tmp_path: Path) -> None:
    async with proxy_before(server.url, tmp_path) as proxy:
        shown = banner(proxy.server)
        assert "agent      openai-chat\n" in shown  # and no version, which would be this server's own
        assert "models     2" in shown
        assert "workspace" not in shown
        counts = proxy.server.agent.processes()
        assert (counts.idle, counts.busy) == (0, 0)
