"""The pydantic models of Ollama's requests. Source: Ollama's docs/api.md, and the requests of its packages for Python
and JavaScript.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from codex_proxy.surfaces.requests.body import (
    Parameters,
    Penalty,
    RequestModel,
    Seed,
    Share,
    StopSequence,
    TopK,
    UpToTwo,
    wrong_value,
)
from codex_proxy.surfaces.requests.fields import ByKind, Ignored

MAX_STOPS: Final = 64

ModelName: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]
Stops: TypeAlias = Annotated[
    StopSequence | Annotated[list[StopSequence], Field(max_length=MAX_STOPS)], ByKind()
]
WantedFormat: TypeAlias = Annotated[str | dict[str, Any], ByKind()]
_MAX_DURATION: Final = 100
_DURATION: Final = re.compile(r"[-+]?(?:0|(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)")


def _check_duration(value: Any) -> Any:
    """Returns seconds or a duration in Go's form; raises `ValueError` for others, as Ollama refuses them."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and len(value) <= _MAX_DURATION and _DURATION.fullmatch(value)):
        return value
    raise wrong_value("invalid_value", "it must be a number of seconds, or a duration such as '5m'")


def _whole_number(value: Any) -> Any:
    """Cuts a number's fraction off, as Ollama does."""
    return int(value) if isinstance(value, float) and math.isfinite(value) else value


def _lower_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


KeepAlive: TypeAlias = Annotated[Any, AfterValidator(_check_duration)]
Limit: TypeAlias = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), BeforeValidator(_whole_number)]
"""A number of tokens; a negative one, or 0, is no limit."""
Images: TypeAlias = list[str]
"""Images in base64, without the head of a data URL."""


class Options(RequestModel, extra="allow"):
    """The options that a turn can follow, if its agent can. Others are ignored."""

    temperature: UpToTwo | None = None
    top_p: Share | None = None
    top_k: Annotated[TopK, BeforeValidator(_whole_number)] | None = None
    min_p: Share | None = None
    seed: Annotated[Seed, BeforeValidator(_whole_number)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_predict: Limit | None = None
    stop: Stops | None = None


class ToolFunction(RequestModel):
    name: Annotated[str, Field(min_length=1, max_length=1_000)]
    description: str | None = None
    parameters: Parameters | None = None


class GivenTool(RequestModel):
    type: Literal["function"] | None = None
    function: ToolFunction


class CalledFunction(RequestModel):
    name: Annotated[str, Field(min_length=1, max_length=1_000)]
    arguments: dict[str, Any] | None = None


class PastCall(RequestModel):
    """A call in an earlier message of the model. Ollama's package for Python leaves out the id."""

    id: str | None = None
    function: CalledFunction


class ChatMessage(RequestModel):
    """One message. A message of a tool names its call by `tool_call_id` or, in older clients, its tool by
    `tool_name`.
    """

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_lower_case)]
    content: str | None = None
    images: Images | None = None
    tool_calls: list[PastCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ModelRequest(RequestModel, extra="allow"):
    """The fields that the requests for a chat and for a completion have in common. Each optional field may be null."""

    model: ModelName
    stream: bool | None = None
    format: WantedFormat | None = None
    """The format of the answer: `json`, or a JSON schema."""
    options: Options | None = None
    think: Any = None
    keep_alive: KeepAlive | None = None
    """How long the model stays loaded; without effect: none is loaded here."""
    logprobs: Annotated[Any, Ignored()] = None
    top_logprobs: Annotated[Any, Ignored()] = None
    truncate: Annotated[Any, Ignored()] = None
    shift: Annotated[Any, Ignored()] = None


class OllamaChatRequest(ModelRequest):
    """The body of `POST /api/chat`."""

    messages: list[ChatMessage] | None = None
    tools: list[GivenTool] | None = None


class OllamaGenerateRequest(ModelRequest):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    images: Images | None = None
    template: Annotated[Any, Ignored()] = None
    raw: Annotated[Any, Ignored()] = None
    context: Annotated[Any, Ignored()] = None


class OllamaShowRequest(RequestModel):
    """The body of `POST /api/show`. `name` is the older name of `model`."""

    model: ModelName | None = None
    name: ModelName | None = None
