"""A scripted server of four model APIs on loopback, for agents of any maker: Anthropic Messages, Gemini, OpenAI's Chat
Completions and Responses.

The last user text that holds `SCRIPT:` is followed by a JSON list of steps; step N is played for the N-th model call
behind it, and beyond the last the text "ok". A step has `think`, `signature` (of the thought: what only its provider
can check or decrypt), `text`, `tools` (`args` and a `name`, which has to be in the name of an offered tool), `delay`
(seconds between words), `drop` (the number of events after which the connection breaks) or `error` (`status`, `type`,
`message`). Agents make calls of their own (titles, suggestions), which are answered and not scripted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from aiohttp import web

from tests.web_application import serve_application

IN, CACHED, OUT, THOUGHT = 1200, 1000, 34, 7
"""What every call is counted as: input, what of it was cached, output, what of it was thought."""
BREAK_SECONDS = 0.1
"""From the last event of a stream to its break, so that the agent has read what came."""
Body: TypeAlias = dict[str, Any]
Say: TypeAlias = Callable[..., Awaitable[None]]


def script(*steps: Body) -> str:
    """The end of a prompt that scripts the model."""
    return "SCRIPT: " + json.dumps(steps)


@dataclass
class ScriptedApis:
    """The server and its memory."""

    url: str = ""
    bodies: list[Body] = field(default_factory=list)
    """The bodies of the model calls that offered tools."""
    calls: list[Body] = field(default_factory=list)
    """The bodies of all model calls."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request of an agent."""
        path = request.path
        if request.method != "POST":
            return web.json_response({"object": "list", "data": [{"id": "mock-model", "object": "model"}]})
        body: Body = json.loads(await request.read() or b"{}")
        if "count" in path:
            return web.json_response({"input_tokens": IN, "totalTokens": IN})
        api = next((api for end, api in APIS if end in path), None)
        if api is None:
            return web.json_response({})
        messages, tools = api.read(body)
        self.calls.append(body)
        if tools:
            self.bodies.append(body)
        step: Body = step_of(messages) if tools else {"text": "ok"}
        if error := step.get("error"):
            return web.json_response(api.error(error), status=error["status"])
        calls = [(_offered(call["name"], tools), call["args"]) for call in step.get("tools", ())]
        id = f"m{len(self.bodies)}"
        whole = api.whole(step.get("text", ""), calls, id)
        if not (body.get("stream") or "stream" in path):
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        written = 0

        async def say(data: Any, event: str = "") -> None:
            nonlocal written
            head = f"event: {event}\n" if event else ""
            text = data if isinstance(data, str) else json.dumps(data)
            if "drop" in step and written == step["drop"]:
                raise BrokenOffError
            written += 1
            await response.write(f"{head}data: {text}\n\n".encode())

        try:
            await api.stream(say, step, calls, id, whole)
        except BrokenOffError:
            assert request.transport is not None
            await asyncio.sleep(BREAK_SECONDS)
            request.transport.abort()
        return response


class BrokenOffError(Exception):
    """The script says that the connection breaks here."""


class Api:
    """One API: how a request is read, and how an answer is told."""

    def read(self, body: Body) -> tuple[list[tuple[str, str]], list[str]]:
        """The roles and texts of the messages, and the names of the tools."""
        raise NotImplementedError

    def error(self, error: Body) -> Body:
        """An error's body."""
        kind = {"type": error["type"], "message": error["message"]}
        return {"type": "error", "error": kind | {"code": error.get("code")}}

    def whole(self, text: str, calls: list[tuple[str, Any]], id: str) -> Body:
        """An answer as one object."""
        raise NotImplementedError

    async def stream(self, say: Say, step: Body, calls: list[tuple[str, Any]], id: str, whole: Body) -> None:
        """The same as events."""
        raise NotImplementedError


