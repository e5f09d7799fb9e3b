"""An upstream's configuration: its table in the settings file, address, key and capabilities, and the presets for
common model servers, which follow their documentation and tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from codex_proxy.core.options import Capability
from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.core.safety import MIN_SECRET_CHARS

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
    """Forms that the server is known to refuse (see `parts/upstream/turn.py`)."""


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


_SHORTEST_KEY: Final = 12
_HOLDS_A_KEY: Final = re.compile(r"key|token|secret|auth|cookie|passw|credential", re.IGNORECASE)
"""Matches names of headers that prove who asks."""
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS: Final = frozenset(
    {
        *("authorization", "content-length", "content-type", "host"),
        *("transfer-encoding", "connection", "x-codex-hops"),
    }
)
"""Headers that a table may not set."""
_CREDENTIAL_HEADERS: Final = frozenset({"cookie", "x-api-key", "api-key", "proxy-authorization"})
"""Headers besides `Authorization` by which clients prove who they are."""


class UpstreamApi(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    api: str
    """The API's name in error messages."""
    path: str
    """The path of turns, which follows the upstream's address."""
    make_dialect: str
    """Where the function is that creates a turn's dialect (`module:function`)."""
    capabilities: frozenset[Capability]


CHAT: Final = UpstreamApi(
    agent="openai-chat",
    api="Chat Completions",
    path="/chat/completions",
    make_dialect="codex_proxy.parts.upstream.openai_chat.chat_dialects:make_dialect",
    capabilities=frozenset(
        {
            *("history", "client_tools", "tool_replies", "tool_choice", "structured_output"),
            *("images", "plain_model", "effort", "verbosity", "sampling", "max_tokens", "forwarding"),
            *("system_prompt", "stop_reasons", "parallel_calls", "model_choice"),
        }
    ),
)
RESPONSES: Final = UpstreamApi(
    agent="openai-responses",
    api="the Responses API",
    path="/responses",
    make_dialect="codex_proxy.parts.upstream.openai_responses.responses_dialect:make_dialect",
    capabilities=frozenset(
        {
            *("history", "client_tools", "tool_replies", "tool_choice", "structured_output", "images"),
            *("plain_model", "effort", "verbosity", "sampling", "max_tokens", "web_search", "service_tier"),
            *("system_prompt", "stop_reasons", "parallel_calls", "model_choice"),
        }
    ),
)
APIS: Final[Mapping[str, UpstreamApi]] = {"chat": CHAT, "responses": RESPONSES}
"""The API for each value of `wire`."""


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of an upstream's settings, for error messages."""

    url: str = "--upstream-url (PROXY_UPSTREAM_URL)"
    key: str = "PROXY_UPSTREAM_KEY"
    key_file: str = "key_file of [upstreams.default]"
    ca_file: str = "ca_file of [upstreams.default]"
    model: str = "CODEX_MODEL"
    hosted_tools: str = "hosted_tools of [upstreams.default]"
    wire: str = "which API it speaks (--agent openai-chat or openai-responses)"

    @classmethod
    def of_table(cls, table: str) -> SettingNames:
        """Returns the names in a table like `[upstreams.groq]`; with an empty `table`, the names in the server's
        settings.
        """
        if not table:
            return cls()
        return cls(
            url=f"url of {table}",
            key=f"key_env of {table}",
            key_file=f"key_file of {table}",
            ca_file=f"ca_file of {table}",
            model=f"default_model of {table}",
            hosted_tools=f"hosted_tools of {table}",
            wire=f"which API it speaks (wire of {table})",
        )


def _check_header(name: str) -> str:
    if _HEADER.fullmatch(name) is None or name.lower() in _OWN_HEADERS:
        raise ValueError("this header cannot be set here; set a key with key_env or key_file")
    return name


def _check_forwarded(name: str) -> str:
    if _check_header(name).lower() in _CREDENTIAL_HEADERS:
        raise ValueError("a client's credentials are never passed on")
    return name.lower()


def _check_path(path: str) -> str:
    if path not in PASSED_PATHS:
        raise ValueError(f"it must be one of {', '.join(PASSED_PATHS)}")
    return path


HostedToolName = Literal["code_interpreter", "file_search", "image_generation"]
PassedPath = Annotated[str, AfterValidator(_check_path)]
HeaderName = Annotated[str, AfterValidator(_check_header)]
ForwardedName = Annotated[str, AfterValidator(_check_forwarded)]


