"""The JSON schemas of this server's answers. Tests check the answers of a running server against them."""

from __future__ import annotations

from typing import Final

from codex_proxy.http.endpoint import (
    ANYTHING,
    COUNT,
    FLAG,
    NULL,
    NUMBER,
    TEXT,
    TRUE,
    Schema,
    array,
    kind,
    maybe,
    one_of,
    record,
    ref,
)
from codex_proxy.surfaces.errors import TABLE
from codex_proxy.surfaces.messages.content import BLOCK_TYPES, EVENT_TYPES
from codex_proxy.surfaces.messages.errors import TABLE as ANTHROPIC_TABLE
from codex_proxy.surfaces.messages.render import STOP_REASONS
from codex_proxy.surfaces.usage_report import WIDTHS

METADATA: Final = {"type": "object", "additionalProperties": TEXT, "maxProperties": 16}

ERRORS: Final[dict[str, Schema]] = {
    "Error": record(
        {
            "error": record(
                {
                    "message": TEXT,
                    "type": one_of(*sorted({row.type for row in TABLE.values()})),
                    "param": maybe(TEXT),
                    "code": maybe(TEXT),
                }
            )
        },
        description="The body of every error. `param`: the field with the error. `code`: one of the codes in "
        "docs/api.md, or the provider's own.",
    ),
    "AnthropicError": record(
        {
            "type": kind("error"),
            "error": record(
                {"type": one_of(*sorted({row.type for row in ANTHROPIC_TABLE.values()})), "message": TEXT}
            ),
            "request_id": TEXT,
        },
        description="The body of an error in Anthropic's API.",
    ),
    "OllamaError": record({"error": TEXT}, description="The body of an error in Ollama's API."),
}

# --- chat ---------------------------------------------------------------------------------------

_DETAILS: Final = {
    "prompt_tokens_details": record({"cached_tokens": COUNT}),
    "completion_tokens_details": record({"reasoning_tokens": COUNT}),
}
_CALL: Final = {
    "anyOf": [
        record(
            {
                "id": TEXT,
                "type": kind("function"),
                "function": record({"name": TEXT, "arguments": TEXT}),
            }
        ),
        record({"id": TEXT, "type": kind("custom"), "custom": record({"name": TEXT, "input": TEXT})}),
    ]
}

CHAT: Final[dict[str, Schema]] = {
    "ChatUsage": record(
        {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT, **_DETAILS},
        {
            "estimated": {
                **TRUE,
                "description": "The agent did not report all token counts; these are estimated from the text.",
            },
            "time_to_first_token": maybe(NUMBER),
            "throughput_after_first_token": maybe(NUMBER),
            "emission_trigger": one_of("token_count", "task_complete", "provider"),
        },
    ),
    "ChatCompletion": record(
        {
            "id": TEXT,
            "object": kind("chat.completion"),
            "created": COUNT,
            "model": TEXT,
            "choices": array(
                record(
                    {
                        "index": COUNT,
                        "message": record(
                            {"role": kind("assistant"), "content": maybe(TEXT), "refusal": maybe(TEXT)},
                            {
                                "tool_calls": array(_CALL, minItems=1),
                                "function_call": record({"name": TEXT, "arguments": TEXT}),
                                "reasoning_content": TEXT,
                            },
                        ),
                        "logprobs": NULL,
                        "finish_reason": TEXT,
                    }
                ),
                minItems=1,
            ),
            "usage": ref("ChatUsage"),
        }
    ),
    "ChatCompletionChunk": record(
        {
            "id": TEXT,
            "object": kind("chat.completion.chunk"),
            "created": COUNT,
            "model": TEXT,
            "choices": array(
                record(
                    {
                        "index": COUNT,
                        "delta": record(
                            {},
                            {
                                "role": kind("assistant"),
                                "content": TEXT,
                                "refusal": TEXT,
                                "reasoning_content": TEXT,
                                "tool_calls": array(record({"index": COUNT})),
                                "function_call": record({}, {"name": TEXT, "arguments": TEXT}),
                            },
                        ),
                        "finish_reason": maybe(TEXT),
                    }
                )
            ),
        },
        {"usage": maybe(ref("ChatUsage"))},
        description="One `data:` line of a stream; the last line is `data: [DONE]`.",
    ),
}

# --- messages -------------------------------------------------------------------------------------

MESSAGES: Final[dict[str, Schema]] = {
    "ContentBlock": record(
        {"type": one_of(*BLOCK_TYPES)},
        {
            "text": TEXT,
            "thinking": TEXT,
            "signature": TEXT,
            "data": TEXT,
            "id": TEXT,
            "name": TEXT,
            "input": {"type": "object"},
            "tool_use_id": TEXT,
            "content": array(ANYTHING),
        },
    ),
    "MessageUsage": record(
        {
            "input_tokens": COUNT,
            "output_tokens": COUNT,
            "cache_creation_input_tokens": COUNT,
            "cache_read_input_tokens": COUNT,
        },
        description="`input_tokens`: without tokens read from a cache; in `message_start`, an estimate.",
    ),
    "Message": record(
        {
            "id": TEXT,
            "type": kind("message"),
            "role": kind("assistant"),
            "model": TEXT,
            "content": array(ref("ContentBlock")),
            "stop_reason": maybe(one_of(*STOP_REASONS)),
            "stop_sequence": maybe(TEXT),
            "usage": ref("MessageUsage"),
        }
    ),
    "MessageTokens": record({"input_tokens": COUNT}),
    "MessageEvent": record(
        {"type": one_of(*EVENT_TYPES)},
        {"message": ref("Message"), "index": COUNT, "usage": ref("MessageUsage")},
        description="The `data:` of a stream's event; `event:` is its type. The last event is `message_stop` or "
        "`error`.",
    ),
}

