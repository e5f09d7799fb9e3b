"""The form with which an agent asks its user for values, as lines that the user writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from codex_proxy.core.faults import UserError
from codex_proxy.core.shown_text import escape

Object = dict[str, Any]

NUMBERS: Final = ("number", "integer")
YES, NO = ("y", "yes", "true"), ("n", "no", "false")


def fields_of(ask: Object) -> list[Object]:
    """Returns the fields of the form that an agent asks for; none of any other question."""
    if not ask.get("form") or ask["name"] != "ask_user":
        return []
    return list(ask["arguments"]["fields"])


def label_of(field: Object) -> str:
    """Returns what stands before the line on which a field is written."""
    how = "".join(f"\n  {number}: {escape(each['title'])}" for number, each in _numbered(field))
    hints = {"choice": "a number", "choices": "numbers with commas", "boolean": "y or n"}
    told = [hints.get(field["type"], ""), "" if field.get("required") else "nothing to leave it out"]
    hint = ", ".join(filter(None, told))
    bracketed = f" ({hint})" if hint else ""
    return f"{escape(field['title'])}{bracketed}{how}: "


def value_of(field: Object, line: str) -> Any:
    """Returns the value of a line; None for an empty one. Raises `UserError` for what is none."""
    text = line.strip()
    if not text:
        return None
    kind = field["type"]
    if kind == "boolean" and text.lower() in (*YES, *NO):
        return text.lower() in YES
    if kind in NUMBERS:
        return _number(kind, text)
    if kind in ("choice", "choices"):
        options = {str(number): each["value"] for number, each in _numbered(field)}
        chosen = [options.get(each.strip(), "") for each in text.split(",")]
        if "" not in chosen and (kind == "choices" or len(chosen) == 1):
            return chosen if kind == "choices" else chosen[0]
    elif kind == "text":
        return line
    raise UserError(f"That is no value of {escape(field['title'])}.")


def _number(kind: str, text: str) -> int | float:
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError as error:
        raise UserError(f"{escape(text)} is no number.") from error


def _numbered(field: Object) -> Iterator[tuple[int, Object]]:
    yield from enumerate(field.get("options", ()), 1)
