"""Checks JSON schemas, and texts against them. Nothing is downloaded, and no pattern backtracks. Some checks would take
years: call `is_quick` first, and leave others to `workers/schema_checks.py`.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.caches import LruCache
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.tools.strict_schemas import StrictForm, undo_strict_form

if TYPE_CHECKING:
    from jsonschema_rs import RegexOptions, ValidationError, Validator

HEAVY_CLASS = 160
"""The number of characters that a Unicode class counts as in a pattern."""
MAX_WORK = 1 << 40
"""Maximum work that is counted: references that double at each level grow without end."""

_REPEATED = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}")
_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef"})
_IDS = frozenset({"$id", "id"})
_AGAIN = frozenset({"unevaluatedProperties", "unevaluatedItems"})


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema under which it must be valid."""

    schema: bytes
    text: str
    in_strict_form: bool = False
    """Whether the text is for the strict form, whose placeholders are removed first."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check: valid if both `wrong` and `unchecked` are None."""

    wrong: str | None = None
    """What is invalid, in words."""
    unchecked: str | None = None
    """Why the check could not be made."""
    rewritten: str | None = None
    """The text without its placeholders, if it had any."""
    form: StrictForm | None = None
    """The strict form, if asked for and possible."""


def unchecked_failure(what: str, reason: str) -> Failure:
    """Returns the failure for a text that could not be checked. `what` names the text, as `The answer`."""
    return Failure(
        FaultKind.UPSTREAM_ERROR,
        f"{what} could not be checked against its schema: {reason}.",
        code="schema_check_failed",
    )


class _NoBoundError(Exception):
    pass


def schema_work(schema: bytes) -> int | None:
    """Returns an upper bound of the work of a check by this schema, in visits of its values. None: the work has no
    bound, or the schema is not JSON.
    """
    try:
        root = msgspec.json.decode(schema)
        return _Count(root).of(root)
    except (*UNREADABLE, _NoBoundError):
        return None


class _Count:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, int | None] = {}
        """The work of each reference's target; None while it is counted, to notice a cycle."""

    def of(self, value: Any) -> int:
        if isinstance(value, list):
            return self._checked_work(1 + sum(map(self.of, value)))
        if isinstance(value, str):
            return 1 + len(value) // 64
        if not isinstance(value, dict):
            return 1
        work = 1
        for key, inner in value.items():
            if key in _AGAIN or (key in _REFERENCES and isinstance(inner, str)):
                raise _NoBoundError
            if key in _IDS and isinstance(inner, str) and value is not self._root:
                raise _NoBoundError  # the pointers below it begin there
            if key == "$ref" and isinstance(inner, str):
                work += self._work_of_reference(inner)
            elif key == "pattern" and isinstance(inner, str):
                work += _work_of_pattern(inner)
            elif key == "patternProperties" and isinstance(inner, dict):
                work += sum(_work_of_pattern(pattern) + self.of(each) for pattern, each in inner.items())
            else:
                work += self.of(inner)
        return self._checked_work(work)

    def _work_of_reference(self, reference: str) -> int:
        if reference in self._referred:
            known = self._referred[reference]
            if known is None:
                raise _NoBoundError
            return known
        self._referred[reference] = None
        work = self._referred[reference] = self.of(self._target(reference))
        return work

    def _target(self, reference: str) -> Any:
        if reference[:2] != "#/" or "%" in reference:
            raise _NoBoundError
        found = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise _NoBoundError
        return found

    def _checked_work(self, work: int) -> int:
        if work > MAX_WORK:
            raise _NoBoundError
        return work


def _work_of_pattern(pattern: str) -> int:
    """Returns about the number of instructions of a compiled pattern: characters times repetitions. Raises
    `_NoBoundError`.
    """
    work = 1 + len(pattern)
    if "\\p" in pattern or "\\P" in pattern:
        work *= HEAVY_CLASS
    for match in _REPEATED.finditer(pattern):
        work *= max(int(match[1] or 1), int(match[2] or 1), 1)
        if work > MAX_WORK:
            raise _NoBoundError
    return work


MAX_VALUE = 200
"""Maximum characters of a wrong value that a message repeats."""

MAX_SCHEMA_BYTES = 128 * 1024
"""The largest schema; OpenAI accepts 120,000 characters of names."""

MAX_TEXT = 1024 * 1024
"""Maximum characters of a checked text; a file in a call's arguments has a tenth."""

QUICK_SCHEMA = 16 * 1024
"""Maximum bytes that may be compiled on the event loop, in up to 2 ms."""

MAX_QUICK_WORK = 400_000
"""Maximum work of a check on the event loop (`schema_work` times characters), up to 3 ms."""

MAX_READY_BYTES = 4 * 1024 * 1024
"""Maximum bytes of cached schemas, whose compiled forms are up to twenty times as large."""


@cache
def _patterns() -> RegexOptions:
    """Returns the engine for patterns: it matches in linear time, without lookaround and back references."""
    from jsonschema_rs import RegexOptions  # here and below imported when it is needed: it takes 3 MB

    return RegexOptions()


class NotASchemaError(ValueError):
    """A JSON schema is invalid, or cannot be applied here. The message says where and why."""


_compiled: Final[LruCache[bytes, Validator]] = LruCache(MAX_READY_BYTES, lambda schema, _: len(schema))


