"""Finds the fields of a body that may name models, besides `model`: servers of models have many (`models`, `fallbacks`,
`extra_body.model`, `draft_model`), and spell names in their own ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE

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
    if name.isascii() and name.isalpha():
        return name.lower()
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", _unescaped_text(name)).casefold()))


def reads_as_model(name: str) -> bool:
    """Whether some parser reads the field `name` as `model`: also `MODEL`, `model[]`, and `model` before a NUL."""
    if name.isascii() and name.isalpha():
        return name.lower() == MODEL
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
