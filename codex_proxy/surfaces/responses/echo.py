"""What a response object says of its request: every key, always, with the effective default where none was given.

In: a validated request. Out: the fields of the response object that do not change while it runs. Source:
docs/wire-rules.md#the-responses-object.
"""

from __future__ import annotations

from typing import Any

from codex_proxy.surfaces.base import shown_tier
from codex_proxy.surfaces.responses.tools import Offered
from codex_proxy.surfaces.responses.wire import JsonSchemaFormat, ResponseRequest, TextOptions


def echo_of(
    request: ResponseRequest,
    offered: Offered,
    *,
    effort: str | None,
    metadata: dict[str, str],
    conversation: str | None,
) -> dict[str, Any]:
    """The constant fields. `effort`: the effective one, which the model's name may have given."""
    echo: dict[str, Any] = {
        "background": bool(request.background),
        "frequency_penalty": _number(request.frequency_penalty, 0.0),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": metadata,
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": _number(request.presence_penalty, 0.0),
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": _reasoning(request, effort),
        "safety_identifier": request.safety_identifier,
        "service_tier": shown_tier(request.service_tier),
        "store": request.store is not False,
        "temperature": _number(request.temperature, 1.0),
        "text": _text(request.text),
        "tool_choice": offered.shown_choice,
        "tools": offered.shown,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": _number(request.top_p, 1.0),
        "truncation": request.truncation or "disabled",
    }
    if conversation is not None:
        echo["conversation"] = {"id": conversation}
    if request.user is not None:
        echo["user"] = request.user
    return echo


def _number(given: float | None, default: float) -> float:
    return default if given is None else given


def _reasoning(request: ResponseRequest, effort: str | None) -> dict[str, Any] | None:
    """Null, or both keys. Options that are all null are none
    (docs/contract.md#the-reasoning-parameter)."""
    summary = summary_of(request)
    if effort is None and summary is None:
        return None
    return {"effort": effort, "summary": None if summary == "none" else summary}


def summary_of(request: ResponseRequest) -> str | None:
    """The kind of reasoning summary asked for, by the newer name or the older one."""
    options = request.reasoning
    return None if options is None else options.summary or options.generate_summary


def _text(options: TextOptions | None) -> dict[str, Any]:
    wanted = options.format if options else None
    shown: dict[str, Any] = {"format": {"type": wanted.type if wanted else "text"}}
    if isinstance(wanted, JsonSchemaFormat):
        shown["format"] = {
            "type": wanted.type,
            "name": wanted.name,
            "description": wanted.description,
            "schema": wanted.schema_,
            "strict": bool(wanted.strict),
        }
    if options and options.verbosity:
        shown["verbosity"] = options.verbosity
    return shown
