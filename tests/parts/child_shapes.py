"""What a child may print in one turn, of any size: the shapes at which the cost of reading it may grow faster than it.

Each function takes a size and returns the messages of a child, whose bytes are about in proportion to the size.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.parts.child_readers import SESSION, THREAD, TURN

Messages = Iterable[Any]
Shape = Callable[[int], Messages]


# --- codex proto ----------------------------------------------------------------------------------


def _proto(type: str, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "msg": {"type": type, **fields}}


def _piece(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, "type": "function", **fields}


def _proto_call(index: int, name: str | None = "add", arguments: str = "{}") -> dict[str, Any]:
    return _piece(index, id=f"call_{index}", function={"name": name, "arguments": arguments})


PROTO: Final[dict[str, Shape]] = {
    "deltas": lambda n: (_proto("agent_message_delta", delta="word ") for _ in range(n)),
    "empty deltas": lambda n: (_proto("agent_message_delta", delta="") for _ in range(n)),
    "one long text": lambda n: [_proto("agent_message", message="word " * n)],
    "many messages": lambda n: (_proto("agent_message", message="word") for _ in range(n)),
    "choices left open": lambda n: (
        _proto("agent_message_delta", delta="x", choice_index=index) for index in range(n)
    ),
    "reasoning in deltas": lambda n: (_proto("agent_reasoning_delta", delta="word ") for _ in range(n)),
    "sections of reasoning": lambda n: (
        each
        for _ in range(n)
        for each in (_proto("agent_reasoning_section_break"), _proto("agent_reasoning_delta", delta="x"))
    ),
    "whole texts of reasoning": lambda n: (_proto("agent_reasoning", text="word") for _ in range(n)),
    "arguments in pieces": lambda n: [
        _proto("tool_calls_delta", tool_calls=[_proto_call(0, arguments="")]),
        *(
            _proto("tool_calls_delta", tool_calls=[_piece(0, function={"arguments": "word "})])
            for _ in range(n)
        ),
    ],
    "arguments before the name": lambda n: [
        *(
            _proto("tool_calls_delta", tool_calls=[_piece(0, id="a", function={"arguments": "words " * 9})])
            for _ in range(n)
        ),
        _proto("tool_calls_delta", tool_calls=[_proto_call(0)]),
    ],
    "calls left open": lambda n: (
        _proto("tool_calls_delta", tool_calls=[_proto_call(index)]) for index in range(n)
    ),
    "calls of one message": lambda n: [
        _proto("tool_calls_delta", tool_calls=[_proto_call(index) for index in range(n)]),
        _proto("agent_message", tool_calls=[_proto_call(index) for index in reversed(range(n))]),
    ],
    "calls without a name": lambda n: (
        _proto("tool_calls_delta", tool_calls=[_proto_call(index, name="")]) for index in range(n)
    ),
    "one id reused": lambda n: (
        _proto(type, call_id="a", command=["ls"], exit_code=0)
        for _ in range(n)
        for type in ("exec_command_begin", "exec_command_end")
    ),
    "activities left open": lambda n: (
        _proto("exec_command_begin", call_id=f"a{index}", command=["ls"]) for index in range(n)
    ),
    "output of a command": lambda n: [
        _proto("exec_command_begin", call_id="a", command=["ls"]),
        *(
            _proto("exec_command_output_delta", call_id="a", chunk=base64.b64encode(b"word ").decode())
            for _ in range(n)
        ),
    ],
    "a long plan": lambda n: [_proto("plan_update", plan=[{"step": "x", "status": "pending"}] * n)],
    "retries": lambda n: [
        _proto("agent_message_delta", delta="word " * n),
        *(_proto("stream_error", message="Reconnecting... 1/5") for _ in range(n)),
    ],
    "messages repeated after a retry": lambda n: [
        *(_proto("agent_message", message="word") for _ in range(n)),
        _proto("stream_error", message="Reconnecting... 1/5"),
        *(_proto("agent_message", message="word") for _ in range(n)),
    ],
    "approvals": lambda n: (_proto("exec_approval_request", command=["ls"]) for _ in range(n)),
    "token counts": lambda n: (
        _proto("token_count", info={"total_token_usage": {"input_tokens": count}}) for count in range(n)
    ),
    "unknown events": lambda n: (_proto(f"event_{index}") for index in range(n)),
    "no JSON": lambda n: (b"words" for _ in range(n)),
    "nested": lambda n: [b'{"id":"1","msg":{"type":"x","info":' + b"[" * n + b"]" * n + b"}}"],
    "a long line of small values": lambda n: [_proto("x", unknown=[{}] * n)],
}


# --- codex app-server -----------------------------------------------------------------------------


def _app(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": THREAD, "turnId": TURN, **params}}


def _item_started(id: str, type: str = "agentMessage", **item: Any) -> dict[str, Any]:
    return _app("item/started", item={"id": id, "type": type, **item})


def _item_completed(id: str, type: str = "agentMessage", **item: Any) -> dict[str, Any]:
    return _app("item/completed", item={"id": id, "type": type, **item})


def _raw(type: str, **item: Any) -> dict[str, Any]:
    return _app("rawResponseItem/completed", item={"type": type, **item})


def _raw_call(index: int, **item: Any) -> dict[str, Any]:
    return _raw("function_call", call_id=f"call_{index}", **{"name": "add", "arguments": "{}", **item})


def _tool_call(index: int, **params: Any) -> dict[str, Any]:
    return {
        "id": index,
        **_app("item/tool/call", callId=f"call_{index}", tool="add", arguments={}, **params),
    }


TURN_COMPLETED = _app("turn/completed", turn={"id": TURN, "status": "completed"})

APP_SERVER: Final[dict[str, Shape]] = {
    "deltas": lambda n: (_app("item/agentMessage/delta", itemId="m", delta="word ") for _ in range(n)),
    "deltas of two messages": lambda n: (
        _app("item/agentMessage/delta", itemId=id, delta="word ") for _ in range(n) for id in "ab"
    ),
    "one long text": lambda n: [_item_completed("m", text="word " * n)],
    "items left open": lambda n: [*(_item_started(f"m{index}") for index in range(n)), TURN_COMPLETED],
    "activities left open": lambda n: [
        *(_item_started(f"m{index}", "commandExecution", command="ls") for index in range(n)),
        TURN_COMPLETED,
    ],
    "one id reused": lambda n: (_item_completed("m", text="word") for _ in range(n)),
    "empty ids": lambda n: (_item_completed("", text="word") for _ in range(n)),
    "reasoning in deltas": lambda n: (
        _app("item/reasoning/textDelta", itemId="r", delta="word ") for _ in range(n)
    ),
    "parts of reasoning": lambda n: [_item_completed("r", "reasoning", summary=["word"] * n)],
    "raw parts of reasoning": lambda n: [_item_completed("r", "reasoning", content=["word"] * n)],
    "reasoning completed again": lambda n: [
        _item_started("r", "reasoning"),
        *(_item_completed("r", "reasoning", summary=["word"]) for _ in range(n)),
    ],
    "output of a command": lambda n: [
        _item_started("c", "commandExecution", command="ls"),
        *(_app("item/commandExecution/outputDelta", itemId="c", delta="word ") for _ in range(n)),
        TURN_COMPLETED,
    ],
    "a long plan": lambda n: [_app("turn/plan/updated", plan=[{"step": "x", "status": "pending"}] * n)],
    "calls": lambda n: [
        *(_raw_call(index) for index in range(n)),
        _app("rawResponse/completed", usage={"inputTokens": 1}),
    ],
    "calls of an unknown tool": lambda n: [
        *(_raw_call(index, name="other") for index in range(n)),
        _app("rawResponse/completed", usage={"inputTokens": 1}),
    ],
    "calls whose outputs are requested": lambda n: [
        *(_raw_call(index) for index in range(n)),
        *(_tool_call(index) for index in range(n)),
    ],
    "requests for outputs alone": lambda n: (_tool_call(index) for index in range(n)),
    "requests beside open items": lambda n: [
        *(_item_started(f"m{index}") for index in range(n)),
        *(_raw_call(index, name="other") for index in range(n)),
        *(_tool_call(index) for index in range(n)),
    ],
    "raw items": lambda n: (
        _raw("message", role="assistant", id=f"m{index}", content=[{"text": "word"}]) for index in range(n)
    ),
    "a raw item of many parts": lambda n: [
        _raw("message", role="assistant", id="m", content=[{"type": "output_text", "text": "word"}] * n)
    ],
    "outputs of calls": lambda n: (
        _raw("function_call_output", call_id=f"c{index}", output="word") for index in range(n)
    ),
    "retries": lambda n: [
        _app("item/agentMessage/delta", itemId="m", delta="word " * n),
        *(_app("error", willRetry=True, error={"message": "stream disconnected"}) for _ in range(n)),
    ],
    "messages repeated after a retry": lambda n: [
        *(_item_completed(f"m{index}", text="word") for index in range(n)),
        _app("error", willRetry=True, error={"message": "stream disconnected"}),
        *(_item_completed(f"n{index}", text="word") for index in range(n)),
    ],
    "approvals": lambda n: (
        {"id": index, **_app("item/commandExecution/requestApproval", command="ls")} for index in range(n)
    ),
    "unknown requests": lambda n: ({"id": index, **_app("x")} for index in range(n)),
    "threads of one channel": lambda n: (
        {"id": "1.1", "result": {"thread": {"id": f"thread_{index}"}}} for index in range(n)
    ),
    "nested": lambda n: [
        b'{"method":"rawResponseItem/completed","params":{"threadId":"%s","turnId":"%s","item":'
        % (THREAD.encode(), TURN.encode())
        + b"[" * n
        + b"]" * n
        + b"}}"
    ],
    "a long line of small values": lambda n: [
        _raw("message", role="assistant", id="m", unknown=[{}] * n),
    ],
}


# --- Claude Code ----------------------------------------------------------------------------------


def _event(type: str, **fields: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": {"type": type, **fields}}


def _delta(index: int = 0, **delta: Any) -> dict[str, Any]:
    return _event("content_block_delta", index=index, delta=delta)


def _block(index: int = 0, **block: Any) -> dict[str, Any]:
    return _event("content_block_start", index=index, content_block=block)


def _stop(index: int = 0) -> dict[str, Any]:
    return _event("content_block_stop", index=index)


def _tool_use(index: int, name: str = "mcp__client__add") -> dict[str, Any]:
    return _block(index, type="tool_use", id=f"call_{index}", name=name)


def _control(index: int, **request: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": f"q{index}", "request": request}


def _rpc(index: int, method: str, **params: Any) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": index, "method": method, "params": params}
    return _control(index, subtype="mcp_message", server_name="client", message=message)


MESSAGE = _event("message_start", message={"id": "msg", "model": "m"})
STEP_ENDED = _event("message_delta", delta={"stop_reason": "tool_use"})
RESULT = {"type": "result", "subtype": "success", "result": "x"}

CLAUDE_CODE: Final[dict[str, Shape]] = {
    "deltas": lambda n: [MESSAGE, _block(type="text"), *(_delta(text="word ") for _ in range(n))],
    "thinking": lambda n: [
        MESSAGE,
        _block(type="thinking"),
        *(_delta(thinking="words of thinking " * 4) for _ in range(n)),
        _delta(signature="x"),
        _stop(),
        STEP_ENDED,
    ],
    "signatures": lambda n: [
        MESSAGE,
        _block(type="thinking"),
        *(_delta(signature="words of a signature " * 4) for _ in range(n)),
        _stop(),
        STEP_ENDED,
    ],
    "blocks of text": lambda n: [
        MESSAGE,
        *(
            each
            for index in range(n)
            for each in (_block(index, type="text"), _delta(index, text="x"), _stop(index))
        ),
        STEP_ENDED,
    ],
    "blocks left open": lambda n: [MESSAGE, *(_block(index, type="text") for index in range(n)), RESULT],
    "one block's index reused": lambda n: [
        MESSAGE,
        *(each for _ in range(n) for each in (_block(type="text"), _delta(text="x"), _stop())),
        STEP_ENDED,
    ],
    "redacted thinking": lambda n: [
        MESSAGE,
        *(_block(index, type="redacted_thinking", data="x") for index in range(n)),
        STEP_ENDED,
    ],
    "calls": lambda n: [
        MESSAGE,
        *(each for index in range(n) for each in (_tool_use(index), _stop(index))),
        STEP_ENDED,
    ],
    "calls without a name": lambda n: [MESSAGE, *(_tool_use(index, "") for index in range(n)), STEP_ENDED],
    "arguments in pieces": lambda n: [
        MESSAGE,
        _tool_use(0),
        *(_delta(partial_json="word ") for _ in range(n)),
        STEP_ENDED,
    ],
    "whole messages": lambda n: (
        {
            "type": "assistant",
            "message": {"id": f"m{index}", "model": "m", "content": [{"type": "text", "text": "word"}]},
        }
        for index in range(n)
    ),
    "a whole message of many blocks": lambda n: [
        {
            "type": "assistant",
            "message": {"id": "m", "model": "m", "content": [{"type": "text", "text": "word"}] * n},
        }
    ],
    "messages begun": lambda n: (
        _event("message_start", message={"id": f"msg_{index}", "model": "m"}) for index in range(n)
    ),
    "messages that break off": lambda n: (
        each
        for index in range(n)
        for each in (
            _event("message_start", message={"id": f"msg_{index}", "model": "m"}),
            _block(type="text"),
            _delta(text="word"),
        )
    ),
    "outputs of tools": lambda n: [
        {
            "type": "user",
            "message": {
                "content": [{"type": "tool_result", "tool_use_id": f"c{index}"} for index in range(n)]
            },
        }
    ],
    "an output of many blocks": lambda n: [
        {
            "type": "user",
            "message": {
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [{"type": "text", "text": "x"}] * n,
                    }
                ]
            },
        }
    ],
    "requests for outputs": lambda n: (
        _rpc(index, "tools/call", name="add", arguments={}, _meta={"claudecode/toolUseId": f"c{index}"})
        for index in range(n)
    ),
    "requests for one output": lambda n: (
        _rpc(index, "tools/call", name="add", arguments={}, _meta={"claudecode/toolUseId": "c"})
        for index in range(n)
    ),
    "permissions": lambda n: [
        *(_control(index, subtype="can_use_tool", tool_name="Bash", input={}) for index in range(n)),
        {**RESULT, "is_error": True},
    ],
    "unknown requests": lambda n: (_control(index, subtype="x") for index in range(n)),
    "lists of tools": lambda n: (_rpc(index, "tools/list") for index in range(n)),
    "retries": lambda n: [
        MESSAGE,
        _block(type="text"),
        _delta(text="word " * n),
        *({"type": "system", "subtype": "api_retry", "attempt": 1} for _ in range(n)),
    ],
    "nested": lambda n: [b'{"type":"assistant","message":' + b"[" * n + b"]" * n + b"}"],
    "a long line of small values": lambda n: [
        {"type": "assistant", "message": {"id": "m", "model": "m", "unknown": [{}] * n}}
    ],
}
CLAUDE_CODE_STRUCTURED: Final[dict[str, Shape]] = {
    name: CLAUDE_CODE[name]
    for name in ("deltas", "blocks of text", "blocks left open", "one block's index reused")
}
"""Shapes for a turn with a schema, whose text is held back."""


# --- ACP ------------------------------------------------------------------------------------------


def _update(type: str, **update: Any) -> dict[str, Any]:
    params = {"sessionId": SESSION, "update": {"sessionUpdate": type, **update}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def _chunk(text: str, type: str = "agent_message_chunk", **update: Any) -> dict[str, Any]:
    return _update(type, content={"type": "text", "text": text}, **update)


def _call(id: str, type: str = "tool_call_update", **update: Any) -> dict[str, Any]:
    return _update(type, toolCallId=id, **update)


def _content(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


PROMPT_ANSWER = {"jsonrpc": "2.0", "id": 1_000_002, "result": {"stopReason": "end_turn", "usage": None}}

ACP: Final[dict[str, Shape]] = {
    "deltas": lambda n: (_chunk("word ") for _ in range(n)),
    "thoughts": lambda n: (_chunk("word ", "agent_thought_chunk") for _ in range(n)),
    "one long text": lambda n: [_chunk("word " * n)],
    "many messages": lambda n: (_chunk("word", messageId=f"m{index}") for index in range(n)),
    "text and thoughts by turns": lambda n: (
        each for _ in range(n) for each in (_chunk("word"), _chunk("word", "agent_thought_chunk"))
    ),
    "what may be an error": lambda n: [
        _chunk("Error: x"),
        *(_chunk("words " * 9) for _ in range(n)),
        PROMPT_ANSWER,
    ],
    "errors": lambda n: (_chunk("Error: x") for _ in range(n)),
    "calls left open": lambda n: [
        *(_call(f"c{index}", "tool_call", title="x", kind="execute") for index in range(n)),
        PROMPT_ANSWER,
    ],
    "calls that end": lambda n: (
        _call(f"c{index}", "tool_call", title="x", status="completed") for index in range(n)
    ),
    "calls of the client's tools": lambda n: (
        _call(f"c{index}", "tool_call", title="client_add") for index in range(n)
    ),
    "one id reused": lambda n: (_call("c", "tool_call", title="x", status="completed") for _ in range(n)),
    "updates of a call": lambda n: (_call("c", title="x", rawInput={"x": 1}) for _ in range(n)),
    "fields of an update": lambda n: (_call("c", title="x", _meta={f"field_{i}": 1}) for i in range(n)),
    "output of a command": lambda n: (
        _call("c", _meta={"terminal_output_delta": {"data": "words of output " * 4}}) for _ in range(n)
    ),
    "an output of many parts": lambda n: [_call("c", content=_content("word") * n)],
    "a long plan": lambda n: [_update("plan", entries=[{"content": "x", "status": "pending"}] * n)],
    "plans": lambda n: (_update("plan", entries=[{"content": "x"}]) for _ in range(n)),
    "notices": lambda n: (_update("notice", title="x") for _ in range(n)),
    "retries": lambda n: [_chunk("word " * n), *(_chunk("Info: Retrying...") for _ in range(n))],
    "permissions": lambda n: (
        {
            "jsonrpc": "2.0",
            "id": index,
            "method": "session/request_permission",
            "params": {"sessionId": SESSION, "toolCall": {"toolCallId": f"c{index}"}, "options": []},
        }
        for index in range(n)
    ),
    "unknown requests": lambda n: (
        {"jsonrpc": "2.0", "id": index, "method": "x", "params": {"sessionId": SESSION}} for index in range(n)
    ),
    "sessions of one channel": lambda n: (
        {"jsonrpc": "2.0", "id": 1_000_001, "result": {"sessionId": f"s{index}"}} for index in range(n)
    ),
    "nested": lambda n: [
        b'{"jsonrpc":"2.0","method":"session/update","params":{"update":' + b"[" * n + b"]" * n + b"}}"
    ],
    "a long line of small values": lambda n: [_chunk("x", unknown=[{}] * n)],
    "an input of small values": lambda n: [_call("c", title="x", rawInput=[{}] * n)],
    "a content of small values": lambda n: [_call("c", title="x", content=[{}] * n)],
    "a result of small values": lambda n: [
        {**PROMPT_ANSWER, "result": {"stopReason": "end_turn", "x": [{}] * n}}
    ],
}

SHAPES: Final[dict[str, dict[str, Shape]]] = {
    "codex-proto": PROTO,
    "app-server": APP_SERVER,
    "claude-code": CLAUDE_CODE,
    "acp": ACP,
}
"""The shapes of each kind of child, by the names of `child_readers.READERS`."""


def _words(size: int) -> str:
    return "words of text, " * (size // 15)


def _lists(size: int) -> list[Any]:
    return [[1]] * (size // 5)


LONG_LINES: Final[dict[str, dict[str, Callable[[int], Any]]]] = {
    "codex-proto": {
        "text": lambda size: _proto("agent_message", message=_words(size)),
        "lists": lambda size: _proto("plan_update", plan=_lists(size)),
    },
    "app-server": {
        "text": lambda size: _item_completed("m", text=_words(size)),
        "raw text": lambda size: _raw("message", role="assistant", id="m", content=[{"text": _words(size)}]),
        "image": lambda size: _raw("image_generation_call", id="i", result="A" * size),
        "lists": lambda size: _raw("message", role="assistant", id="m", x=_lists(size)),
        "parts": lambda size: _item_completed("r", "reasoning", summary=["w"] * (size // 4)),
    },
    "claude-code": {
        "text": lambda size: {
            "type": "assistant",
            "message": {"id": "m", "model": "m", "content": [{"type": "text", "text": _words(size)}]},
        },
        "blocks": lambda size: {
            "type": "assistant",
            "message": {"id": "m", "model": "m", "content": [{"type": "text", "text": "w"}] * (size // 28)},
        },
        "image": lambda size: {
            "type": "user",
            "message": {"content": [{"type": "tool_result", "content": [{"source": {"data": "A" * size}}]}]},
        },
        "lists": lambda size: {
            "type": "user",
            "message": {"content": [{"type": "tool_result", "tool_use_id": "c", "content": _lists(size)}]},
        },
    },
    "acp": {
        "text": lambda size: _chunk(_words(size)),
        "output": lambda size: _call("c", content=_content(_words(size))),
        "input": lambda size: _call("c", rawInput={"content": _words(size)}),
        "lists": lambda size: _call("c", rawInput={"x": _lists(size)}),
        "blocks": lambda size: _call("c", content=[{}] * (size // 4)),
    },
}
"""Lines of about so many bytes: long texts and images, and very many small values."""