# --- responses and conversations ----------------------------------------------------------------

_EFFORT: Final = maybe(record({"effort": maybe(TEXT), "summary": maybe(TEXT)}))

RESPONSES: Final[dict[str, Schema]] = {
    "StoredItem": record(
        {"type": TEXT, "id": TEXT},
        {"status": TEXT},
        description="An item of input or output: one of OpenAI's types, or `codex:activity` if it was requested.",
    ),
    "ConversationItem": record({"type": TEXT, "id": TEXT, "status": TEXT, "created_at": COUNT}),
    "ResponseUsage": record(
        {
            "input_tokens": COUNT,
            "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
            "output_tokens": COUNT,
            "output_tokens_details": record({"reasoning_tokens": COUNT}),
            "total_tokens": COUNT,
        },
        {"estimated": TRUE},
    ),
    "Response": record(
        {
            "id": TEXT,
            "object": kind("response"),
            "created_at": COUNT,
            "status": one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
            "completed_at": maybe(COUNT),
            "error": maybe(record({"code": TEXT, "message": TEXT})),
            "incomplete_details": maybe(record({"reason": one_of("max_output_tokens", "content_filter")})),
            "output": array(ref("StoredItem")),
            "usage": maybe(ref("ResponseUsage")),
            "background": FLAG,
            "frequency_penalty": NUMBER,
            "instructions": maybe(TEXT),
            "max_output_tokens": maybe(COUNT),
            "max_tool_calls": maybe(COUNT),
            "metadata": METADATA,
            "model": TEXT,
            "parallel_tool_calls": FLAG,
            "presence_penalty": NUMBER,
            "previous_response_id": maybe(TEXT),
            "prompt_cache_key": maybe(TEXT),
            "reasoning": _EFFORT,
            "safety_identifier": maybe(TEXT),
            "service_tier": TEXT,
            "store": FLAG,
            "temperature": NUMBER,
            "text": record({"format": record({"type": TEXT})}, {"verbosity": TEXT}),
            "tool_choice": {"anyOf": [TEXT, record({"type": TEXT})]},
            "tools": array(record({"type": TEXT})),
            "top_logprobs": COUNT,
            "top_p": NUMBER,
            "truncation": one_of("auto", "disabled"),
        },
        {"conversation": record({"id": TEXT}), "user": TEXT},
    ),
    "ResponseEvent": record(
        {"type": TEXT, "sequence_number": COUNT},
        description="The `data:` of a stream's event; `event:` is its type. The last event is `done`.",
    ),
    "ResponseDeleted": record({"id": TEXT, "object": kind("response.deleted"), "deleted": TRUE}),
    "Compaction": record(
        {
            "id": TEXT,
            "object": kind("response.compaction"),
            "created_at": COUNT,
            "output": array(ref("StoredItem")),
            "usage": ref("ResponseUsage"),
        }
    ),
    "InputTokens": record(
        {"object": kind("response.input_tokens"), "input_tokens": COUNT}, {"estimated": TRUE}
    ),
    "Conversation": record(
        {"id": TEXT, "object": kind("conversation"), "created_at": COUNT, "metadata": METADATA}
    ),
    "ConversationDeleted": record({"id": TEXT, "object": kind("conversation.deleted"), "deleted": TRUE}),
}


# --- models, usage, the server itself -----------------------------------------------------------

