"""Checks of schemas and of texts against schemas. They may take long, so they are only described here and run in a
worker."""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema under which it must be valid."""

    schema: bytes
    text: str
    fitted: bool = False
    """Whether the text follows the schema's strict form. If so, it is converted back before the check."""


class StrictForm(msgspec.Struct, frozen=True):
    """A client's schema in a form that the provider accepts."""

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders for absent properties, which must be removed."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check. `wrong` is a sentence about what is invalid, None for a valid text; `unchecked` is the
    reason for which the check could not be made, None if it was made.
    """

    wrong: str | None = None
    unchecked: str | None = None
    rewritten: str | None = None
    """The text for the client, where it differs from the model's; else None."""
    form: StrictForm | None = None
    """The strict form of the schema, where one was asked for and exists; else None."""


def not_checked(what: str, reason: str) -> Failure:
    """Returns the failure of a turn whose text could not be checked. `what` names the owner of the schema and
    begins a sentence. `reason` ends it.
    """
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
