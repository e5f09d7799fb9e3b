"""Which fields of an answer an SDK does not know."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def unknown_fields(value: Any) -> set[str]:
    """Returns the fields below a parsed answer or event that its SDK's types do not have, each as `Type.field`."""
    if isinstance(value, list):
        return set().union(*map(unknown_fields, value))
    if not isinstance(value, BaseModel):
        return set()
    known = set().union(*(unknown_fields(getattr(value, name, None)) for name in type(value).model_fields))
    return known | {f"{type(value).__name__}.{name}" for name in value.model_extra or {}}
