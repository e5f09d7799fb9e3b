"""The kinds of values that an SDK's union types allow, each with the smallest value of that kind."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType, get_type_hints, is_typeddict

_QUALIFIERS = (Annotated, Required, NotRequired)


def members(union: Any) -> Iterator[Any]:
    """Yields the types in a union, also those of unions inside of it."""
    origin = get_origin(union)
    if origin in _QUALIFIERS:
        yield from members(get_args(union)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(union):
            yield from members(each)
    elif isinstance(union, TypeAliasType):
        yield from members(union.__value__)
    else:
        yield union


def kinds(union: Any, field: str = "type") -> dict[str, Any]:
    """Returns the union's types by each value that their `field` may have, and the words in its `Literal`s by
    themselves. A type without the field has its own name."""
    found: dict[str, Any] = {}
    for member in members(union):
        if get_origin(member) is Literal:
            found |= dict.fromkeys(map(str, get_args(member)), member)
            continue
        allowed = [each for each in members(_fields(member).get(field)) if get_origin(each) is Literal]
        for name in (str(word) for each in allowed for word in get_args(each)):
            found.setdefault(name, member)
        if not allowed and member not in (str, type(None)):
            found[getattr(member, "__name__", str(member))] = member
    return found


def smallest(given: Any, kind: str = "", field: str = "type") -> Any:
    """Returns the smallest value of a type: an object with the required fields only, whose `field` is `kind`."""
    wanted: Any = next(iter(members(given)))
    origin: Any = get_origin(wanted)
    if origin is Literal:
        return get_args(wanted)[0]
    if is_typeddict(wanted):
        fields = get_type_hints(wanted, include_extras=True)
        required: Any = Required
        made = {name: smallest(each) for name, each in fields.items() if get_origin(each) is required}
        return made | ({field: kind} if kind and field in fields else {})
    if origin is not None and origin is not type:
        return {} if issubclass(origin, Mapping) else []
    return {str: "x", int: 1, float: 1.0, bool: False}.get(wanted, {})


def _fields(member: Any) -> dict[str, Any]:
    if isinstance(member, type) and issubclass(member, BaseModel):
        return {name: field.annotation for name, field in member.model_fields.items()}
    return get_type_hints(member) if is_typeddict(member) else {}
