"""Every pattern of the package searches a text in time that is proportional to its length, whoever has written it.

The texts are made from the pattern's syntax tree: a beginning that matches again and again, while the end never comes.
Patterns that are compiled at run time, and those of other packages, are not seen here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Final, TypeAlias

import pytest

import codex_proxy
from tests.cpu_time import cpu_seconds

ops = import_module("re._constants")
_parser = import_module("re._parser")

Pattern: TypeAlias = "re.Pattern[str] | re.Pattern[bytes]"
Text: TypeAlias = "str | bytes"

SIZE: Final = 6_000
FEW: Final = 24
"""Characters for which an exponential pattern takes a second."""
QUICK: Final = 0.001
"""CPU seconds for `SIZE` characters that need no second look; a quadratic pattern takes some hundredths."""
SLOW: Final = 0.2
MAX_TIMES: Final = 3
"""What twice the text may cost, as a multiple: 2 if it is linear, 4 if it is quadratic."""

BOUNDED: Final = {
    "codex_proxy.agents.shared.failures:_SPAN": "reads what another pattern has found, of some hundred characters",
    "codex_proxy.parts.mcp.config:_VARIABLE": "reads a file of the operator's",
}
"""Patterns that are not linear, and why nobody can send them a long text."""

ANCHORED: Final = {"match", "fullmatch"}
"""Methods that begin at one place only."""
REPEATS: Final = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
CANDIDATES: Final = "a 0;:.,-_=/<>\"'\\\n\t{}[]()\x01é中"


# --- texts from a pattern -------------------------------------------------------------------------


def character_in(node: Any) -> str:
    """A character that this node matches."""
    whole = re.compile(_text_of_class(node), re.DOTALL)
    return next((each for each in CANDIDATES if whole.fullmatch(each)), "a")


def _text_of_class(node: Any) -> str:
    kind, value = node
    if kind is ops.ANY:
        return "."
    if kind is ops.NOT_LITERAL:
        return f"[^{re.escape(chr(value))}]"
    names = {
        ops.CATEGORY_DIGIT: r"\d",
        ops.CATEGORY_NOT_DIGIT: r"\D",
        ops.CATEGORY_SPACE: r"\s",
        ops.CATEGORY_NOT_SPACE: r"\S",
        ops.CATEGORY_WORD: r"\w",
        ops.CATEGORY_NOT_WORD: r"\W",
    }
    parts: dict[Any, Callable[[Any], str]] = {
        ops.NEGATE: lambda _: "^",
        ops.LITERAL: lambda code: re.escape(chr(code)),
        ops.RANGE: lambda ends: f"{re.escape(chr(ends[0]))}-{re.escape(chr(ends[1]))}",
        ops.CATEGORY: lambda name: names[name],
    }
    return f"[{''.join(parts[each](given) for each, given in value)}]"


def shortest(nodes: Any) -> str:
    """A short text that these nodes match, each repetition at least once."""
    found = ""
    for kind, value in nodes:
        if kind is ops.LITERAL:
            found += chr(value)
        elif kind in (ops.IN, ops.ANY, ops.NOT_LITERAL):
            literal = kind is ops.IN and value[0][0] is ops.LITERAL
            found += chr(value[0][1]) if literal else character_in((kind, value))
        elif kind in REPEATS:
            found += shortest(value[2]) * max(value[0], 1)
        elif kind is ops.BRANCH:
            found += shortest(value[1][0])
        elif kind is ops.SUBPATTERN:
            found += shortest(value[3])
        elif kind is ops.ATOMIC_GROUP:
            found += shortest(value)
    return found


def beginnings(nodes: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yields the texts that match a part of the pattern from its start on, each with what may be repeated behind it."""
    for kind, value in nodes:
        if kind in REPEATS:
            yield before, shortest(value[2])
            yield from beginnings(value[2], before)
        elif kind is ops.BRANCH:
            for branch in value[1]:
                yield from beginnings(branch, before)
        elif kind is ops.SUBPATTERN:
            yield from beginnings(value[3], before)
        elif kind is ops.ATOMIC_GROUP:
            yield from beginnings(value, before)
        before += shortest([(kind, value)])
        yield before, ""


