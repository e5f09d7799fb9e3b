"""Every count that an agent reports is read, and is in the usage of every API that has a field for it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from codex_proxy.agents.codex_app_server.wire import decode_usage
from codex_proxy.agents.codex_proto.proto_lines import TokenCounts
from codex_proxy.core.events import StepCompleted, Usage
from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.acp.turn_end import usage_in
from codex_proxy.parts.claude_code.messages import StreamTokens, TokenDetails
from codex_proxy.parts.claude_code.results import usage_of as usage_of_claude
from codex_proxy.parts.upstream.stream import usage_of
from tests.parts.traces.test_turn_spans import spans_of
from tests.parts.traces.traced import facts
from tests.surfaces.chat.answering import whole as completion_of
from tests.surfaces.chat.turns import text_item, turn, usage
from tests.surfaces.messages.answering import whole as message_of
from tests.surfaces.responses.answering import whole as response_of

COUNTED: Final = Usage(input=1000, cached=600, output=50, reasoning=20, cache_written=300)
OPENAI_DETAILS: Final = {"cached_tokens": 600, "cache_write_tokens": 300}
ANSWER: Final = turn(text_item("Hi."), usage(COUNTED))


def numbers_in(value: Any) -> set[int]:
    if isinstance(value, dict):
        return set().union(*map(numbers_in, value.values()))
    return {value} if isinstance(value, int) else set()


@pytest.mark.parametrize("field", Usage.__struct_fields__)
def test_each_count_is_on_every_api_and_in_the_span(field: str) -> None:
    count = getattr(COUNTED, field)
    assert count in numbers_in(completion_of(ANSWER)["usage"])
    assert count in numbers_in(response_of(ANSWER)["usage"])
    assert count in numbers_in(facts(spans_of([StepCompleted(COUNTED), *ANSWER])[0]))
    if field != "input":  # where it is a sum, tested below
        assert count in numbers_in(message_of(ANSWER)["usage"])


def test_a_message_has_what_was_read_from_caches_and_written_to_them_apart() -> None:
    counted = message_of(ANSWER)["usage"]
    assert [counted[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_")] == [
        100,
        600,
        300,
    ]


@pytest.mark.parametrize(
    "found",
    [
        usage_of_claude(StreamTokens(100, 600, 300, 50, TokenDetails(20))),
        usage_in(
            {
                "inputTokens": 100, "cachedReadTokens": 600, "cachedWriteTokens": 300, "outputTokens": 50,
                "thoughtTokens": 20, "totalTokens": 1050,
            }
        ),
        usage_in(
            {
                "inputTokens": 1000, "cachedReadTokens": 600, "cachedWriteTokens": 300, "outputTokens": 50,
                "thoughtTokens": 20, "totalTokens": 1050,
            }
        ),
        decode_usage(
            msgspec.Raw(
                encode_json(
                    {
                        "inputTokens": 1000, "cachedInputTokens": 600, "cacheWriteInputTokens": 300,
                        "outputTokens": 50, "reasoningOutputTokens": 20,
                    }
                )
            )
        ),
        TokenCounts(1000, 600, 50, 20, 300).usage,
        usage_of(
            {
                "prompt_tokens": 1000, "prompt_tokens_details": OPENAI_DETAILS, "completion_tokens": 50,
                "completion_tokens_details": {"reasoning_tokens": 20},
            }
        ),
        usage_of(
            {
                "input_tokens": 1000, "input_tokens_details": OPENAI_DETAILS, "output_tokens": 50,
                "output_tokens_details": {"reasoning_tokens": 20},
            }
        ),
        usage_of(  # LiteLLM before models of Anthropic
            {
                "prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens": 50,
                "cache_creation_input_tokens": 300, "completion_tokens_details": {"reasoning_tokens": 20},
            }
        ),
    ],
    ids=["claude-code", "acp", "acp, inside", "app-server", "exec", "chat", "responses", "litellm"],
)  # fmt: skip
def test_every_agents_form_of_the_counts_is_read(found: Usage | None) -> None:
    assert found == COUNTED
