"""`codex-proxy doctor`: checks what a server needs, without a turn, and says what to do."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel, SecretStr

from codex_proxy import __version__
from codex_proxy.agents.configured.agents import settings_without_effect, targets_without_agent
from codex_proxy.app.start_checks import check as check_settings
from codex_proxy.app.start_checks import is_loopback
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.checks import agent_checks, machine_checks, port_check
from codex_proxy.core.checks import Check, CheckBuilder, Fact, Status, failed_check
from codex_proxy.core.faults import UserError
from codex_proxy.parts import absent_part, agent_tables
from codex_proxy.settings.fields import Settings, split_list
from codex_proxy.settings.flags import KEYS_OF_TABLES, settings_in
from codex_proxy.settings.load import load, read_settings, unused_settings, variables_of
from codex_proxy.settings.sources import default_config_file

MAX_SECONDS = 90.0
"""Seconds for the agents' checks: each of four children may take 20 on a cold disk."""


async def examine(flags: Mapping[str, Any], config_file: Path | None, environ: Mapping[str, str]) -> Checkup:
    """Returns the report; an error is a failed check."""
    try:
        settings = load(dict(flags), config_file)
        sources = setting_sources(flags, config_file, environ)
    except UserError as error:
        text = str(error)
        sentence = f"{text[0].upper()}{text[1:]}{_end(text)}"
        return Checkup(checks=(CheckBuilder("settings").failed(sentence, "Fix the setting that is named."),))
    checks = [settings_check(settings, config_file, environ)]
    try:
        async with asyncio.timeout(MAX_SECONDS):
            checks += await agent_checks(settings, environ)
    except TimeoutError:
        message = f"The agent did not answer within {MAX_SECONDS:g} s."
        advice = "Run its program directly (`codex --version`) to see what it waits for."
        checks.append(CheckBuilder("agent").failed(message, advice))
    port = await port_check(settings)
    checks += [port, *await machine_checks(settings, environ, runs=bool(port.facts["ours"]))]
    chosen = tuple(
        Setting(name=name, value=report_value(name, getattr(settings, name)), source=source, origin=origin)
        for name, (source, origin) in sources.items()
    )
    return Checkup(
        checks=tuple(checks), settings=chosen, otherwise=next_step(port, settings, flags, config_file)
    )


def next_step(port: Check, settings: Settings, flags: Mapping[str, Any], config_file: Path | None) -> str:
    """Returns what to do if all checks have passed: use the server on `port`, or start one."""
    file = ["--config", str(config_file)] if config_file else []
    elsewhere = settings.port and not {"host", "port"}.isdisjoint(_settings_in(flags))
    client = [*file, "--base-url", f"{settings.server_url}/v1"] if elsewhere else file
    tries = [
        f"`{shlex.join(['codex-proxy', name, *client])}`{use}"
        for name, use in (("chat", ""), ("connect", " for your editor or SDK"))
        if not absent_part("commands", name)
    ]
    if port.facts.get("ours"):
        return f"The server runs{': try ' if tries else ''}{', or '.join(tries)}."
    serve = shlex.join(["codex-proxy", "serve", *_arguments(flags), *file])
    then = f", then try {tries[0]} in another terminal" if tries else ""
    return f"Start the server with `{serve}`{then}."


def _settings_in(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in flags.items()
        if value is not None
        and (name in Settings.model_fields or name in KEYS_OF_TABLES)
        and not isinstance(value, dict)
    }


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in _settings_in(flags).items():
        if name == "api_key":
            arguments += ["--api-key", "KEY"]
        elif value is True:
            arguments.append(f"--{name.replace('_', '-')}")
        else:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def settings_check(settings: Settings, config_file: Path | None, environ: Mapping[str, str]) -> Check:
    file = config_file or default_config_file()
    check = CheckBuilder("settings", file=str(file), file_exists=file.is_file())
    try:
        check_settings(settings, SystemClock(), environ, start_digest=None)
    except UserError as error:
        return failed_check("settings", str(error), check.facts)
    if remarks := tuple(_remarks_on(settings)):
        messages, advice = zip(*remarks, strict=True)
        return check.warning(f"They are valid, but {'; '.join(messages)}.", " ".join(advice))
    if not is_loopback(settings.host):
        return check.ok(f"The server listens on {settings.host}, for other machines too, with a key.")
    where = f"from {file} and the environment" if file.is_file() else f"there is no {file}, which is fine"
    return check.ok(f"They are valid ({where}).")


def _end(text: str) -> str:
    return "" if text.endswith("?") else "."


def _remarks_on(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields what of valid settings has no effect, each with advice."""
    if unknown := settings.unknown_variables:
        advice = " ".join(f"{name}: {hint}{_end(hint)}" for name, hint in unknown.items())
        yield f"these variables set nothing: {', '.join(unknown)}", advice
    if unneeded := unused_settings(settings):
        message = f"these have no effect: {', '.join(unneeded)}"
        yield message, "Remove them, or set what they need."
    if targets := targets_without_agent(settings):
        message = f"no agent has the name of a route's target: {', '.join(targets)}"
        yield message, "Correct the targets, or add the agents."
    if unused := settings_without_effect(settings):
        names = ", ".join(variables_of(name)[0] for name in unused)
        message = f"with this agent these have no effect: {names}"
        yield message, f"Remove {names}, or choose the agent that uses them with --agent."


def setting_sources(
    flags: Mapping[str, Any], config_file: Path | None, environ: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Returns where each setting's value comes from (`flag`, `variable`, `file` or `default`), with the name of the
    variable or file. The file must be valid.
    """
    file = config_file or default_config_file()
    in_file = read_settings(file)
    given = {name.upper(): name for name, value in environ.items() if value}
    by_flag = settings_in(flags)
    found: dict[str, tuple[str, str]] = {}
    for name, field in Settings.model_fields.items():
        variables = variables_of(name)
        variable = next((given[each] for each in variables if each in given), None)
        if variable is None and isinstance(field.default, BaseModel | dict):
            variable = next(
                (given[each] for each in given if each.startswith(f"PROXY_{name.upper()}_")), None
            )
        if name in by_flag:
            found[name] = ("flag", "")
        elif variable is not None:
            found[name] = ("variable", variable)
        elif any(key in in_file for key in (name, *variables)):
            found[name] = ("file", str(file))
        else:
            found[name] = ("default", "")
    return found


MASK: Final = "********"


def report_value(name: str, value: object) -> Fact:
    """Returns a setting's value for the report, secrets as `MASK`."""
    if isinstance(value, SecretStr):
        return MASK
    if value is None or isinstance(value, bool | int):
        return value
    if name in ("agents", "routes", *agent_tables()) and isinstance(value, dict):
        return ",".join(value)  # what is in the tables has checks of its own, and may be secret
    if name == "store" and "://" in str(value):
        return _host_of(str(value))
    if isinstance(value, BaseModel):
        keys = [key for key in type(value).model_fields if key in value.model_fields_set]
        return ", ".join(f"{key}={report_value(f'{name}.{key}', getattr(value, key))}" for key in keys)
    if name == "acp.env":
        return ",".join(each.partition("=")[0] for each in split_list(str(value)))
    if name == "webhooks.urls":
        return ",".join(_host_of(url) for url in split_list(str(value)))
    return os.fspath(value) if isinstance(value, Path) else str(value)


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    return f"{parts.scheme}://{parts.hostname}/{MASK}"


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
