"""The answers to `session/request_permission`: chosen by the kind of an option, never by its id or its words."""

from __future__ import annotations

from typing import Any, Final

ALLOW: Final = ("allow_once", "allow_always")
REJECT: Final = ("reject_once", "reject_always")
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""What a request of a turn that is being stopped gets."""


def decision(options: object, *, allow: bool) -> dict[str, Any]:
    """The result that allows or rejects, once where that is offered. Where there is no option of the wanted kind,
    nothing is allowed."""
    given = options if isinstance(options, list) else []
    for kind in ALLOW if allow else REJECT:
        for option in given:
            if isinstance(option, dict) and option.get("kind") == kind and _is_id(option.get("optionId")):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return CANCELLED


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""
