"""The values of schema checks. Long checks run in a worker process (`workers/schema_checks.py`)."""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema under which it must be valid."""

    schema: bytes
    text: str
    in_strict_form: bool = False
    """Whether the text is for the strict form, whose placeholders are removed first."""


class StrictForm(msgspec.Struct, frozen=True):
    """A schema in OpenAI's strict form: every property is required, with a placeholder for an absent one
    (`strict_answers`).
    """

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders."""


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