class Anthropic(Api):
    USAGE: ClassVar[Body] = {
        "input_tokens": IN - CACHED,
        "cache_read_input_tokens": CACHED,
        "output_tokens": OUT,
    }

    def read(self, body: Body) -> tuple[list[tuple[str, str]], list[str]]:
        said = [each for each in body["messages"] if each["role"] != "system"]
        return [(each["role"], text_of(each["content"])) for each in said], names_of(body, "name")

    def whole(self, text: str, calls: list[tuple[str, Any]], id: str) -> Body:
        uses = [
            {"type": "tool_use", "id": f"toolu_{id}_{n}", "name": c, "input": a}
            for n, (c, a) in enumerate(calls)
        ]
        content = ([{"type": "text", "text": text}] if text else []) + uses
        head = {"id": id, "type": "message", "role": "assistant", "model": "mock", "usage": self.USAGE}
        return head | {"content": content, "stop_reason": "tool_use" if calls else "end_turn"}

    async def stream(self, say: Say, step: Body, calls: list[tuple[str, Any]], id: str, whole: Body) -> None:
        async def event(type: str, **fields: Any) -> None:
            await say({"type": type, **fields}, type)

        blocks = list(whole["content"])
        if step.get("think"):
            signed = {"signature": step.get("signature", "")}
            blocks.insert(0, {"type": "thinking", "thinking": step["think"], **signed})
        await event("message_start", message=whole | {"content": [], "stop_reason": None})
        for index, block in enumerate(blocks):
            kind = block["type"]
            empty = {"text": {"text": ""}, "thinking": {"thinking": ""}, "tool_use": {"input": {}}}[kind]
            await event("content_block_start", index=index, content_block=block | empty)
            if kind == "tool_use":
                deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
            else:
                deltas = [{"type": f"{kind}_delta", kind: word} for word in words(block[kind])]
            if block.get("signature"):
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            for delta in deltas:
                await event("content_block_delta", index=index, delta=delta)
                await asyncio.sleep(step.get("delay", 0))
            await event("content_block_stop", index=index)
        await event("message_delta", delta={"stop_reason": whole["stop_reason"]}, usage=self.USAGE)
        await event("message_stop")


class Chat(Api):
    USAGE: ClassVar[Body] = {
        "prompt_tokens": IN,
        "completion_tokens": OUT,
        "total_tokens": IN + OUT,
        "prompt_tokens_details": {"cached_tokens": CACHED},
        "completion_tokens_details": {"reasoning_tokens": THOUGHT},
    }

    def read(self, body: Body) -> tuple[list[tuple[str, str]], list[str]]:
        roles = {"tool": "user", "user": "user", "assistant": "assistant"}
        said = [each for each in body["messages"] if each["role"] in roles]
        return [(roles[each["role"]], text_of(each.get("content"))) for each in said], [
            tool["function"]["name"] for tool in body.get("tools", ())
        ]

    def whole(self, text: str, calls: list[tuple[str, Any]], id: str) -> Body:
        uses = [
            {"id": f"call_{id}_{n}", "type": "function", "function": {"name": c, "arguments": json.dumps(a)}}
            for n, (c, a) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": uses} if uses else {})
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if uses else "stop"}
        head = {"id": id, "object": "chat.completion", "created": 1, "model": "mock-model"}
        return head | {"choices": [choice], "usage": self.USAGE}

    async def stream(self, say: Say, step: Body, calls: list[tuple[str, Any]], id: str, whole: Body) -> None:
        head = {"id": id, "object": "chat.completion.chunk", "created": 1, "model": "mock-model"}
        choice = whole["choices"][0]
        deltas: list[Body] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": word} for word in words(step.get("think", ""))]
        deltas += [{"content": word} for word in words(step.get("text", ""))]
        uses = choice["message"].get("tool_calls", ())
        deltas += [{"tool_calls": [{"index": index} | use]} for index, use in enumerate(uses)]
        for delta in deltas:
            await say(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            await asyncio.sleep(step.get("delay", 0))
        await say(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
        await say(head | {"choices": [], "usage": self.USAGE})
        await say("[DONE]")


class Gemini(Api):
    USAGE: ClassVar[Body] = {
        "promptTokenCount": IN,
        "candidatesTokenCount": OUT,
        "totalTokenCount": IN + OUT,
        "cachedContentTokenCount": CACHED,
    }

    def read(self, body: Body) -> tuple[list[tuple[str, str]], list[str]]:
        roles = {"model": "assistant"}
        said = [(roles.get(each.get("role"), "user"), text_of(each["parts"])) for each in body["contents"]]
        tools = [tool for each in body.get("tools", ()) for tool in each.get("functionDeclarations", ())]
        return said, [tool["name"] for tool in tools]

    def error(self, error: Body) -> Body:
        return {"error": {"code": error["status"], "message": error["message"], "status": error["type"]}}

    def whole(self, text: str, calls: list[tuple[str, Any]], id: str) -> Body:
        uses = [
            {"functionCall": {"id": f"fc_{id}_{n}", "name": c, "args": a}} for n, (c, a) in enumerate(calls)
        ]
        return self._answer(([{"text": text}] if text else []) + uses, "STOP")

    def _answer(self, parts: list[Body], finish: str | None) -> Body:
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is None:
            return {"candidates": [candidate]}
        return {"candidates": [candidate | {"finishReason": finish}], "usageMetadata": self.USAGE}

    async def stream(self, say: Say, step: Body, calls: list[tuple[str, Any]], id: str, whole: Body) -> None:
        if step.get("think"):
            await say(self._answer([{"text": step["think"], "thought": True}], None))
        for word in words(step.get("text", "")):
            await say(self._answer([{"text": word}], None))
            await asyncio.sleep(step.get("delay", 0))
        parts = [part for part in whole["candidates"][0]["content"]["parts"] if "functionCall" in part]
        await say(self._answer(parts or [{"text": ""}], "STOP"))


class Responses(Api):
    USAGE: ClassVar[Body] = {
        "input_tokens": IN,
        "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": OUT,
        "output_tokens_details": {"reasoning_tokens": THOUGHT},
        "total_tokens": IN + OUT,
    }

    def read(self, body: Body) -> tuple[list[tuple[str, str]], list[str]]:
        said = []
        for item in body["input"]:
            kind = item.get("type", "message")
            if kind == "message" and item["role"] in ("user", "assistant"):
                said.append((item["role"], text_of(item["content"])))
            elif kind in ("function_call", "custom_tool_call"):
                said.append(("assistant", ""))
            elif kind in ("function_call_output", "custom_tool_call_output"):
                said.append(("user", ""))
        tools = []
        later = [item["tools"] for item in body["input"] if item.get("type") == "additional_tools"]
        for tool in (*body.get("tools", ()), *(tool for each in later for tool in each)):
            inner = tool.get("tools", ()) if tool["type"] == "namespace" else [tool]
            space = f"{tool['name']}/" if tool["type"] == "namespace" else ""
            tools += [space + str(each.get("name") or each["type"]) for each in inner]
        return said, tools

    def whole(self, text: str, calls: list[tuple[str, Any]], id: str) -> Body:
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {
            "type": "message",
            "id": f"msg_{id}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        items: list[Body] = [message] if text else []
        for n, (name, arguments) in enumerate(calls):
            space, _, plain = name.rpartition("/")
            call = {"type": "function_call", "id": f"fc_{id}_{n}", "call_id": f"call_{id}_{n}", "name": plain}
            call |= {"arguments": json.dumps(arguments), "status": "completed"}
            items.append(call | ({"namespace": space} if space else {}))
        head = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": "mock",
        }
        return head | {"output": items, "usage": self.USAGE}

    async def stream(self, say: Say, step: Body, calls: list[tuple[str, Any]], id: str, whole: Body) -> None:
        async def event(type: str, **fields: Any) -> None:
            await say({"type": type, **fields}, type)

        items = list(whole["output"])
        if step.get("think"):
            summary = [{"type": "summary_text", "text": step["think"]}]
            sealed = {"encrypted_content": step["signature"]} if step.get("signature") else {}
            items.insert(0, {"type": "reasoning", "id": f"rs_{id}", "summary": summary, **sealed})
        await event(
            "response.created", response=whole | {"status": "in_progress", "output": [], "usage": None}
        )
        for index, item in enumerate(items):
            place = {"output_index": index, "item_id": item["id"]}
            blank = {
                "message": {"content": []},
                "reasoning": {"summary": []},
                "function_call": {"arguments": ""},
            }
            await event("response.output_item.added", output_index=index, item=item | blank[item["type"]])
            if item["type"] == "message":
                for word in words(step["text"]):
                    await event("response.output_text.delta", **place, content_index=0, delta=word)
                    await asyncio.sleep(step.get("delay", 0))
            elif item["type"] == "reasoning":
                part = {"type": "summary_text", "text": ""}
                await event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
                delta = step["think"]
                await event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=delta)
            await event("response.output_item.done", output_index=index, item=item)
        await event("response.completed", response=whole | {"output": items})


APIS: list[tuple[str, Api]] = [
    ("/messages", Anthropic()),
    ("/chat/completions", Chat()),
    ("/responses", Responses()),
    ("enerateContent", Gemini()),
]
"""Each API, and what its paths have in them."""


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part.get("text"), str))