SERVER: Final[dict[str, Schema]] = {
    "Model": record(
        {"id": TEXT, "object": kind("model"), "created": COUNT, "owned_by": TEXT},
        {
            "display_name": TEXT,
            "context_window": COUNT,
            "input_modalities": array(TEXT),
            "efforts": array(TEXT),
            "default_effort": TEXT,
            "off": array(TEXT),
            "agent": TEXT,
        },
    ),
    "ModelList": record({"object": kind("list"), "data": array(ref("Model"))}),
    "CodexModelList": record(
        {"models": array(ANYTHING)}, description="The list in the form that Codex reads."
    ),
    "AnthropicModel": record(
        {
            "type": kind("model"),
            "id": TEXT,
            "display_name": TEXT,
            "created_at": TEXT,
            "lifecycle": kind("active"),
            "max_input_tokens": maybe(COUNT),
            "max_tokens": NULL,
        },
    ),
    "AnthropicModelList": record(
        {
            "data": array(ref("AnthropicModel")),
            "has_more": FLAG,
            "first_id": maybe(TEXT),
            "last_id": maybe(TEXT),
        }
    ),
    "UsageResult": record(
        {
            "object": kind("usage.result"),
            "input_tokens": COUNT,
            "input_cached_tokens": COUNT,
            "output_tokens": COUNT,
            "output_reasoning_tokens": COUNT,
            "num_model_requests": COUNT,
            "num_failed_requests": COUNT,
            "num_estimated_requests": COUNT,
            "estimated": FLAG,
            "key": maybe(TEXT),
            "model": maybe(TEXT),
        }
    ),
    "UsagePage": record(
        {
            "object": kind("page"),
            "data": array(
                record(
                    {
                        "object": kind("bucket"),
                        "start_time": COUNT,
                        "end_time": COUNT,
                        "results": array(ref("UsageResult")),
                    }
                ),
                maxItems=max(width.max_buckets for width in WIDTHS.values()),
            ),
            "has_more": FLAG,
            "next_page": maybe(TEXT),
            "kept": one_of("disk", "memory"),
            "kept_since": maybe(COUNT),
        }
    ),
    "UsageLimitsList": record(
        {"object": kind("list"), "data": array(ref("UsageLimits"))},
        description="With several agents: the limits of each agent that the key may use.",
    ),
    "UsageLimits": record(
        {
            "object": kind("usage.limits"),
            "agent": TEXT,
            "limits": maybe(
                array(
                    record(
                        {
                            "id": maybe(TEXT),
                            "name": maybe(TEXT),
                            "plan": maybe(TEXT),
                            "reached": maybe(TEXT),
                            "windows": array(
                                record(
                                    {
                                        "name": one_of("primary", "secondary"),
                                        "window_seconds": maybe(COUNT),
                                        "used_percent": NUMBER,
                                        "resets_at": maybe(COUNT),
                                        "over": FLAG,
                                    }
                                ),
                                maxItems=2,
                            ),
                        }
                    ),
                    minItems=1,
                )
            ),
            "as_of": maybe(COUNT),
            "reason": maybe(TEXT),
        }
    ),
    "Hello": record({"message": kind("hello"), "name": TEXT, "api": TEXT}),
    "Index": record(
        {
            "name": TEXT,
            "openapi": TEXT,
            "endpoints": array(record({"method": TEXT, "path": TEXT, "summary": TEXT})),
        }
    ),
    "Health": record(
        {
            "status": one_of("ok", "degraded"),
        },
        {
            "agent": record({"name": TEXT, "fake": FLAG}, {"version": TEXT, "off": ANYTHING}),
            "agents": array(
                record(
                    {"name": TEXT, "fake": FLAG},
                    {
                        "version": TEXT,
                        "off": ANYTHING,
                        "trouble": TEXT,
                        "breaker": one_of("closed", "open", "half-open"),
                    },
                )
            ),
            "version": TEXT,
            "turns": record({"running": COUNT, "queued": COUNT}),
            "warning": TEXT,
            "trouble": TEXT,
            "keys": TEXT,
        },
    ),
    "Live": record({"status": kind("ok")}),
    "Ready": record({"status": kind("ok")}, {"without": array(TEXT)}),
    "Unready": record({"status": kind("unready"), "reason": TEXT}),
    "OpenStreams": record({"conc": COUNT}),
    "Released": record({"released": TRUE}),
}


# --- Ollama's API -----------------------------------------------------------------------------------

_OLLAMA_MODEL: Final = {"parent_model": TEXT, "format": TEXT, "family": TEXT, "families": array(TEXT)}
_FIGURES: Final = (
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
)
OLLAMA: Final[dict[str, Schema]] = {
    "OllamaAnswer": record(
        {"model": TEXT, "created_at": TEXT, "done": FLAG},
        {
            "message": record(
                {"role": kind("assistant"), "content": TEXT},
                {
                    "thinking": TEXT,
                    "tool_calls": array(
                        record(
                            {
                                "id": TEXT,
                                "function": record(
                                    {"index": COUNT, "name": TEXT, "arguments": {"type": "object"}}
                                ),
                            }
                        )
                    ),
                },
            ),
            "response": TEXT,
            "thinking": TEXT,
            "done_reason": TEXT,
            **dict.fromkeys(_FIGURES, COUNT),
        },
        description="An answer, or a line of a streamed one. Durations are in nanoseconds.",
    ),
    "OllamaVersion": record({"version": TEXT}),
    "OllamaModels": record(
        {
            "models": array(
                record(
                    {
                        "name": TEXT,
                        "model": TEXT,
                        "modified_at": TEXT,
                        "size": COUNT,
                        "digest": TEXT,
                        "details": record(_OLLAMA_MODEL),
                    }
                )
            )
        }
    ),
    "OllamaModel": record(
        {
            "details": record(_OLLAMA_MODEL),
            "model_info": {"type": "object"},
            "capabilities": array(one_of("completion", "tools", "vision", "thinking", "embedding")),
            "modified_at": TEXT,
        }
    ),
}


def answer_schemas() -> dict[str, Schema]:
    """Returns the schemas of all answers, by name."""
    return ERRORS | CHAT | MESSAGES | RESPONSES | OLLAMA | SERVER
