"""The types of fields that several APIs of OpenAI have, and the fields that mean the same in two. Source: OpenAI's own
types for the ranges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from codex_proxy.surfaces.body import RequestModel
from codex_proxy.surfaces.field_lists import Ignored

CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
"""The name of a tool or schema in the request."""
HistoryName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of a tool in the history, which may be another server's."""
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Summary: TypeAlias = Literal["auto", "concise", "detailed", "none"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
UpToTwo: TypeAlias = Annotated[float, Field(ge=0, le=2)]
MetadataKey: TypeAlias = Annotated[str, Field(max_length=64)]
MetadataValue: TypeAlias = Annotated[str, Field(max_length=512)]
Metadata: TypeAlias = Annotated[dict[MetadataKey, MetadataValue | None], Field(max_length=16)]
"""A client's metadata on an object: at most 16 keys (docs/contract.md#conversations)."""


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonSchemaFormat(RequestModel):
    """The schema of the answer, as Responses has it."""

    type: Literal["json_schema"]
    name: Name
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class OpenAIRequest(RequestModel, extra="allow"):
    """The fields that are the same in Chat Completions and Responses. Unknown fields are in `model_extra`."""

    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    temperature: UpToTwo | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: UpToTwo | None = None
    prompt_cache_options: Annotated[Any, Ignored()] = None
    prompt_cache_retention: Annotated[str | None, Ignored()] = None
    context_management: Annotated[Any, Ignored()] = None
