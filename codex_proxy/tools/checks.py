"""The values of schema checks: what to check, and the result. Long checks run in a worker process
(`workers/schema_checks.py`).
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema (as JSON) under which it must be valid."""

    schema: bytes
    text: str
    in_strict_form: bool = False
    """Whether the model wrote the text for the strict form (`StrictForm`), whose placeholders are removed first."""


class StrictForm(msgspec.Struct, frozen=True):
    """A client's schema in OpenAI's strict form: every property is required, with a placeholder for an absent one
    (`strict_answers`).
    """

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders for absent properties, which must be removed."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check: valid if both `wrong` and `unchecked` are None."""

    wrong: str | None = None
    """What is invalid, in words, if anything is."""
    unchecked: str | None = None
    """The reason why the check could not be made; None if it was made."""
    rewritten: str | None = None
    """The text without its placeholders, which the client gets; None if it had none."""
    form: StrictForm | None = None
    """The strict form, if it was asked for and the schema has one."""


def not_checked(what: str, reason: str) -> Failure:
    """Returns the failure of a turn whose text could not be checked. `what` begins the sentence (`The answer`),
    `reason` ends it.
    """
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
