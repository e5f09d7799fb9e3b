"""What was made of a server is closed again if the rest cannot be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app import server
from codex_proxy.app.server import make_server
from codex_proxy.app.server_parts import ServerPart
from codex_proxy.core.faults import UserError
from codex_proxy.http.page import PageContent
from codex_proxy.settings.fields import Settings
from tests.http.serving import ENVIRONMENT, settings_of

FAILURE = UserError("This cannot be made.")


def failing(*_: object) -> None:
    raise FAILURE


class Planted(ServerPart):
    """A part of a server that fails in one of its methods."""

    def __init__(self, name: str, fails_in: str, closed: list[str]) -> None:
        self._name, self._fails_in, self._closed = name, fails_in, closed

    def settings(self, settings: Settings) -> Settings:
        if self._fails_in == "settings":
            raise FAILURE
        return settings

    async def agent(self, context: AgentContext) -> Agent | None:
        if self._fails_in == "agent":
            raise FAILURE
        return None

    async def close(self) -> None:
        self._closed.append(self._name)


def page(_settings: Settings, _environ: Mapping[str, str]) -> PageContent:
    raise FAILURE


@pytest.mark.parametrize(
    "place", ["the next part", "settings", "agent", "check", "make_agent", "page", "Server"]
)
async def test_parts_that_were_made_before_a_failure_are_closed_last_one_first(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def planted(what: str) -> list[Callable[..., ServerPart | None]]:
        makers: list[Callable[..., ServerPart | None]] = [
            lambda *_: Planted("first", "", closed),
            lambda *_: None,
            lambda *_: Planted("second", place, closed),
        ]
        return [*makers, failing] if place == "the next part" else makers

    monkeypatch.setattr(server, "declared", planted)
    if hasattr(server, place):
        monkeypatch.setattr(server, place, failing)
    with pytest.raises(UserError, match=str(FAILURE)):
        await make_server(settings_of(tmp_path, ui=True), ENVIRONMENT, page)
    assert closed == ["second", "first"]


async def test_an_agent_is_closed_if_its_server_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Closing:
        async def close(self) -> None:
            closed.append("agent")

    async def make_agent(_: AgentContext) -> Closing:
        return Closing()

    monkeypatch.setattr(server, "make_agent", make_agent)
    with pytest.raises(UserError, match=str(FAILURE)):
        await make_server(settings_of(tmp_path, ui=True), ENVIRONMENT, page)
    assert closed == ["agent"]


async def test_a_server_that_was_made_closes_its_parts_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(server, "declared", lambda _: [lambda *_: Planted("only", "", closed)])
    made = await make_server(settings_of(tmp_path), ENVIRONMENT)
    assert closed == []
    await made.stop()
    assert closed == ["only"]