class UpstreamConfig(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One `[upstreams.NAME]`: a model server ("it"), and how requests to it are made. A single upstream is
    `[upstreams.default]`.
    """

    preset: PresetName | None = Field(
        None,
        description="the kind of server: sets its URL, the variable of its key, and what it does not support",
    )
    url: str | None = Field(None, description="its URL; without a path, `/v1` is added")
    wire: Literal["chat", "responses"] = Field("chat", description="its API: Chat Completions or Responses")
    key_env: str | None = Field(None, description="environment variable with its API key")
    key_file: Path | None = Field(None, description="file with its API key")
    headers: dict[HeaderName, SecretStr] = Field({}, description="further headers of requests to it")
    models: tuple[str, ...] = Field(
        (), description="its models: names, and patterns with `*`; empty: those that it lists"
    )
    aliases: dict[str, str] = Field({}, description="further names for its models")
    default_model: str | None = Field(
        None, description="model for the table's name; unset: the first in its list"
    )
    cannot: tuple[Capability, ...] = Field(
        (), description="capabilities (docs/agents.md) that it lacks, besides those of the preset"
    )
    hosted_tools: tuple[HostedToolName, ...] = Field(
        (),
        description="tools that it runs itself for clients of Responses, if its `wire` is `responses`",
    )
    paths: tuple[PassedPath, ...] | None = Field(
        None,
        description="the only paths such as `/embeddings` that it serves, also for unknown models; unset: all of "
        "them, for its models",
    )
    context_window: int | None = Field(
        None, ge=1, description="size of its models' context in tokens, if its list has none"
    )
    reasoning_back: Literal["none", "reasoning_content", "reasoning"] | None = Field(
        None,
        description="field of a message in which its models get their reasoning back",
    )
    forward_headers: tuple[ForwardedName, ...] = Field(
        (),
        description="client headers to forward, such as `x-request-id`; never keys or cookies",
    )
    ca_file: Path | None = Field(None, description="further trusted certificates (PEM)")
    connect_timeout: float = Field(5.0, gt=0, description="maximum seconds to connect")
    first_byte_timeout: float = Field(
        300.0, gt=0, description="maximum seconds until its answer begins; local models may need minutes"
    )
    idle_timeout: float = Field(120.0, gt=0, description="maximum seconds without data during its answer")
    total_timeout: float | None = Field(None, gt=0, description="maximum seconds of a turn")
    retries: int = Field(
        2,
        ge=0,
        le=10,
        description="further attempts after an error or rate limit, before its answer begins",
    )
    retry_wait: float = Field(
        30.0,
        ge=0,
        description="maximum `Retry-After` in seconds for which another attempt is made",
    )
    fallback: tuple[str, ...] = Field(
        (),
        description="upstreams to try next, before an answer begins: `NAME` or `NAME/MODEL`",
    )
    concurrency: int = Field(0, ge=0, description="maximum running turns; 0: no limit")
    health_interval: float = Field(30.0, gt=0, description="seconds between requests for its list of models")
    breaker_failures: int = Field(
        5,
        ge=0,
        description="failures in a row after which it gets no requests for `breaker_seconds`; 0: off",
    )
    breaker_seconds: float = Field(10.0, gt=0, description="seconds before one turn tries the upstream again")

    @property
    def api(self) -> UpstreamApi:
        return APIS[self.wire]

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the upstream. A request that needs another one is refused."""
        offered = frozenset(self.hosted_tools) if self.api is RESPONSES else frozenset()
        return (self.api.capabilities | offered) - frozenset(self.cannot) - self.kind.cannot

    @property
    def kind(self) -> UpstreamPreset:
        """What is known about this kind of server."""
        return PRESETS[self.preset] if self.preset is not None else NO_PRESET

    @property
    def reasoning_field(self) -> str:
        """The field in which a model gets its reasoning back, or empty."""
        given = self.reasoning_back or self.kind.reasoning_back
        return "" if given == "none" else given

    def with_defaults(self, **values: Any) -> UpstreamConfig:
        """Returns a copy with `values` for keys that are not set."""
        return self.model_copy(
            update={key: each for key, each in values.items() if key not in self.model_fields_set}
        )


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's configuration, and the address and key that follow from it."""

    config: UpstreamConfig
    name: str = ""
    """The upstream's name; empty for the only one."""
    names: SettingNames = SettingNames()
    url: str
    """The address, without a trailing slash."""
    key: str = ""
    clients_key: bool = False
    """Whether each client's own key is sent instead."""
    proxy: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {name: value.get_secret_value() for name, value in self.config.headers.items()} | key

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in a message to a client."""
        headers = (value.get_secret_value() for value in self.config.headers.values())
        values = (value for value in headers if len(value) >= MIN_SECRET_CHARS)
        return tuple(each for each in (self.key, self.url, self.host, *values) if each)

    @property
    def hidden_texts(self) -> tuple[str, ...]:
        """Texts that are removed from all that the upstream sends: the key, and headers that hold one. A short text is
        no key but a placeholder (`lm-studio`).
        """
        headers = self.config.headers.items()
        keys = (value.get_secret_value() for name, value in headers if _HOLDS_A_KEY.search(name))
        values = (part for value in (self.key, *keys) for part in {value, value.removeprefix("Bearer ")})
        return tuple(value for value in values if len(value) >= _SHORTEST_KEY)

    @property
    def log_fields(self) -> dict[str, str]:
        """The upstream's name, if it has one, as fields of a log line. Its address is not logged."""
        return {"upstream": self.name} if self.name else {}

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"
