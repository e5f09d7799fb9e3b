"""Unions whose member a value's kind decides, so that an error names the member's field, or the known kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

TAG: Final = "~"
"""The beginning of the tags that pydantic puts into an error's path."""
UNKNOWN_KIND: Final = "unknown_kind"
"""pydantic's error for a value without a member; its context has `field`, `kinds` and `expected`."""


class ByKind:
    """Chooses a union's member (`Annotated[A | B, ByKind()]`): for strings, for arrays, or for an object the model
    whose `field` may have its value. A model whose `field` is any string takes unknown values; a model without the
    field takes every other object. `untyped` returns the model of an object without the field.
    """

    def __init__(
        self, field: str = "type", *, untyped: Callable[[dict[str, Any]], type | None] = lambda _: None
    ) -> None:
        self._field = field
        self._untyped = untyped

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = {f"{TAG}{number}": _plain_type(each) for number, each in enumerate(get_args(union))}
        by_value = {value: tag for tag, each in members.items() for value in self.values(each)}

        def tag_of(is_wanted: Callable[[Any], bool]) -> str | None:
            return next((tag for tag, each in members.items() if is_wanted(each)), None)

        text = tag_of(lambda each: each is str or get_origin(each) is Literal)
        array = tag_of(lambda each: get_origin(each) is list)
        unknown = tag_of(lambda each: self._annotation(each) is str)
        other = tag_of(lambda each: _is_object(each) and self._annotation(each) is None)

        def tag(value: Any) -> str | None:
            if isinstance(value, str):
                return text
            if isinstance(value, list):
                return array
            if not isinstance(value, dict):
                return None
            kind = value.get(self._field)
            if kind is None:
                model = self._untyped(value)
                return other if model is None else tag_of(lambda each: each is model)
            return by_value.get(kind, unknown or other) if isinstance(kind, str) else other

        shapes = {"a string": text, "an array": array, "an object": by_value or other}
        return core_schema.tagged_union_schema(
            dict(zip(members, map(handler.generate_schema, get_args(union)), strict=True)),
            tag,
            custom_error_type=UNKNOWN_KIND,
            custom_error_message="it is of no known kind",
            custom_error_context={
                "field": self._field,
                "kinds": _quote(by_value),
                "expected": " or ".join(shape for shape, taken in shapes.items() if taken),
            },
        )

    def _annotation(self, member: Any) -> Any:
        found = getattr(member, "model_fields", {}).get(self._field)
        return None if found is None else found.annotation

    def values(self, member: Any) -> Iterator[str]:
        """Yields the field's values, if these are listed."""
        annotation = self._annotation(member)
        for each in (annotation, *get_args(annotation)):
            yield from get_args(each) if get_origin(each) is Literal else ()


def known_kinds(union: Any) -> str:
    """Returns the values of the deciding field, in quotes."""
    members, by_kind = get_args(union)
    return _quote(value for member in get_args(members) for value in by_kind.values(member))


def _plain_type(member: Any) -> Any:
    return get_args(member)[0] if get_origin(member) is Annotated else member


def _is_object(member: Any) -> bool:
    return get_origin(member) is dict or (isinstance(member, type) and issubclass(member, BaseModel))


def _quote(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
