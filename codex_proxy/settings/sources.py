"""Where settings come from: a flag, else the environment, else the settings file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from codex_proxy.core.faults import UserError

_file: Path | None = None


@contextmanager
def settings_file(file: Path) -> Iterator[None]:
    """Makes settings that are created in the `with` read this file; others read none."""
    global _file
    _file = file
    try:
        yield
    finally:
        _file = None


def home_folder() -> Path:
    """Returns the user's home. Raises `UserError` where it would depend on the current folder, or be the root: servers
    and commands would use the files of others.
    """
    given = os.environ.get("HOME")
    if given is not None and not os.path.isabs(given):
        raise UserError(f"HOME is {given!r}: set it to the absolute path of your home folder, or unset it")
    return Path.home()


def folder_of_user(variable: str, in_home: str) -> Path:
    """Returns the folder that an XDG variable names, else the one in the home. As XDG has it, a relative path is not
    obeyed. Raises `UserError`.
    """
    named = os.environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else home_folder() / in_home


def default_config_file() -> Path:
    """Returns `$XDG_CONFIG_HOME/codex-proxy/config.toml`, or that in `~/.config`. Raises `UserError`."""
    return folder_of_user("XDG_CONFIG_HOME", ".config") / "codex-proxy" / "config.toml"


class SourcedSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="PROXY_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        extra="ignore",
        populate_by_name=True,
        defer_build=True,  # of the classes that others inherit from, only the last one is used
        env_ignore_empty=True,
        loc_by_alias=False,  # errors name the setting
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, toml_file=_file)
        return init_settings, env_settings, file
