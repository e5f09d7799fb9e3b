"""The report of `doctor`, and its JSON, whose keys do not change (docs/operations.md)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from codex_proxy import __version__
from codex_proxy.core.checks import Check, Fact, Status

SCHEMA = 1
"""The version of the JSON: one more when a key is removed or changes its meaning."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in the report; a secret is masked."""

    name: str
    value: Fact
    source: str
    """`flag`, `variable`, `file` or `default`."""
    origin: str
    """The name of the variable or the file; empty for flags and defaults."""


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...]
    settings: tuple[Setting, ...] = ()
    otherwise: str = ""
    """The last step to recommend if no check has failed."""

    @property
    def ok(self) -> bool:
        """Whether a server would start. Warnings do not count."""
        return not any(check.status == "failed" for check in self.checks)

    @property
    def next_steps(self) -> list[str]:
        """The advice of failed checks, then of warnings, then `otherwise`."""
        steps = [
            check.advice
            for status in ("failed", "warning")
            for check in self.checks
            if check.status == status
        ]
        if self.ok and self.otherwise:
            steps.append(self.otherwise)
        return list(dict.fromkeys(step for step in steps if step))

    def as_json(self) -> str:
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "version": __version__,
            "ok": self.ok,
            "checks": msgspec.to_builtins(self.checks),
            "settings": msgspec.to_builtins(self.settings),
            "next": self.next_steps,
        }
        return json.dumps(body, indent=2, ensure_ascii=False)


MARKS: dict[Status, str] = {"ok": " ok ", "warning": "WARN", "failed": "FAIL", "skipped": " -- "}


def as_text(checkup: Checkup, *, every_setting: bool) -> str:
    """Returns the report. `every_setting`: also settings with their defaults."""
    width = max(len(check.name) for check in checkup.checks)
    lines = [f"[{MARKS[check.status]}] {check.name:{width}}  {check.message}" for check in checkup.checks]
    shown = [each for each in checkup.settings if every_setting or each.source != "default"]
    if checkup.settings:
        lines += ["", "Settings in force:"]
        lines += [f"  {each.name} = {each.value}  ({each.origin or each.source})" for each in shown]
        left_out = len(checkup.settings) - len(shown)
        if left_out:
            lines.append(f"  {left_out} have their defaults (--all shows them)")
    lines += ["", "Next:" if checkup.ok else "To do, in this order:"]
    lines += [f"  {number}. {step}" for number, step in enumerate(checkup.next_steps, 1)]
    return "\n".join(lines)
