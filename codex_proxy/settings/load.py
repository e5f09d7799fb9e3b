"""Loads the settings, and says what is wrong with a name or value, or has no effect."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import AliasChoices, BaseModel, ValidationError

from codex_proxy.core.faults import UserError
from codex_proxy.core.toml_text import TomlError, toml_of
from codex_proxy.files.private import read_regular
from codex_proxy.parts import absent_part, absent_part_text, parts
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.flags import KEYS_OF_TABLES, settings_in, spelled
from codex_proxy.settings.sources import default_config_file, settings_file

MAX_FILE_BYTES: Final = 1 << 20


def load(flags: dict[str, Any], config_file: Path | None) -> Settings:
    """Returns the settings of `flags`, else the environment, else the settings file: `config_file`, or for None the
    default file, which need not exist. Raises `UserError`, which names the flag, the variable or the file.
    """
    if config_file is not None and not config_file.is_file():
        is_other = os.path.lexists(config_file)
        raise UserError(f"the file {config_file} {'is no regular file' if is_other else 'does not exist'}")
    file = config_file or default_config_file()
    _check_names(file, _names_in_file())
    _check_variables(os.environ)
    given = settings_in(flags)
    try:
        with settings_file(file):
            settings = Settings(**given)
    except ValidationError as error:
        raise UserError(_text_of(error, flags, file)) from error
    except ValueError as error:  # a variable of a table that is not JSON
        raise UserError(str(error)) from error
    settings._file = file
    settings._unknown_variables = unknown_variables(os.environ)
    return settings


_OF_ABSENT_PART: Final = "is a setting of {}: remove it"


def _check_variables(environ: Mapping[str, str]) -> None:
    """Raises `UserError` for a variable that sets a setting of an absent part."""
    for variable, value in environ.items():
        name = variable.upper()
        setting = name.removeprefix("PROXY_").lower() if name.startswith("PROXY_") else name
        tables = (setting, setting.partition("_")[0])  # PROXY_ACP_COMMAND: a key of the table [acp]
        if value and (part := next(filter(None, (absent_part("settings", each) for each in tables)), "")):
            raise UserError(f"{variable} {_OF_ABSENT_PART.format(absent_part_text(part))}")


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


_ALWAYS_CALLS: Final = "it is not needed: calls are always `tool_calls`, never text"
_TRACES: Final = "traces are set by OpenTelemetry's own variables here (docs/operations.md)"
OF_OTHER_SERVERS: Final[Mapping[str, str]] = {
    "PROXY_USE_APP_SERVER": "it is `PROXY_AGENT` here",
    "PROXY_SANDBOX_MODE": "it is `PROXY_SANDBOX` here",
    "PROXY_SSE_KEEPALIVE_MS": "it is `HEARTBEAT_INTERVAL` here, in seconds",
    "PROXY_CODEX_WORKDIR": "it is `PROXY_WORKDIR` here",
    "PROXY_ENABLE_METRICS": "it is `PROXY_METRICS` here",
    "PROXY_METRICS_TOKEN": "it is `PROXY_METRICS_KEY` here",
    "PROXY_METRICS_ALLOW_LOOPBACK": "it is not needed: without a key, loopback always gets metrics",
    "PROXY_TRUST_PROXY": "it is `PROXY_TRUSTED_PROXIES` here",
    "PROXY_PROTECT_MODELS": "it is not needed: with keys, the list of models always asks for one",
    "PROXY_ENABLE_RESPONSES": "it is not needed: Responses are always served",
    "PROXY_OUTPUT_MODE": _ALWAYS_CALLS,
    "PROXY_RESPONSES_OUTPUT_MODE": _ALWAYS_CALLS,
    "PROXY_STOP_AFTER_TOOLS*": _ALWAYS_CALLS,
    "PROXY_TOOL_BLOCK_*": _ALWAYS_CALLS,
    "PROXY_SUPPRESS_TAIL_AFTER_TOOLS": _ALWAYS_CALLS,
    "PROXY_SANITIZE_METADATA": "it is not needed: clients never get Codex's metadata",
    "PROXY_ENABLE_OTEL": _TRACES,
    "PROXY_OTEL_*": _TRACES,
}
"""Hints for variables of codex-completions-api (docs/migration.md), which are no misspellings."""


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that begin with `PROXY_` and set nothing, each with a hint at what may be meant."""
    known = {variable for name in Settings.model_fields for variable in variables_of(name)}
    tables = tuple(
        f"PROXY_{name.upper()}_"
        for name, field in Settings.model_fields.items()
        if isinstance(field.default, BaseModel | dict)
    )
    unknown = (name for name, value in environ.items() if value and name.upper().startswith("PROXY_"))
    return {
        name: _hint_of_other_server(name.upper()) or _advice_for(name.upper(), known)
        for name in unknown
        if name.upper() not in known and not name.upper().startswith(tables)
    }


