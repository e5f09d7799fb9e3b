"""Presets for common model servers, by their documentation and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.options import Capability

PresetName: TypeAlias = Literal[
    "openai", "ollama", "vllm", "llama.cpp", "lmstudio", "groq", "openrouter", "deepseek", "mistral"
]


class UpstreamPreset(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults for a kind of model server, and what it cannot do."""

    url: str
    """The address with `/v1`."""
    key_env: str = ""
    """The variable that usually has its key."""
    needs_key: bool = False
    cannot: frozenset[Capability] = frozenset()
    """Capabilities of `openai-chat` that the server lacks."""
    reasoning_back: str = ""
    """The field in which its models expect their reasoning back, with their calls."""
    refuses: frozenset[str] = frozenset()
    """Forms that the server is known to refuse (see `parts/upstream/forms.py`)."""


NO_PRESET: Final = UpstreamPreset(url="")
PRESETS: Final[Mapping[PresetName, UpstreamPreset]] = {
    "openai": UpstreamPreset(
        url="https://api.openai.com/v1",
        key_env="OPENAI_API_KEY",
        needs_key=True,
        refuses=frozenset({"max_tokens"}),  # its newer models take `max_completion_tokens` only
    ),
    # https://docs.ollama.com/api/openai-compatibility: `tool_choice` is none of the fields that it reads.
    "ollama": UpstreamPreset(url="http://127.0.0.1:11434/v1", cannot=frozenset({"tool_choice"})),
    "vllm": UpstreamPreset(url="http://127.0.0.1:8000/v1", key_env="VLLM_API_KEY"),
    # Seen: `tool_choice: required` is taken and not kept.
    "llama.cpp": UpstreamPreset(
        url="http://127.0.0.1:8080/v1", key_env="LLAMA_API_KEY", cannot=frozenset({"tool_choice"})
    ),
    # "'response_format.type' must be 'json_schema' or 'text'" (lmstudio-bug-tracker, issue 189).
    "lmstudio": UpstreamPreset(url="http://127.0.0.1:1234/v1", refuses=frozenset({"json_object"})),
    "groq": UpstreamPreset(url="https://api.groq.com/openai/v1", key_env="GROQ_API_KEY", needs_key=True),
    "openrouter": UpstreamPreset(
        url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY", needs_key=True
    ),
    # https://api-docs.deepseek.com/api/create-chat-completion: `response_format` is `text` or `json_object`, a schema
    # is a 400; messages are text.
    "deepseek": UpstreamPreset(
        url="https://api.deepseek.com/v1",
        key_env="DEEPSEEK_API_KEY",
        needs_key=True,
        cannot=frozenset({"structured_output", "images"}),
        # https://api-docs.deepseek.com/guides/thinking_mode: with tool calls it has to come back within a turn.
        reasoning_back="reasoning_content",
    ),
    # https://docs.mistral.ai/api: unknown fields are a 422, `stream_options.include_usage` among them; usage is told
    # without it.
    "mistral": UpstreamPreset(
        url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        needs_key=True,
        refuses=frozenset({"stream_options"}),
    ),
}
assert set(PRESETS) == set(get_args(PresetName))
