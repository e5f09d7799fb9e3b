"""What may take long to find out of schemas, and of texts under them: asked for here, made elsewhere."""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class Check(msgspec.Struct, frozen=True):
    """A text that has to be valid under a schema (JSON)."""

    schema: bytes
    text: str
    fitted: bool = False
    """It was said under the schema's strict form, which is undone first."""


class StrictForm(msgspec.Struct, frozen=True):
    """A client's schema in the form that the provider takes."""

    schema: bytes
    to_undo: bool = False
    """Something stands for properties that are absent, and has to be taken out of the answer again."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check: `wrong` is None or a sentence; `unchecked` says why no check could be made."""

    wrong: str | None = None
    unchecked: str | None = None
    rewritten: str | None = None
    """The text as the client gets it, where that is another than the model's."""
    form: StrictForm | None = None
    """Of the schema, where that was asked for and there is one."""


def not_checked(what: str, reason: str) -> Failure:
    """The failure of a turn whose text could not be checked. `what`: what has the schema, to begin a sentence with."""
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