def _hint_of_other_server(name: str) -> str | None:
    return next((hint for old, hint in OF_OTHER_SERVERS.items() if fnmatchcase(name, old)), None)


def _text_of(error: ValidationError, flags: Mapping[str, Any], file: Path) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part != "[key]"]
    reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    if not place:
        return reason
    *table, name = place
    if first["type"] == "extra_forbidden" and table:
        keys = _keys_of(table[0])
        is_key = "key_env" in keys and name in ("key", "api_key")
        advice = "`key_env` or `key_file` names what holds it" if is_key else _advice_for(name, keys)
        source = _flag_or_variable(place, flags) or file
        return f"{source}: there is no setting `{name}` in [{'.'.join(table)}]; {advice}"
    source = _flag_or_variable(place, flags) or f"{file}: {'.'.join(place)}"
    return f"{source} is invalid: {reason}"


def _flag_or_variable(place: Sequence[str], flags: Mapping[str, Any]) -> str | None:
    flag = next((name for name, key in KEYS_OF_TABLES.items() if key == tuple(place)), place[0])
    if flags.get(flag) is not None:
        return spelled(flag)
    inner = (f"PROXY_{'_'.join(place[:end]).upper()}" for end in range(1, len(place) + 1))
    given = {name.upper(): name for name, value in os.environ.items() if value}
    return next((given[each] for each in (*variables_of(place[0]), *inner) if each in given), None)


def _keys_of(table: str) -> Collection[str]:
    kind = Settings.model_fields[table].annotation  # a model, or a dict of models
    model: type[BaseModel] = next(each for each in (*get_args(kind), kind) if hasattr(each, "model_fields"))
    return model.model_fields


def _advice_for(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"is `{near[0]}` meant?" if near else "docs/configuration.md lists all of them"


def read_settings(file: Path) -> dict[str, Any]:
    """Returns the entries of a settings file, none without a file. Raises `UserError` if it cannot be read."""
    try:
        return toml_of(read_regular(file, MAX_FILE_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as fault:
        raise UserError(f"{file} cannot be read: {fault.strerror}") from fault
    except OverflowError as fault:
        raise UserError(f"{file} has more than {MAX_FILE_BYTES >> 20} MiB") from fault
    except TomlError as fault:
        raise UserError(f"{file} {fault}") from fault


def _check_names(file: Path, known: Collection[str]) -> None:
    """Raises `UserError` if the file cannot be read, or has a name that is not `known`."""
    for name in read_settings(file):
        if name not in known and (part := absent_part("settings", name)):
            raise UserError(f"{file}: {name} {_OF_ABSENT_PART.format(absent_part_text(part))}")
        if name not in known:
            advice = _advice_for(
                name.lower().removeprefix("proxy_"), [each for each in known if each.islower()]
            )
            raise UserError(f"{file}: there is no setting `{name}`; {advice}")


_NEEDS_ONE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "metrics_key": ("metrics",),
    "webhooks.secret": ("webhooks.urls",),
}
"""The settings that a setting of the core needs, of which one is enough."""


def needs_one_of() -> dict[str, tuple[str, ...]]:
    """Returns, by the name of a setting that has an effect only with others, those of which one is enough."""
    found = dict(_NEEDS_ONE_OF)
    for part in parts():
        for name, needed in part.needs.items():
            found[name] = (*needed, *found.get(name, ()))
    return found


def unused_settings(settings: Settings) -> list[str]:
    """Returns the settings that are set without the setting that they need, as texts for a message: `PROXY_METRICS_KEY
    (only with PROXY_METRICS)`.
    """
    return [
        f"{_variable(name)} (only with {' or '.join(map(_variable, needed))})"
        for name, needed in needs_one_of().items()
        if _is_set(settings, name) and not any(attrgetter(each)(settings) for each in needed)
    ]


def _is_set(settings: Settings, name: str) -> bool:
    table, _, key = name.rpartition(".")
    owner = attrgetter(table)(settings) if table else settings
    return key in owner.model_fields_set


def _variable(name: str) -> str:
    table, _, key = name.partition(".")
    return "_".join((variables_of(table)[0], key.upper())) if key else variables_of(table)[0]
