"""The answers to `session/request_permission`: chosen by the kind of an option, never by its id or its words."""

from __future__ import annotations

from typing import Any, Final

ALLOW: Final = ("allow_once", "allow_always")
REJECT: Final = ("reject_once", "reject_always")
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The result for requests for permission in a turn that is being stopped."""


def decision(options: object, *, allow: bool) -> dict[str, Any]:
    """Returns the result that allows or rejects, only once if the options include that. Without an option of the
    wanted kind nothing is allowed."""
    given = options if isinstance(options, list) else []
    for kind in ALLOW if allow else REJECT:
        for option in given:
            if isinstance(option, dict) and option.get("kind") == kind and _is_id(option.get("optionId")):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return CANCELLED


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""
