"""The fields of a body. What a wire model says of them: every field is served, unless it is marked `Ignored` (named in
`x-codex-ignored-params`) or `Refused`. Null, false and empty values ask for nothing. Source:
docs/decisions.md#fields-of-requests. In a union a value's kind decides which member it is, so that an error names the
member's field, or the known kinds.

Also which fields may name models, besides `model`: servers of models have many (`models`, `fallbacks`,
`extra_body.model`, `draft_model`), and spell names in their own ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, LiteralString, NoReturn, get_args, get_origin

import msgspec
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from codex_proxy.core.faults import bad_request
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.shown_text import excerpt

MAX_NAMED: Final = 20
FIELD_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Matches what a response header can contain."""
_CONTAINERS: Final = frozenset({dict, list})
_OWN_ID: Final = re.compile(
    r"(?:resp_|conv_|msg_|chatcmpl-)(?=\w*\d)\w{4,}|[a-z]{2,5}_[0-9a-f]{32}", re.ASCII
)
"""Matches an id that this server gives to a response, conversation, message, answer or item."""


class FieldNotes:
    """What a validation finds (pydantic's `context`): ignored fields; refused ones that an upstream may serve, with
    messages; paths of unknown ones; and in `own` the first with an id of this server, and the id.
    """

    __slots__ = ("ignored", "own", "refused", "unknown")

    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        self.refused: dict[str, str] = {}
        self.unknown: dict[str, None] = {}
        self.own: tuple[str, str] | None = None

    def add_unknown(self, given: Mapping[str, Any], known: Container[str], place: str) -> None:
        """Notes fields that are not `known`. `place`: the object's path."""
        for name, value in given.items():
            if name in known or not value:
                continue
            path = f"{place}.{name}" if place else name
            if self.own is None and (own := _own_id(value)) and not (place and name == "id"):
                self.own = (path, own)
            if len(self.unknown) < MAX_NAMED and FIELD_NAME.fullmatch(name):
                self.unknown[path] = None

    def add_unknown_of(self, given: Mapping[str, Any], model: BaseModel, place: str = "") -> None:
        """Notes unknown fields of `given`, of which `model` was made, and of its objects."""
        names = _attributes(type(model))
        if not given.keys() <= names.keys() and (not place or model.model_config.get("extra") != "allow"):
            self.add_unknown(given, names, place)
        for name, value in given.items():
            if type(value) not in _CONTAINERS or name not in names:
                continue
            made = getattr(model, names[name])
            inner = f"{place}.{name}" if place else name
            if isinstance(made, BaseModel) and isinstance(value, dict):
                self.add_unknown_of(value, made, inner)
            elif isinstance(made, list) and isinstance(value, list):
                inner += "[]"
                for each, one in zip(value, made, strict=False):
                    if isinstance(one, BaseModel):
                        self.add_unknown_of(each, one, inner)


class Ignored:
    """Marks a field as ignored. `place`: its object's path (`messages[]`); `name`: the field's name, if it differs
    from the attribute's; `also_zero`: 0 and false are named too.
    """

    def __init__(self, place: str = "", *, name: str | None = None, also_zero: bool = False) -> None:
        self._place = f"{place}." if place else ""
        self._name = name
        self._also_zero = also_zero

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._note, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "description": "Has no effect; `x-codex-ignored-params` names it."}

    def _note(self, value: Any, info: ValidationInfo) -> Any:
        if info.context is not None and (value or (self._also_zero and value == 0)):
            info.context.ignored[f"{self._place}{self._name or info.field_name}"] = None
        return value


class Refused:
    """Marks a field as refused, and says what to do instead. `unless_forwarded`: whether the field is only noted,
    since an upstream may know it.
    """

    def __init__(
        self, message: LiteralString, code: str = "unsupported_value", *, unless_forwarded: bool = False
    ) -> None:
        self.message: LiteralString = message
        self._code = code
        self._noted = unless_forwarded

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._refuse, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        begin = "Refused, unless a model server gets it" if self._noted else "Refused"
        return {"enum": [None, False, 0, "", [], {}], "description": f"{begin}: {self.message}."}

    def _refuse(self, value: Any, info: ValidationInfo) -> Any:
        if not value:
            return value
        if self._noted and info.context is not None:
            info.context.refused[str(info.field_name)] = self.message
            return value
        # The prefix `~` makes this the code of the error: see `body.wrong_value`.
        raise PydanticCustomError(f"~{self._code}", self.message)


def refuse_noted(notes: FieldNotes) -> None:
    """Raises `Fault` INVALID_REQUEST for the first of `notes.refused`."""
    for field, message in notes.refused.items():
        raise bad_request(f"Invalid value for '{field}': {message}.", field, "unsupported_value")


def ignored_fields(notes: FieldNotes) -> tuple[str, ...]:
    """Returns ignored and unknown fields. Raises `Fault` INVALID_REQUEST for an unknown field with an id of
    this server.
    """
    if notes.own is not None:
        _refuse_own_id(*notes.own)
    return (*notes.ignored, *notes.unknown)


def ignored_inner_fields(notes: FieldNotes) -> tuple[str, ...]:
    """Returns inner objects' unknown fields, if the request's own go to an upstream."""
    if notes.own is not None and "." in notes.own[0]:
        _refuse_own_id(*notes.own)
    return tuple(name for name in notes.unknown if "." in name)


