"""The keywords of JSON schema, so that no schema and no text can keep the server busy.

In: a draft's keywords as jsonschema has them. Out: the same, with their work counted, and with regular
expressions that cannot backtrack. A check that would take too long raises `TooMuchWorkError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

MOST_WORK = 300_000
"""Units of work in one check: a keyword costs one, and one for each member that it looks at; a second at the
worst. A schema of a few hundred bytes can ask for years (`$ref`s that double at each level), a large list with
`uniqueItems` for hours."""

CHARACTERS_PER_UNIT = 64
"""Of a string: looking through it is that much faster than calling a keyword."""

LIGHT, HEAVY, HEAVIEST = 12, 160, 70_000
"""Units for making a pattern ready: for a character of it, for a class that holds a good part of Unicode, and at
most, since the engine refuses what takes more than 10 MiB. `\\w{300}` takes a tenth of a second."""

MOST_PATTERNS = 64
"""Patterns that are kept ready, of at most 10 MiB each, mostly of some KiB."""

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class TooMuchWorkError(Exception):
    """The check was given up."""


class Work:
    """What one check may still do."""

    def __init__(self) -> None:
        self._left = MOST_WORK

    def start(self) -> None:
        """Another check begins."""
        self._left = MOST_WORK

    def spend(self, units: int) -> None:
        """Raises `TooMuchWorkError` when nothing is left."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWorkError("checking it would take too long")

    def found(self, pattern: str, text: str) -> bool | None:
        """Whether the text holds the pattern; None where the pattern is one that is not checked."""
        known = _matcher.cache_info().misses
        matcher = _matcher(pattern)
        if _matcher.cache_info().misses != known:
            self.spend(min(_cost(pattern) or 0, HEAVIEST))
        return None if matcher is None else matcher.isinstance_python(text)


@lru_cache(maxsize=MOST_PATTERNS)
def _matcher(pattern: str) -> SchemaValidator | None:
    """What matches in a time that is linear in the text, whatever the pattern; None where there is no such.

    Lookaround and back references need an engine that backtracks, which thirty characters can keep busy for
    years: a pattern with one is not checked.
    """
    if _cost(pattern) is None:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError:
        return None


_TOKENS = re.compile(r"\\[pP]\{[^}]*\}|\\.|\{\d*,?(\d*)\}|&&|--|~~|.", re.DOTALL)
_HEAVY = ("\\w", "\\W", "\\p", "\\P")


def _cost(pattern: str) -> int | None:
    """Units for making it ready. None for a set of characters that holds what only this engine takes for a set
    in it, or for set arithmetic: that pattern means something else here."""
    groups, last, inside = [0], 0, False
    for match in _TOKENS.finditer(pattern):
        token = match[0]
        if inside and token in ("[", "&&", "--", "~~"):
            return None
        if inside and token == "]":
            inside = False
        elif inside and not token.startswith(_HEAVY):
            continue
        elif token == "(":
            groups.append(0)
            last = 0
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token[0] == "{" and len(token) > 2:
            times = match[1] or token.strip("{,}")
            groups[-1] += last * int(times[:6] or 1)
        else:
            inside = inside or token == "["
            last = HEAVY if token.startswith(_HEAVY) else LIGHT
            groups[-1] += last
    return sum(groups)


def bounded(known: Mapping[str, Any], schema: Any, work: Work) -> dict[str, Keyword]:
    """The keywords that a draft knows, for a validator of `schema` whose checks draw on `work`."""
    own = dict(known)
    own["pattern"] = _pattern(work)
    own["patternProperties"] = _pattern_properties(work)
    own["additionalProperties"] = _additional_properties(work)
    if any("patternProperties" in each for each in _objects_in(schema)):
        own["unevaluatedProperties"] = _unchecked  # it asks an engine that backtracks
    if "uniqueItems" in known:
        own["uniqueItems"] = _unique_items(known["uniqueItems"], work)
    return {name: _counted(own[name], work) for name in known}


def _counted(keyword: Keyword, work: Work) -> Keyword:
    def paid(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        work.spend(1 + _size(value) + _size(instance))
        yield from keyword(validator, value, instance, schema) or ()

    return paid


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // CHARACTERS_PER_UNIT
    return len(value) if isinstance(value, list | dict) else 0


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, itself too."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _pattern(work: Work) -> Keyword:
    def keyword(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, str) and work.found(pattern, instance) is False:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    return keyword


def _pattern_properties(work: Work) -> Keyword:
    def keyword(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                work.spend(1 + _size(name))
                if work.found(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)

    return keyword


def _additional_properties(work: Work) -> Keyword:
    def keyword(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            work.spend(1 + len(patterns) * (1 + _size(name)))
            # A pattern that is not checked may be one that allows the name.
            if name in named or any(work.found(pattern, name) is not False for pattern in patterns):
                continue
            if allowed is False:
                yield ValidationError(f"the property {name!r} is not allowed")
            else:
                yield from validator.descend(value, allowed, path=name)

    return keyword


def _unique_items(known: Keyword, work: Work) -> Keyword:
    """It compares every two members where they cannot be sorted."""

    def keyword(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, list):
            kinds = {float if isinstance(each, bool | int) else type(each) for each in instance}
            if len(kinds) > 1 or kinds & {list, dict}:
                work.spend(len(instance) ** 2)
            yield from known(validator, unique, instance, schema) or ()

    return keyword


def _unchecked(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """A keyword that is not kept."""
