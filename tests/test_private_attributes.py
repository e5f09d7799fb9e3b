"""Tests use what a layer offers: the private attributes of the package that they read may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import parse

ROOT = Path(__file__).parents[1]
MOST = 165
"""Uses in all tests. Whoever takes one away makes the number smaller; nobody makes it larger."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def trees(folder: str) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), parse(path.read_text("utf-8"))


def private_names(tree: ast.AST) -> set[str]:
    """The private attributes and methods that a module's classes have."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return set(filter(is_private, found))


def uses_of(names: set[str], tree: ast.AST) -> int:
    """How often a test reads or sets one of these of anything but itself."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        for node in ast.walk(tree)
    )


def test_private_attributes_of_the_package_in_tests_become_fewer() -> None:
    names = set[str]()
    for _, tree in trees("codex_proxy"):
        names |= private_names(tree)
    uses = Counter({place: uses_of(names, tree) for place, tree in trees("tests")})
    assert uses.total() <= MOST, uses.most_common(10)


def test_a_use_of_a_private_attribute_is_found() -> None:
    names = private_names(parse("class A:\n    def __init__(self): self._a = 1\n    def _b(self): ...\n"))
    assert names == {"_a", "_b"}
    test = "a._a\na.x._b()\na._c\nself._a\nsuper()._b()\na.a\n"
    assert uses_of(names, parse(test)) == 2
