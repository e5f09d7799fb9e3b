"""A scripted server of Anthropic's Messages API on loopback: the model of the real Claude Code under test.

The last user text that holds `SCRIPT:` is followed by a JSON list of steps; step N is played for the N-th model call
behind it, and beyond the last the text "ok". A step has `think`, `signature`, `text`, `tools` (`name` and `args`),
`stop`, `hold` (the name of a gate that is waited for behind the first word), `drop` (the connection breaks behind the
text) or `error` (`status`, `type`, `message`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.web_application import serve_application

IN, CACHED, WRITTEN, OUT = 200, 1000, 50, 34
"""What every call is counted as: input beside the cache, read from it, written to it, output."""


def script(*steps: dict[str, Any]) -> str:
    """The end of a prompt that scripts the model. A script in a step, for a subagent, is found by that alone."""
    return "SCRIPT: " + json.dumps(steps).replace("SCRIPT:", "SCRIP\\u0054:")


@dataclass
class AnthropicModel:
    """The server and its memory."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of all model calls."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """What every answer has beside the usual ones."""
    gone: list[int] = field(default_factory=list)
    """The calls whose client hung up before their end, by their place in `requests`."""

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1]

    def texts_for_model(self, body: dict[str, Any] | None = None) -> list[tuple[str, str]]:
        """The roles and texts that a call was given, without what Claude Code adds by itself."""
        messages = (body or self.last)["messages"]
        return [(each["role"], _text(each["content"])) for each in messages if each["role"] != "system"]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        place = len(self.requests)
        self.requests.append(body)
        step = _step_of(body)
        error = step.get("error")
        if error is not None:
            detail = {"type": error["type"], "message": error["message"]}
            return web.json_response({"type": "error", "error": detail}, status=error["status"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **self.headers})
        await response.prepare(request)
        try:
            await self._play(request, response, step, body["model"], f"msg_{place}")
        except (ConnectionError, asyncio.CancelledError):
            self.gone.append(place)
            raise
        return response

    async def _play(
        self, request: web.Request, response: web.StreamResponse, step: dict[str, Any], model: str, id: str
    ) -> None:
        async def say(type: str, **fields: Any) -> None:
            await response.write(f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode())

        usage = {
            "input_tokens": step.get("in", IN),
            "cache_read_input_tokens": CACHED,
            "cache_creation_input_tokens": WRITTEN,
            "output_tokens": 1,
        }
        head = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "usage": usage,
        }
        await say("message_start", message=head | {"stop_reason": None, "stop_sequence": None})
        index = 0
        if think := step.get("think"):
            await say("content_block_start", index=index, content_block={"type": "thinking", "thinking": ""})
            delta = {"type": "thinking_delta", "thinking": think}
            await say("content_block_delta", index=index, delta=delta)
            if signature := step.get("signature"):
                delta = {"type": "signature_delta", "signature": signature}
                await say("content_block_delta", index=index, delta=delta)
            await say("content_block_stop", index=index)
            index += 1
        if text := step.get("text"):
            await say("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for number, word in enumerate(re.findall(r"\S+\s*", text)):
                await say("content_block_delta", index=index, delta={"type": "text_delta", "text": word})
                if number == 0 and "hold" in step:
                    await self.gate(step["hold"]).wait()
            if step.get("drop"):
                assert request.transport is not None
                request.transport.abort()
                return
            await say("content_block_stop", index=index)
            index += 1
        for number, call in enumerate(step.get("tools", ())):
            block = {"type": "tool_use", "id": f"toolu_{id}_{number}", "name": call["name"], "input": {}}
            await say("content_block_start", index=index, content_block=block)
            arguments = json.dumps(call["args"])
            for piece in re.findall(r".{1,8}", arguments):
                delta = {"type": "input_json_delta", "partial_json": piece}
                await say("content_block_delta", index=index, delta=delta)
            await say("content_block_stop", index=index)
            index += 1
        stop = step.get("stop", "tool_use" if step.get("tools") else "end_turn")
        delta = {"stop_reason": stop, "stop_sequence": None}
        await say("message_delta", delta=delta, usage=usage | {"output_tokens": OUT})
        await say("message_stop")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block) for block in content)


def _block_text(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"<call {block['name']} {json.dumps(block['input'])}>"
        case "thinking":
            return f"<thought {block['thinking']} signed {block['signature']}>"
        case "tool_result":
            return f"<output {_text(block['content'])}>"
        case other:
            return f"<{other}>"


def _step_of(body: dict[str, Any]) -> dict[str, Any]:
    messages = [each for each in body["messages"] if each["role"] != "system"]
    texts = [_text(each["content"]) if each["role"] == "user" else "" for each in messages]
    at = max((place for place, text in enumerate(texts) if "SCRIPT:" in text), default=-1)
    if at < 0:
        return {"text": "ok"}
    found = texts[at][texts[at].rindex("SCRIPT:") + 7 :].lstrip()
    steps = json.JSONDecoder().raw_decode(found)[0]
    calls = sum(each["role"] == "assistant" for each in messages[at + 1 :])
    return steps[calls] if calls < len(steps) else {"text": "ok"}


@asynccontextmanager
async def anthropic_model() -> AsyncIterator[AnthropicModel]:
    """A running server."""
    model = AnthropicModel()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/messages", model.handle)
    async with serve_application(app) as port:
        model.url = f"http://127.0.0.1:{port}"
        try:
            yield model
        finally:
            for gate in model.gates.values():
                gate.set()
