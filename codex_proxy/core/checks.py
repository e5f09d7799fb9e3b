"""What agents' specs find out for commands: the result of one check of `doctor`, and what is known of an agent without
a start of it, for `codex-proxy agents`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from codex_proxy.core.options import Capability

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


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's program, and the traces of a sign-in."""

    installed: bool
    """Whether the agent can be started, as far as that is known without a start: its program is there, or it needs
    none.
    """
    program: str = ""
    """The program's path; for a model server its address; empty if there is none."""
    version: str = ""
    """The program's release; empty if it is not known."""
    signed_in: bool | None = None
    """None: not known, or there is nothing to sign in to."""
    install: str = ""
    """The command that installs the program, or sets what the agent needs; empty if nothing is missing."""
    sign_in: str = ""
    """What to do to sign in, in a sentence."""
    trouble: str = ""
    """What went wrong when the program was asked for its release."""
    capabilities: frozenset[Capability] | None = None
    """What this program can do, if its spec does not say that."""
