"""The result of one check of `doctor`; agents' specs return them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["ok", "warning", "failed", "skipped"]
Fact: TypeAlias = str | int | bool | None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. The status `warning`: the server can start all the same."""

    name: str
    status: Status
    message: str
    """One sentence: what was found."""
    advice: str = ""
    """What the user should do, if anything."""
    facts: dict[str, Fact] = {}
    """Details for `doctor --json`."""


class CheckBuilder:
    """Builds the results of one check; each has the `facts` so far."""

    def __init__(self, name: str, **facts: Fact) -> None:
        self._name = name
        self.facts = facts

    def ok(self, message: str) -> Check:
        return self._build("ok", message)

    def skipped(self, message: str) -> Check:
        return self._build("skipped", message)

    def warning(self, message: str, advice: str = "") -> Check:
        return self._build("warning", message, advice)

    def failed(self, message: str, advice: str) -> Check:
        return self._build("failed", message, advice)

    def _build(self, status: Status, message: str, advice: str = "") -> Check:
        return Check(name=self._name, status=status, message=message, advice=advice, facts=self.facts)


def failed_check(name: str, error: str, facts: dict[str, Fact] | None = None) -> Check:
    """Returns a failed check: the error's first sentence is the message, the rest the advice."""
    message, dot, advice = error.partition(". ")
    if not advice:
        message, advice = error, error
    return Check(name=name, status="failed", message=message + dot.strip(), advice=advice, facts=facts or {})
