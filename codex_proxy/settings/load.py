"""Loads the settings, and says what is wrong with a name or value."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ValidationError

from codex_proxy.admission.routes import Route
from codex_proxy.agents.upstream.config import UpstreamConfig
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.flags import settings_in
from codex_proxy.settings.old_names import OLD_NAMES, old_names_in
from codex_proxy.settings.sources import default_config_file, settings_file


def load(flags: dict[str, Any], config_file: Path | None) -> Settings:
    """Returns the settings of `flags`, else the environment, else the settings file: `config_file`, or for None the
    default file, which need not exist. Raises `ValueError`, which names the setting or the file.
    """
    if config_file is not None and not config_file.is_file():
        raise ValueError(f"the file {config_file} does not exist")
    file = config_file or default_config_file()
    in_file = _check_names(file, {*_names_in_file(), *OLD_NAMES})
    given = settings_in(flags)
    with settings_file(file):
        settings = Settings(**given)
    settings._file = file
    settings._old_names = tuple(old_names_in(dict.fromkeys((*in_file, *given)), os.environ))
    return settings


def _names_in_file() -> set[str]:
    known = set(Settings.model_fields)
    for field in Settings.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            known.update(str(choice) for choice in field.validation_alias.choices)
    return known


def variables_of(name: str) -> tuple[str, ...]:
    alias = Settings.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(map(str, alias.choices))
    return (f"PROXY_{name.upper()}",)


def text_of(error: ValidationError) -> str:
    """Returns the first error, with the name of the setting, as a part of a sentence."""
    first = error.errors()[0]
    *table, name = place = [str(part) for part in first["loc"] if part != "[key]"]
    if first["type"] == "extra_forbidden" and table:
        is_key = table[0] == "upstreams" and name in ("key", "api_key")
        advice = (
            "`key_env` or `key_file` names what holds it" if is_key else _advice_for(name, _keys_of(table[0]))
        )
        return f"there is no setting `{name}` in [{'.'.join(table)}]; {advice}"
    return f"the setting {'.'.join(place)} is invalid: {first['msg'].removeprefix('Value error, ')}"


def _keys_of(table: str) -> Iterable[str]:
    """Returns the keys of a table, or of those in it."""
    several: dict[str, type[BaseModel]] = {"upstreams": UpstreamConfig, "routes": Route}
    return (several.get(table) or type(Settings.model_fields[table].default)).model_fields


def _advice_for(name: str, known: Iterable[str]) -> str:
    """Returns a hint: the most similar `known` name, or where all are listed."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"is `{near[0]}` meant?" if near else "docs/configuration.md lists all of them"


def _check_names(file: Path, known: Collection[str]) -> tuple[str, ...]:
    """Returns the names in the settings file; none without a file. Raises `ValueError` if it cannot be read, or has an
    unknown name.
    """
    if not file.is_file():
        return ()
    try:
        names = tomllib.loads(file.read_text("utf-8"))
    except OSError as fault:
        raise ValueError(f"{file} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:  # no TOML, or no UTF-8
        raise ValueError(f"{file} is not valid TOML: {fault}") from fault
    for name in names:
        if name not in known:
            advice = _advice_for(
                name.lower().removeprefix("proxy_"), [each for each in known if each.islower()]
            )
            raise ValueError(f"{file}: there is no setting `{name}`; {advice}")
    return tuple(names)
