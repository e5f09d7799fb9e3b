"""The types of fields that several APIs of OpenAI have. Source: OpenAI's own types for the ranges."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
"""The name of a tool or schema in the request."""
HistoryName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of a tool in the history, which may be another server's."""
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary: TypeAlias = Literal["auto", "concise", "detailed", "none"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
UpToTwo: TypeAlias = Annotated[float, Field(ge=0, le=2)]
MetadataKey: TypeAlias = Annotated[str, Field(max_length=64)]
MetadataValue: TypeAlias = Annotated[str, Field(max_length=512)]
Metadata: TypeAlias = Annotated[dict[MetadataKey, MetadataValue | None], Field(max_length=16)]
"""A client's metadata on an object: at most 16 keys (docs/contract.md#conversations)."""
