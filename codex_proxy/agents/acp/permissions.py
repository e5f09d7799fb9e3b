"""The answers to `session/request_permission`. An option is chosen by its kind, never by its id or text."""

from __future__ import annotations

from typing import Any, Final

ALLOW: Final = ("allow_once", "allow_always")
REJECT: Final = ("reject_once", "reject_always")
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The result for requests for permission in a turn that is being stopped."""


def decision(options: object, *, allow: bool) -> dict[str, Any]:
    """Returns the result that allows or rejects, if possible only once. If no option has the wanted kind, the
    result allows nothing.
    """
    given = options if isinstance(options, list) else []
    for kind in ALLOW if allow else REJECT:
        for option in given:
            if isinstance(option, dict) and option.get("kind") == kind and _is_id(option.get("optionId")):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return CANCELLED


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""
