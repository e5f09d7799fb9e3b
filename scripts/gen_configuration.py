"""Writes docs/configuration.md from the settings themselves; a test fails while the two differ.

.venv/bin/python scripts/gen_configuration.py
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from click import Option
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from codex_proxy.cli import serve
from codex_proxy.config import Settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Settings

*Written by `scripts/gen_configuration.py` from the settings themselves: change `codex_proxy/config.py`, then run it.*

A setting is read from a flag of `codex-proxy serve`, else from a variable of the environment, else from a TOML
file, else it has its default. This is the order of the tools a user knows: what is typed for one start wins over
what a shell exports, and that over what is kept on disk. An empty variable counts as none.

The file is `~/.config/codex-proxy/config.toml` (under `$XDG_CONFIG_HOME` where that is set), or the one that
`--config` names. Its keys are the names in the first column, at the top level:

```toml
agent = "codex-app-server"
port = 8080
max_running_turns = 4
```

| setting | flag | variable | default | values | meaning |
| --- | --- | --- | --- | --- | --- |
"""

DEFAULTS = {
    "codex_home": "`~/.codex`",
    "workdir": "the folder of the start",
    "state_dir": "`~/.local/state/codex-proxy` (`$XDG_STATE_HOME`)",
}
"""Defaults that depend on the user or the moment, in words."""

NOUNS = {"str": "text", "int": "number", "float": "number", "Path": "folder", "SecretStr": "secret"}


def flags() -> dict[str, str]:
    """Settings that have a flag, and what it is called."""
    options = (option for option in serve.params if isinstance(option, Option))
    return {option.name: option.opts[-1] for option in options if option.name}


def variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return next(str(choice) for choice in alias.choices if str(choice).isupper())
    return f"PROXY_{name.upper()}"


def values(kind: Any) -> str:
    """What a setting may hold, in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return " ".join(f"`{choice}`" for choice in get_args(kind))
    if origin in (Union, types.UnionType):
        return values(next(each for each in get_args(kind) if each is not type(None)))
    if kind is bool:
        return "`true` `false`"
    return NOUNS[kind.__name__]


def default(name: str, field: FieldInfo) -> str:
    if name in DEFAULTS:
        return DEFAULTS[name]
    value = field.default
    if value is None or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def document() -> str:
    """The whole file."""
    by_flag = flags()
    rows = []
    for name, field in Settings.model_fields.items():
        flag = f"`{by_flag[name]}`" if name in by_flag else ""
        cells = (
            f"`{name}`",
            flag,
            f"`{variable(name, field)}`",
            default(name, field),
            " ".join(f"`{each}`" for each in field.examples or ()) or values(field.annotation),
            field.description or "",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
