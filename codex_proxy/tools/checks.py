"""What may take long to find out of schemas, and of texts under them: asked for here, made elsewhere."""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class Check(msgspec.Struct, frozen=True):
    """A text that has to be valid under a schema (JSON)."""

    schema: bytes
    text: str
    fitted: bool = False
    """It was said under the schema's strict form, with nulls for absent properties: they are taken out first."""


class StrictForm(msgspec.Struct, frozen=True):
    """A schema as the provider takes it."""

    schema: bytes
    nulls: bool = False
    """Null stands for properties that are absent, and has to be taken out of the answer again."""


class Verdict(msgspec.Struct, frozen=True):
    """What came of a check: nothing is `wrong`, or a sentence says what is; or it was not made, for a reason."""

    wrong: str | None = None
    unchecked: str | None = None
    rewritten: str | None = None
    """The text as the client gets it, where that is another than the model's."""
    form: StrictForm | None = None
    """Of the schema, where that was asked for and there is one."""


def not_checked(what: str, reason: str) -> Failure:
    """The end of a turn of which nobody knows whether it is as it has to be. `what`: the thing that has a schema."""
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
