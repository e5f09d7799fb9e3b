"""Parts of the types of answers, from which `/openapi.json` is made (`http/openapi.py`). The docstring of a
type is its description there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

JsonText: TypeAlias = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "string"})]
"""A text that is JSON already (see `surfaces/base.py`: `raw_text`)."""
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Yes: TypeAlias = Annotated[bool, Meta(extra_json_schema={"const": True})]
"""A field that is true where it is present."""
Object: TypeAlias = Annotated[Any, Meta(extra_json_schema={"type": "object"})]
"""A JSON object, decoded or as JSON text."""


def one_of(words: Iterable[str]) -> Meta:
    """Returns the annotation of a text that is one of `words`."""
    return Meta(extra_json_schema={"enum": list(words)})


class ItemList(TypedDict, Generic[T]):
    """One page of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
