"""A client's tool loop through the proxy: with threads kept, with every step replayed, and over restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion

from tests.real.codex_home import MODEL, CodexHome
from tests.real.proxy import Proxy
from tests.real.proxy import proxy as serving

WAYS = ("kept", "replayed", "restarted")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass
class Loop:
    """One conversation. `way` says what happens to the proxy between its requests."""

    home: CodexHome
    way: str
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ChatCompletion] = field(default_factory=list)
    proxies: AsyncExitStack = field(default_factory=AsyncExitStack)
    proxy: Proxy | None = None

    async def ask(self, **request: Any) -> ChatCompletion:
        """One request with the conversation so far; its answer is echoed into the conversation."""
        if self.proxy is None or self.way == "restarted":
            await self.proxies.aclose()
            kept = {} if self.way == "kept" else {"kept_threads": 0}
            self.proxy = await self.proxies.enter_async_context(serving(self.home, **kept, **self.settings))
        given = {"model": MODEL, "tools": [WEATHER], "messages": self.messages} | request
        answer = await self.proxy.client.chat.completions.create(**given)
        self.answers.append(answer)
        echo = answer.choices[0].message.model_dump(exclude_none=True)
        self.messages.append({"role": "assistant", **echo})
        return answer

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def output(self, call_id: str, content: Any) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    async def run(self, tool: Callable[[str, dict[str, Any]], Any], **request: Any) -> ChatCompletion:
        """Asks until there is an answer without calls, 50 times at most."""
        for _ in range(50):
            answer = await self.ask(**request)
            calls = answer.choices[0].message.tool_calls or []
            if not calls:
                return answer
            for call in calls:
                assert call.type == "function"
                self.output(call.id, tool(call.function.name, json.loads(call.function.arguments)))
        raise AssertionError("the loop does not end")


@asynccontextmanager
async def loop_of(home: CodexHome, way: str, **settings: Any) -> AsyncIterator[Loop]:
    loop = Loop(home, way, settings)
    try:
        yield loop
    finally:
        await loop.proxies.aclose()
