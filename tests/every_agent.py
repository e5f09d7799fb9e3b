"""Tests whose cases are the agents have all of them: one that is new, or whose part is absent, is no silent hole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from codex_proxy.agents.names import BUILT_IN
from codex_proxy.parts import KNOWN
from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.model_server import proxy_before

Cases = TypeVar("Cases", bound=Iterable[str])

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "proto": ("codex-proto",),
    "app-server": ("codex-app-server", "codex-exec"),
    "acp": ("acp", "gemini", "qwen", "opencode", "copilot", "claude-acp", "codex-acp", "kimi", "kilo"),
}
"""The agents that speak one protocol, by the name of the fake agent for it. Each other agent is a kind of its own."""
OF_MODEL_SERVERS: Final = dict.fromkeys(("openai-chat", "openai-responses"), "a model server, no program")
OF_TESTS: Final = {"fake": "stands for each of the others"}


def with_every_agent(cases: Cases, *, but: Mapping[str, str]) -> Cases:
    """Returns the cases: agents, or kinds of agents. Fails if one of the project's agents, also of an absent part, is
    neither among them nor left out for a reason.
    """
    covered = {agent for case in cases for agent in KINDS.get(case, (case,))}
    every = {*BUILT_IN, *(agent for known in KNOWN.values() for agent in known.agents)}
    assert every - covered - but.keys() == set(), "agents without a case"
    assert but.keys() & covered == set()
    return cases


ALL_KINDS: Final = ("proto", "app-server", "acp", "claude-code", "openai-chat", "openai-responses")


@asynccontextmanager
async def proxy_of(kind: str, folder: Path, **settings: Any) -> AsyncIterator[Proxy]:
    """A server whose agent is of this kind. What it says is what the fake agent says; behind a model server another
    server is asked, whose agent is the fake one.
    """
    if kind not in OF_MODEL_SERVERS:
        made = claude_proxy if kind == "claude-code" else partial(fake_proxy, fake_dialect=kind)
        async with made(folder, **settings) as proxy:
            yield proxy
        return
    behind, before = folder / "behind", folder / "before"
    behind.mkdir()
    before.mkdir()
    async with (
        fake_proxy(behind, fake_dialect="app-server") as server,
        proxy_before(f"{server.url}/v1", before, agent=kind, **settings) as proxy,
    ):
        yield proxy
