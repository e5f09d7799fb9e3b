"""`think` of Ollama reaches an upstream as its effort, with both APIs, or the answer names what has no effect."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.model_server import Case, Upstream, proxy_before, stream
from tests.response_events import THOUGHT, message, response_with

ANSWERS = {
    "openai-chat": stream({"reasoning_content": "Hm."}, {"content": "Yes."}),
    "openai-responses": response_with(THOUGHT, message("Yes.")),
}
REFUSAL = Case(400, {}, [json.dumps({"error": {"message": "I do not think so."}})], [], "error")
EFFORTS = {True: "medium", "low": "low", "medium": "medium", "high": "high", None: None, False: None}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "generate": {"prompt": "Hi"},
}


def effort_in(body: dict[str, Any]) -> Any:
    return body.get("reasoning_effort") or (body.get("reasoning") or {}).get("effort")


@pytest.mark.parametrize("agent", list(ANSWERS))
@pytest.mark.parametrize("upstream", ["takes it", "refuses it", "is said to lack it"])
async def test_think_has_its_effect_or_is_named(
    agent: str, upstream: str, server: Upstream, tmp_path: Path
) -> None:
    table = {"cannot": ["effort"]} if upstream == "is said to lack it" else {}
    if upstream == "refuses it":
        server.refuses = lambda body: REFUSAL if effort_in(body) else None
    async with proxy_before(server.url, tmp_path, agent=agent, table=table) as proxy:
        for (think, effort), path, streams in product(EFFORTS.items(), BODIES, (False, True)):
            server.script = [ANSWERS[agent]]
            body = {"model": "small", "think": think, "stream": streams, **BODIES[path]}
            answer = await proxy.send("POST", f"/api/{path}", body)
            lines = [json.loads(line) for line in answer.text.splitlines()]
            thoughts = "".join((line.get("message") or line).get("thinking", "") for line in lines)
            assert (answer.status, thoughts) == (200, "" if think is False else "Hm.")
            arrived = effort_in(server.requests[-1].body) == effort
            headers = [answer.headers.get(f"x-codex-{name}-params", "") for name in ("ignored", "changed")]
            is_named = "think" in headers[0] or "reasoning_effort" in headers[1]
            has_effect = arrived and not is_named
            assert has_effect == (upstream == "takes it") if effort else arrived, (think, headers)
            assert has_effect or is_named, (think, headers)
