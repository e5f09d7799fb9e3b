"""A field of a request that the agent cannot use is named in a header, on every API, streamed and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.options import OPTIONS, Capability
from codex_proxy.core.turn import Turn
from tests.http.serving import fake_agent, fake_proxy, proxy_of

ASKED = [{"role": "user", "content": "Hi"}]
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
THINKING = {"type": "enabled", "budget_tokens": 1024}
REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": ASKED, "reasoning_effort": "high"}, "reasoning_effort"),
    (CHAT, {"messages": ASKED, "model": "codex-5-high"}, "reasoning_effort"),
    (RESPONSES, {"input": "Hi", "reasoning": {"effort": "high"}}, "reasoning.effort"),
    (RESPONSES, {"input": "Hi", "reasoning": {"summary": "auto"}}, "reasoning.summary"),
    (RESPONSES, {"input": "Hi", "model": "codex-5-low"}, "reasoning.effort"),
    (MESSAGES, {"messages": ASKED, "max_tokens": 50, "output_config": {"effort": "high"}}, "output_config.effort"),
    (MESSAGES, {"messages": ASKED, "max_tokens": 2000, "thinking": THINKING}, "thinking"),
    (MESSAGES, {"messages": ASKED, "max_tokens": 50, "thinking": {"type": "deep"}}, "thinking"),
    (OLLAMA, {"messages": ASKED, "think": "high"}, "think"),
]  # fmt: skip


def fields_without_entry(kind: type[msgspec.Struct]) -> set[str]:
    return set(kind.__struct_fields__) ^ {option.field for option in OPTIONS}


def test_every_field_of_a_turn_is_in_the_table_and_a_new_one_is_found() -> None:
    class TurnWithMore(Turn, frozen=True, kw_only=True):
        personality: str | None = None

    assert fields_without_entry(Turn) == set()
    assert fields_without_entry(TurnWithMore) == {"personality"}


def test_the_table_names_only_capabilities_and_fields_that_exist() -> None:
    for option in OPTIONS:
        assert {*option.needs} <= {*get_args(Capability)}, option
        assert option.only_with in {"", *Turn.__struct_fields__}, option


@pytest.mark.parametrize("dialect", ["acp", "proto", "app-server"])
async def test_an_effort_is_named_exactly_where_the_agent_has_none(dialect: str, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        for path, body, name in REQUESTS:
            for streamed in (False, True):
                given = {"model": "codex-5", "stream": streamed} | body
                answer = await proxy.send("POST", path, given)
                assert answer.status == 200, answer.text
                named = answer.headers.get("x-codex-ignored-params", "").split(", ")
                is_ignored = dialect == "acp" or body.get("thinking") == {"type": "deep"}
                assert (name in named) is is_ignored, (path, body, named)


@pytest.mark.parametrize("effort", [None, "low", "medium"])
async def test_a_summary_is_not_named_for_the_effort_that_is_asked_for(
    effort: str | None, tmp_path: Path
) -> None:
    agent = fake_agent()
    agent.capabilities -= {"effort"}
    agent.models = lambda: (AgentModel(id="codex-5", efforts=("low", "high"), is_default=True),)  # type: ignore[method-assign]
    async with proxy_of(agent, tmp_path) as proxy:
        body = {"model": "codex-5", "input": "Hi", "reasoning": {"effort": effort, "summary": "auto"}}
        answer = await proxy.send("POST", "/v1/responses", body)
    assert answer.status == 200, answer.text
    named = answer.headers.get("x-codex-ignored-params", "")
    assert named == ("reasoning.effort" if effort == "medium" else "")