def _refuse_own_id(path: str, own: str) -> NoReturn:
    raise bad_request(
        f"Unknown parameter: '{excerpt(path)}'. It holds the id '{excerpt(own)}', and this API has no such "
        "field: what the id names would be missing from the answer.",
        excerpt(path),
        "unknown_parameter",
    )


@cache
def _attributes(model: type[BaseModel]) -> Mapping[str, str]:
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _own_id(value: Any) -> str | None:
    level = [value]
    while level:
        node = level.pop()
        if isinstance(node, dict | list):
            level += node.values() if isinstance(node, dict) else node
        elif isinstance(node, str) and _OWN_ID.fullmatch(node):
            return node
    return None


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


# --- fields that may name models -----------------------------------------------------------------

MODEL: Final = "model"
_CONTENT: Final = frozenset(
    {
        *("messages", "input", "prompt", "suffix", "query", "documents", "instructions", "metadata", "user"),
        *("functions", "response_format", "logit_bias", "stop"),
    }
)
"""Fields with content, in which a name of a model is only a word."""
_OF_TOOLS: Final = frozenset({"function", "custom", "parameters", "input_schema"})
"""The descriptions in a tool, whose names are the client's."""
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_WORDS: Final = re.compile(r"model|fallback|^deployment|^adapter|^lora")
_AT_THE_TOP: Final = frozenset({"engine", "engines"})
"""Names of models in a body itself; deeper, an engine searches the web."""


def unescaped(data: bytes) -> bytes:
    """Returns the bytes with those that are written as `%` and two digits."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), data)


def _unescaped_text(name: str) -> str:
    return unescaped(name.encode("utf-8", "replace")).decode("utf-8", "replace") if "%" in name else name


def folded(name: str) -> str:
    """Returns a name as the most lenient parser compares it: without case, compatible forms of letters, escapes and
    signs.
    """
    if name.isascii() and name.isidentifier():
        return name.replace("_", "").lower()
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", _unescaped_text(name)).casefold()))


def reads_as_model(name: str) -> bool:
    """Whether some parser reads the field `name` as `model`: also `MODEL`, `model[]`, and `model` before a NUL."""
    if name.isidentifier():
        return folded(name) == MODEL
    return folded(re.split(r"[\[\].\0]", _unescaped_text(name).lstrip("[. "), maxsplit=1)[0]) == MODEL


def may_name_models(name: str) -> bool:
    """Whether the values of the field `name` may be names of models."""
    return _WORDS.search(folded(name)) is not None


def models_in_form(fields: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields the fields of a form, and the names in their values: one, or JSON, or several with commas."""
    for field, value in fields:
        try:
            decoded = msgspec.json.decode(value)
        except UNREADABLE:
            decoded = value.split(",")
        yield from ((field, name.strip()) for name in _texts(decoded))


class Place(msgspec.Struct, frozen=True):
    """Where a value is in a body: a link to what it is in, since as texts all places would be longer than the body."""

    outer: Place | None
    step: str | int

    def __str__(self) -> str:
        steps: list[str] = []
        place: Place | None = self
        while place is not None:
            steps.append(f"[{place.step}]" if isinstance(place.step, int) else f".{place.step}")
            place = place.outer
        return "".join(reversed(steps)).removeprefix(".")


def models_in(fields: Mapping[str, msgspec.Raw]) -> Iterator[tuple[Place | str, str]]:
    """Yields the places of all fields of a JSON object that may name models, but for `model` itself, and the names."""
    for field, raw in fields.items():
        if field == MODEL or field in _CONTENT:
            continue
        value = msgspec.json.decode(raw)
        if field == "tools" and isinstance(value, list):
            for tool in value:
                if isinstance(tool, dict):
                    named = {name: each for name, each in tool.items() if name not in _OF_TOOLS}
                    yield from models_below(named, field)
        elif folded(field) in _AT_THE_TOP:
            yield from ((field, text) for text in _texts(value))
        else:
            yield from models_below({field: value})


def models_below(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[Place, str]]:
    """Yields the places of all fields in an object that may name models, and these names. `path`: the object's."""
    for place, each in fields_below(value, path, lambda name, _: may_name_models(name)):
        yield from ((place, text) for text in _texts(each))


def fields_below(
    value: Mapping[str, Any], path: str, is_wanted: Callable[[str, Any], bool]
) -> Iterator[tuple[Place, Any]]:
    """Yields the wanted fields in an object, by their names and values, and does not look into them."""
    waiting: deque[tuple[Place | None, Any]] = deque([(Place(None, path) if path else None, value)])
    while waiting:
        outer, value = waiting.popleft()
        if isinstance(value, list):
            waiting += [
                (Place(outer, index), each)
                for index, each in enumerate(value)
                if isinstance(each, (dict, list))
            ]
            continue
        for name, each in value.items():
            if is_wanted(name, each):
                yield Place(outer, name), each
            elif isinstance(each, (dict, list)):
                waiting.append((Place(outer, name), each))


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in a value; also the names of an object (`{"a": ["b"]}` are the fallbacks of a model), unless it
    has fields that name models.
    """
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            named = [each for name, each in value.items() if may_name_models(name)]
            waiting += named or [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
