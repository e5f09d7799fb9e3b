"""Builds the JSON objects of `codex app-server` (0.163): threads, turns, items, usage, errors. Every time in them
is 0.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Shape = dict[str, Any]

VERSION = "0.163.0"
CONTEXT_WINDOW = 258400
ABORTED_TEXT = (
    "<turn_aborted>\nThe user interrupted the previous turn on purpose. Any running unified exec processes "
    "may still be running in the background. If any tools/commands were aborted, they may have partially "
    "executed.\n</turn_aborted>"
)
RESETS_AT = 4_102_444_800
"""When the account's limits are reset, in seconds since 1970: in the year 2100, after every test."""

RATE_LIMITS = {
    "limitId": "codex",
    "limitName": None,
    "normalModelSlug": None,
    "primary": None,
    "secondary": None,
    "credits": None,
    "individualLimit": None,
    "spendControlReached": None,
    "planType": None,
    "rateLimitReachedType": None,
}


def rate_limits(percent: str) -> Shape:
    """Returns the account's limits, `percent` used of a window of five hours. If it is empty, every field is null, as
    from a provider without limits.
    """
    if not percent:
        return RATE_LIMITS
    window = {"usedPercent": int(percent), "windowDurationMins": 300, "resetsAt": RESETS_AT}
    return {**RATE_LIMITS, "primary": window, "planType": "plus"}


def thread_started(identifier: str, params: Shape, model: str, originator: str) -> Shape:
    """Returns the result of `thread/start`. Its `thread` is also sent in `thread/started`."""
    cwd = params.get("cwd") or "/fake/workspace"
    thread = {
        "id": identifier,
        "environments": params.get("environments") or [],
        "extra": None,
        "sessionId": identifier,
        "forkedFromId": None,
        "parentThreadId": None,
        "preview": "",
        "ephemeral": bool(params.get("ephemeral")),
        "section": None,
        "sectionEnteredAt": None,
        "projectId": None,
        "historyMode": "paginated",
        "modelProvider": "fake",
        "model": model,
        "reasoningEffort": None,
        "createdAt": 0,
        "updatedAt": 0,
        "recencyAt": 0,
        "status": {"type": "idle"},
        "path": None,
        "cwd": cwd,
        "cliVersion": VERSION,
        "originator": originator,
        "source": "vscode",
        "canAcceptDirectInput": True,
        "threadSource": None,
        "agentNickname": None,
        "agentRole": None,
        "gitInfo": None,
        "name": None,
        "daybreakEnabled": None,
        "turns": [],
    }
    return {
        "thread": thread,
        "model": model,
        "modelProvider": "fake",
        "serviceTier": None,
        "disabledPluginIds": [],
        "cwd": cwd,
        "runtimeWorkspaceRoots": [],
        "instructionSources": [],
        "approvalPolicy": params.get("approvalPolicy") or "on-request",
        "approvalsReviewer": "user",
        "sandbox": {"type": "readOnly", "networkAccess": False},
        "activePermissionProfile": None,
        "reasoningEffort": None,
        "multiAgentMode": "explicitRequestOnly",
    }


def turn(identifier: str, status: str, items: list[Shape] | None = None, error: Shape | None = None) -> Shape:
    """Returns a turn. `items`: the last message of a completed turn; `error`: why a turn failed."""
    over = status != "inProgress"
    return {
        "id": identifier,
        "rootTurnId": identifier,
        "items": items or [],
        "itemsView": "summary" if items else "notLoaded",
        "status": status,
        "error": error,
        "startedAt": 0,
        "completedAt": 0 if over else None,
        "durationMs": 0 if over else None,
    }


def agent_message(identifier: str, text: str) -> Shape:
    """Returns an `agentMessage` item. Its text is empty when it starts."""
    return {
        "type": "agentMessage",
        "id": identifier,
        "text": text,
        "phase": None,
        "memoryCitation": None,
        "delivery": None,
        "questions": None,
    }


