"""The flags of the commands that set settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin
from urllib.parse import urlsplit

import click

from codex_proxy.agents.names import names
from codex_proxy.core.faults import UserError
from codex_proxy.parts import Flag, absent_part_text, absent_parts, parts
from codex_proxy.settings.fields import Settings

PART_FLAGS: Final = tuple(flag for part in parts() for flag in part.flags)
KEYS_OF_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    flag.name: tuple(flag.setting.split("."))
    for flag in PART_FLAGS
    if "." in flag.setting and not flag.value_of
}
"""The flags that set a table's key. Any other flag has the name of its setting."""


def settings_in(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that flags have set. Raises `click.UsageError` for a flag without the one whose value it
    takes.
    """
    found: dict[str, Any] = {}
    given = dict(flags)
    borrowing = [flag for flag in PART_FLAGS if flag.value_of and given.pop(flag.name, None)]
    for name, value in given.items():
        if value is None:
            continue
        if name in KEYS_OF_TABLES:
            table, key = KEYS_OF_TABLES[name]
            found.setdefault(table, {})[key] = value
        else:
            found[name] = value
    for flag in borrowing:
        table, key = flag.setting.split(".")
        if found.setdefault(table, {}).setdefault(key, given.get(flag.value_of)) is None:
            raise click.UsageError(f"{spelled(flag.name)} needs {spelled(flag.value_of)}.")
    return found


Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


_METAVARS: Final[Mapping[str, str]] = {
    "agent": f"[{'|'.join(names())}]",
    "agent_plugin": "MODULE:SPEC",
    "agent_confinement": "",
    "codex_bin": "PATH",
    "codex_home": "DIR",
    "workdir": "DIR",
    "sandbox": "",
    "host": "ADDRESS",
    "port": "N",
    "ollama": "",
    "api_key": "KEY",
    "log_level": "",
    "log_format": "",
    "log_content": "",
}
"""What stands for the value in `--help`; empty for a choice or a flag without one."""

_ADDED_HELP: Final[Mapping[str, str]] = {
    "codex_home": " Default: ~/.codex.",
    "workdir": " Default: the current one.",
    "api_key": " Set PROXY_API_KEY instead to keep it out of `ps`.",
    "log_content": " Others may read the log.",
}
"""What is said about the flag after the description of its setting."""


def spelled(flag: str) -> str:
    """Returns how a flag is written, from its name with `_`."""
    return f"--{flag.replace('_', '-')}"


def _option(name: str, metavar: str) -> Option:
    """Returns the flag of a setting; type, description and default are those of the field."""
    table, key = KEYS_OF_TABLES.get(name, ("", name))
    fields = (type(Settings.model_fields[table].default) if table else Settings).model_fields
    field, about = fields[key], fields[key].description or ""
    text = f"{about[0].upper()}{about[1:]}."
    if isinstance(field.default, str | int) and field.default:
        text += f" Default: {field.default}."
    flag, text = spelled(name), text + _ADDED_HELP.get(name, "")
    if field.annotation is bool:
        return click.option(flag, is_flag=True, default=None, help=text)
    kinds = [each for each in (field.annotation, *get_args(field.annotation)) if get_origin(each) is Literal]
    if kinds:
        return click.option(flag, type=click.Choice(get_args(kinds[0])), help=text)
    return click.option(flag, type=int if field.annotation is int else str, metavar=metavar, help=text)


def _flag_of_absent_part(name: str, part: str) -> Option:
    """Returns a flag that is not shown, and raises `click.UsageError` when it is given."""
    flag = spelled(name)

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{flag} belongs to {absent_part_text(part)}.")

    return click.option(flag, is_flag=False, flag_value="", hidden=True, expose_value=False, callback=refuse)


def config_option(name: str, callback: Callable[..., Any] | None = None) -> Option:
    """Returns the option for the settings file. The command gets the path as `name`, or what `callback` makes of it."""
    return click.option(
        "--config",
        name,
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=callback,
        help="TOML file with settings (default: ~/.config/codex-proxy/config.toml).",
    )


CONFIG_OPTION = config_option("config_file")


def address(_context: object, _option: object, url: str | None) -> str | None:
    """Returns the address of a server as it was given. Raises `UserError` for what is none."""
    try:
        parts = urlsplit(url or "http://localhost")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # also for a port that is none
        usable = False
    if not usable or url == "":
        raise UserError(f"--base-url {url} is not an address like http://127.0.0.1:11435/v1.")
    return url


URL_OPTION: Final = click.option(
    "--base-url",
    metavar="URL",
    callback=address,
    help="Address of the server (default: that of the settings).",
)


def _option_of_part(flag: Flag) -> Option:
    if flag.value_of:
        return click.option(spelled(flag.name), is_flag=True, default=None, help=flag.help)
    return _option(flag.name, flag.metavar)


SETTING_OPTIONS: tuple[Option, ...] = (
    *(_option(*each) for each in _METAVARS.items()),
    *(_option_of_part(flag) for flag in PART_FLAGS if not flag.serve_only),
    *(_flag_of_absent_part(name, part) for part, known in absent_parts().items() for name in known.flags),
    CONFIG_OPTION,
)
SERVE_OPTIONS: tuple[Option, ...] = (
    *SETTING_OPTIONS,
    *(_option_of_part(flag) for flag in PART_FLAGS if flag.serve_only),
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    return _with_options(SETTING_OPTIONS, command)


def with_serve_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of `serve`, which has all."""
    return _with_options(SERVE_OPTIONS, command)


def _with_options(options: Sequence[Option], command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command
