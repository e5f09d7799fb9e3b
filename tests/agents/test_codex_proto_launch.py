"""The start of `codex proto`, and when it is ready."""

from __future__ import annotations

from pathlib import Path

from tests.commands.codexes import codex
from tests.http.serving import fake_proxy, user


async def test_a_server_whose_codex_home_was_removed_is_not_ready_and_starts_no_child(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    program = str(codex(tmp_path, "0.42.0", proto=True))
    async with fake_proxy(tmp_path, agent="codex-proto", codex_bin=program, codex_home=home) as proxy:
        assert (await proxy.send("GET", "/readyz")).status == 200
        home.rmdir()
        ready = await proxy.send("GET", "/readyz")
        assert (ready.status, "was removed" in ready.text) == (503, True)
        refused = await proxy.ask(user())
        assert "was removed" in refused.error["message"]
        home.mkdir()
        assert (await proxy.send("GET", "/readyz")).status == 200