def names_of(body: Body, key: str) -> list[str]:
    """The names of the tools of a request."""
    return [str(tool.get(key)) for tool in body.get("tools", ())]


def words(text: str) -> list[str]:
    """The text in words, as a model tells it."""
    return re.findall(r"\S+\s*", text)


def step_of(messages: list[tuple[str, str]]) -> Body:
    """The step that is played for a call with these messages."""
    places = [place for place, (role, text) in enumerate(messages) if role == "user" and "SCRIPT:" in text]
    if not places:
        return {"text": "ok"}
    text = messages[places[-1]][1]
    steps = json.JSONDecoder().raw_decode(text[text.rindex("SCRIPT:") + 7 :].lstrip())[0]
    rounds, before = 0, ""
    for role, _ in messages[places[-1] + 1 :]:
        rounds += role == "assistant" != before
        before = role
    return dict(steps[rounds]) if rounds < len(steps) else {"text": "ok"}


def _offered(name: str, tools: list[str]) -> str:
    return next((tool for tool in tools if tool == name), None) or next(
        (tool for tool in tools if name in tool), name
    )


@asynccontextmanager
async def scripted_apis() -> AsyncIterator[ScriptedApis]:
    """A running server."""
    apis = ScriptedApis()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{tail:.*}", apis.handle)
    async with serve_application(app) as port:
        apis.url = f"http://127.0.0.1:{port}"
        yield apis
