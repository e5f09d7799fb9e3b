"""Finds the fields of a body that may name models, besides `model`: servers of models have many (`models`, `fallbacks`,
`extra_body.model`, `draft_model`), and spell names in their own ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
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


def models_in(fields: Mapping[str, msgspec.Raw]) -> Iterator[tuple[str, str]]:
    """Yields the paths of all fields of a JSON object that may name models, but for `model` itself, and these names."""
    for field, raw in fields.items():
        if field == MODEL or field in _CONTENT:
            continue
        value = msgspec.json.decode(raw)
        if field == "tools" and isinstance(value, list):
            for tool in value:
                if isinstance(tool, dict):
                    yield from models_below(
                        {name: each for name, each in tool.items() if name not in _OF_TOOLS}, field
                    )
        elif folded(field) in _AT_THE_TOP:
            yield from ((field, text) for text in _texts(value))
        else:
            yield from models_below({field: value}, "")


def models_below(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the paths of all fields in a value that may name models, and these names. `path`: the value's."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            for name, each in value.items():
                inner = f"{path}.{name}" if path else name
                if may_name_models(name):
                    yield from ((inner, text) for text in _texts(each))
                else:
                    waiting.append((inner, each))
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", each) for index, each in enumerate(value)]


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