def hostile_texts(pattern: Pattern, size: int) -> Iterator[Text]:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags if isinstance(pattern.pattern, str) else pattern.flags & ~re.UNICODE
    seen = set()
    for before, repeated in beginnings(_parser.parse(source, flags)):
        seen |= {("", before), ("", repeated), (before, repeated), ("", before + repeated)}
    for before, repeated in sorted(seen):
        if repeated:
            text = before + repeated * (size // len(repeated)) + "\x01"
            yield text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")


# --- the patterns of the package ------------------------------------------------------------------


def patterns_in(value: object) -> Iterator[Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from patterns_in(each)


def methods_called() -> dict[str, set[str]]:
    """The methods by which each name of the package is used; of a private name, with its module."""
    found: dict[str, set[str]] = defaultdict(set)
    folder = Path(codex_proxy.__path__[0])
    for file in folder.rglob("*.py"):
        module = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
        for name, method in re.findall(r"\b([A-Z_]{3,})\.([a-z]+)\b", file.read_text()):
            found[f"{module}:{name}" if name.startswith("_") else name].add(method)
    return found


def all_patterns() -> dict[str, tuple[Pattern, bool]]:
    """The patterns by the names of their places, and whether each is used only from the start of a text."""
    found: dict[str, tuple[Pattern, bool]] = {}
    methods = methods_called()
    for module in walk_packages(codex_proxy.__path__, "codex_proxy."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(module.name)).items():
            for number, pattern in enumerate(patterns_in(value)):
                place = f"{module.name}:{name}" if pattern is value else f"{module.name}:{name}[{number}]"
                used = methods[place if name.startswith("_") else name] if pattern is value else set()
                found[place] = pattern, bool(used) and used <= ANCHORED
    return found


def cost(pattern: Pattern, text: Text, *, anchored: bool, tries: int = 1) -> float:
    search: Any = pattern
    ways: list[Callable[[], object]] = [lambda: search.match(text), lambda: search.fullmatch(text)]
    if not anchored:
        ways = [lambda: search.sub(text[:0], text)]
    return max(min(_seconds(way) for _ in range(tries)) for way in ways)


def _seconds(way: Callable[[], object]) -> float:
    began = cpu_seconds()
    way()
    return cpu_seconds() - began


def slow_text(pattern: Pattern, *, anchored: bool) -> str:
    """Returns the beginning of a text that takes more than linear time, or nothing."""
    sizes = (FEW, SIZE, 2 * SIZE)
    for few, text, longer in zip(*(hostile_texts(pattern, size) for size in sizes), strict=True):
        if cost(pattern, few, anchored=anchored) > SLOW:
            return repr(few)
        short = cost(pattern, text, anchored=anchored)
        if short < QUICK:
            continue
        if short > SLOW or all(_grows(pattern, text, longer, anchored, tries) for tries in (1, 3, 9)):
            return repr(text[:80])
    return ""


def _grows(pattern: Pattern, text: Text, longer: Text, anchored: bool, tries: int) -> bool:
    """Whether the longer text costs more than in proportion. Only what does is measured more often than once."""
    short = cost(pattern, text, anchored=anchored, tries=tries)
    return cost(pattern, longer, anchored=anchored, tries=tries) > MAX_TIMES * short


def test_no_pattern_takes_more_than_linear_time() -> None:
    slow = {
        place: text
        for place, (pattern, anchored) in all_patterns().items()
        if place not in BOUNDED and (text := slow_text(pattern, anchored=anchored))
    }
    assert not slow


@pytest.mark.parametrize(
    "source",
    [
        r"head:[^\r\n]*;\s*name",
        *(
            pytest.param(source, marks=pytest.mark.exhaustive)
            for source in (r"\s*end", r"for url \([^)]*\)", r"(?:a|b)+c", r"(a+)+b")
        ),
    ],
)
def test_a_quadratic_pattern_is_found(source: str) -> None:
    # A measured time may be wrong once on a busy machine.
    assert any(slow_text(re.compile(source), anchored=False) for _ in range(3))


@pytest.mark.parametrize(
    "source", [r"\s{0,9}end", r"(?<=\n)head:[^\r\n]*;\s*name", r"for url \([^()]*\)", r"[a-z]+"]
)
def test_a_linear_pattern_is_not(source: str) -> None:
    assert not slow_text(re.compile(source), anchored=False)
