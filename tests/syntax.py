"""Parses Python's source in a test process."""

from __future__ import annotations

import ast
import gc


def parse(source: str) -> ast.Module:
    """Returns the syntax tree of a module. Raises `SyntaxError`."""
    # Python 3.11's `ast.parse` keeps its recursion depth in a global. If the garbage collector runs within it and
    # finds an object of another test whose finalizer fails, pytest formats the traceback, which calls `ast.parse`
    # again: the outer call then raises "AST constructor recursion depth mismatch".
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()