def _validator_of(schema: bytes) -> Validator:
    """Returns a compiled schema, cached. Raises `NotASchemaError`."""
    found = _compiled.get(schema)
    if found is None:
        found = _validator(schema)
        _compiled.put(schema, found)
    return found


def _validator(schema: bytes) -> Validator:
    from jsonschema_rs import ValidationError, ValidationErrorKind

    if len(schema) > MAX_SCHEMA_BYTES:
        raise NotASchemaError(f"it is larger than {MAX_SCHEMA_BYTES >> 10} KiB")
    try:
        value = msgspec.json.decode(schema)
    except UNREADABLE as error:
        raise NotASchemaError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise NotASchemaError("it is neither an object nor a boolean")
    try:
        return _compile(value)
    except ValidationError as error:
        if not (isinstance(error.kind, ValidationErrorKind.Format) and error.kind.format == "regex"):
            raise _not_a_schema(error) from error
    try:
        return _compile(_without_unreadable_patterns(value))
    except ValidationError as error:
        raise _not_a_schema(error) from error


def _compile(value: dict[str, Any] | bool) -> Validator:
    from jsonschema_rs import ValidationError

    try:
        # No formats: they are annotations, and a provider knows others.
        return _draft(value)(value, validate_formats=False, pattern_options=_patterns(), offline=True)
    except ValidationError:
        raise
    except ValueError as error:  # the engine takes 255 levels; everything else in it is JSON
        raise NotASchemaError("it is nested too deeply") from error


def _draft(value: dict[str, Any] | bool) -> type[Validator]:
    from jsonschema_rs import Draft202012Validator, validator_cls_for

    try:
        return validator_cls_for(value)
    except (ValueError, TypeError):
        return Draft202012Validator


def _not_a_schema(error: ValidationError) -> NotASchemaError:
    from jsonschema_rs import ValidationErrorKind

    if isinstance(error.kind, ValidationErrorKind.Referencing):
        return NotASchemaError(
            f"a reference in it cannot be resolved, and remote schemas are not fetched: {_shorten(error.message)}"
        )
    return NotASchemaError(f"{_path(error.instance_path)}: {_shorten(error.message)}")


def check_schema(schema: bytes) -> None:
    """Raises `NotASchemaError` unless it is a JSON schema whose `$ref`s name places inside it, or a
    draft's metaschema.
    """
    _validator_of(schema)


def is_quick(schema: bytes, text: str = "") -> bool:
    """Whether compiling the schema, and checking the text, takes a few milliseconds."""
    if len(schema) > QUICK_SCHEMA:
        return False
    work = _known_work(schema)
    return work is not None and work * max(len(text), 1) <= MAX_QUICK_WORK


_known_work = lru_cache(maxsize=256)(schema_work)


def verdict_on(check: TextCheck) -> Verdict:
    """Runs a check, however long it takes. A text that is too long and a schema that cannot be applied are `wrong`."""
    text = check.text
    if check.in_strict_form and len(text) <= MAX_TEXT:
        text = undo_strict_form(check.schema, text)
    return Verdict(violation(check.schema, text), rewritten=None if text == check.text else text)


def violation(schema: bytes, text: str) -> str | None:
    """Returns what is wrong with a text, as a sentence for the model, if anything."""
    if len(text) > MAX_TEXT:
        return f"it is longer than {MAX_TEXT:,} characters"
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE as error:
        return f"it is not valid JSON: {error}"
    from jsonschema_rs import ValidationError

    try:
        _validator_of(schema).validate(value)
    except ValidationError as error:
        return f"at {_path(error.instance_path)}: {_shorten(error.message)}"
    except ValueError as fault:  # no schema, or a text with more levels than the engine takes
        return f"the schema cannot be applied: {_shorten(str(fault))}"
    return None


def _path(parts: Any) -> str:
    path = "$"
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return _shorten(path)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"


# --- patterns that the engine does not read -------------------------------------------------------

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"const", "enum", "default", "examples"})


def _without_unreadable_patterns(schema: Any) -> Any:
    """Returns the schema without patterns that the engine cannot compile (lookaround, back references), and without
    keywords that would then reject properties.
    """
    readable = lru_cache(maxsize=None)(_is_readable)
    dropped = False

    def cut(value: Any) -> Any:
        nonlocal dropped
        if isinstance(value, list):
            return [cut(each) for each in value]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, inner in value.items():
            if key == "pattern" and isinstance(inner, str) and not readable(inner):
                continue
            if key in _NAMED_SCHEMAS and isinstance(inner, dict):
                kept[key] = {name: cut(each) for name, each in inner.items()}
            else:
                kept[key] = inner if key in _DATA else cut(inner)
        by_pattern = kept.get("patternProperties")
        if isinstance(by_pattern, dict) and not all(map(readable, by_pattern)):
            dropped = True
            kept["patternProperties"] = {name: each for name, each in by_pattern.items() if readable(name)}
            kept.pop("additionalProperties", None)  # a pattern that is left out may be one that allows a name
        return kept

    cut_schema = cut(schema)
    return _without_key(cut_schema, "unevaluatedProperties") if dropped else cut_schema


def _is_readable(pattern: str) -> bool:
    from jsonschema_rs import Draft202012Validator, ValidationError

    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=_patterns())
    except ValidationError:
        return False
    return True


def _without_key(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_without_key(each, name) for each in value]
    if isinstance(value, dict):
        return {key: _without_key(each, name) for key, each in value.items() if key != name}
    return value