def command(identifier: str, text: str, status: str, output: str | None, exit_code: int | None) -> Shape:
    """Returns a command that the agent runs. `output` and `exit_code`: None until it has ended."""
    return {
        "type": "commandExecution",
        "id": identifier,
        "pluginId": None,
        "scriptPath": None,
        "command": f"/bin/bash -lc '{text}'",
        "cwd": "/fake/workspace",
        "processId": None,
        "source": "agent",
        "status": status,
        "commandActions": [{"type": "unknown", "command": text}],
        "aggregatedOutput": output,
        "exitCode": exit_code,
        "durationMs": None if exit_code is None else 0,
    }


def dynamic_call(call: Shape, status: str, content: list[Shape] | None, success: bool | None) -> Shape:
    """Returns a call of a client's tool. `content` and `success`: None until the client has answered."""
    return {
        "type": "dynamicToolCall",
        "id": call["id"],
        "namespace": call["namespace"],
        "tool": call["tool"],
        "arguments": call["parsed"],
        "status": status,
        "contentItems": content,
        "success": success,
        "durationMs": None if success is None else 0,
    }


def raw(turn_id: str, item: Shape) -> Shape:
    """Returns a Responses item as `rawResponseItem/completed` has it, with its turn's id."""
    return {**item, "internal_chat_message_metadata_passthrough": {"turn_id": turn_id}}


def raw_message(identifier: str, text: str) -> Shape:
    """Returns a message of the model as a Responses item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "status": "completed",
        "id": identifier,
        "role": "assistant",
        "content": content,
    }


def raw_call(identifier: str, call_id: str, name: str, arguments: str) -> Shape:
    """Returns a function call as a Responses item. `arguments`: JSON text."""
    return {
        "type": "function_call",
        "status": "completed",
        "id": identifier,
        "name": name,
        "arguments": arguments,
        "call_id": call_id,
    }


def raw_output(call_id: str, output: Any) -> Shape:
    """Returns the output of a function call as a Responses item."""
    return {"type": "function_call_output", "id": "fco_" + call_id, "call_id": call_id, "output": output}


def usage(numbers: dict[str, int]) -> Shape:
    """Returns token counts (`input`, `cached`, `output`, `reasoning`) with Codex's names."""
    return {
        "totalTokens": numbers["input"] + numbers["output"],
        "inputTokens": numbers["input"],
        "cachedInputTokens": numbers["cached"],
        "cacheWriteInputTokens": 0,
        "outputTokens": numbers["output"],
        "reasoningOutputTokens": numbers["reasoning"],
    }


def raw_usage(numbers: dict[str, int]) -> Shape:
    """Returns token counts with the names of the model provider (OpenAI)."""
    return {
        "amount": None,
        "metadata": {
            "input_tokens": numbers["input"],
            "input_tokens_details": {"cached_tokens": numbers["cached"]},
            "output_tokens": numbers["output"],
            "output_tokens_details": {"reasoning_tokens": numbers["reasoning"]},
            "total_tokens": numbers["input"] + numbers["output"],
        },
    }


def failure(message: str, kind: Any, details: str | None = None) -> Shape:
    """Returns the error of a turn. `kind`: its `codexErrorInfo`; `details`: its `additionalDetails`."""
    return {"message": message, "codexErrorInfo": kind, "additionalDetails": details}


def parsed_arguments(text: str) -> Any:
    """Returns a call's decoded arguments; None if they are not JSON: the client is not asked for the output of such a
    call.
    """
    try:
        return json.loads(text)
    except ValueError:
        return None


def tool_answer(message: Shape) -> tuple[list[Shape], bool, Any]:
    """Returns what an answer to `item/tool/call` has: content items, whether the call succeeded, and the output for the
    model. An error, or an answer of another form, is a failed call.
    """
    result = message.get("result")
    if "error" in message:
        text = "dynamic tool request failed"
    elif isinstance(result, dict) and isinstance(result.get("contentItems"), list) and "success" in result:
        content = result["contentItems"]
        if len(content) == 1 and content[0].get("type") == "inputText":
            return content, bool(result["success"]), content[0].get("text")
        return content, bool(result["success"]), [_output_part(part) for part in content]
    else:
        text = "dynamic tool response was invalid"
    return [{"type": "inputText", "text": text}], False, text


def _output_part(part: Shape) -> Shape:
    if part.get("type") == "inputImage":
        return {"type": "input_image", "image_url": part.get("imageUrl"), "detail": "high"}
    return {"type": "input_text", "text": part.get("text")}
