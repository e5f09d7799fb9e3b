"""Writes docs/configuration.md from the settings themselves; a test fails while the two differ.

.venv/bin/python scripts/gen_configuration.py
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from click import Option
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from codex_proxy.admission.routes import Route
from codex_proxy.agents.codex.codex_specs import AUTO
from codex_proxy.agents.registry import specs
from codex_proxy.cli import serve
from codex_proxy.parts import agent_tables
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.flags import KEYS_OF_TABLES
from codex_proxy.settings.tables import AgentTable

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Settings

*Written by `scripts/gen_configuration.py` from `codex_proxy/settings/fields.py` and the settings of the parts.*

A value comes from a flag of `codex-proxy serve`, else from an environment variable, else from the settings file, else
it is the default. An empty variable counts as unset. The variable is `PROXY_` and the setting's name in capitals
(`PROXY_PORT`, and `PROXY_ACP_ENV` for a table's key), unless the list names another. Switches are `true` or `false`.

The file is `~/.config/codex-proxy/config.toml` (in `$XDG_CONFIG_HOME`, if that is an absolute path), or the one in
`--config`. Its keys are the settings' names:

```toml
agent = "codex-app-server"
port = 8080
max_running_turns = 4
```

Each entry has the setting, its flag, its variable if that has another name, and in parentheses its default.

"""

DEFAULTS = {
    "codex_home": "`~/.codex`",
    "workdir": "the current folder",
    "state_dir": "`~/.local/state/codex-proxy` (`$XDG_STATE_HOME`)",
}
"""Defaults that depend on the user or the moment, in words."""


def flags() -> dict[str, str]:
    """Returns the flags by the names of their settings."""
    options = (option for option in serve.params if isinstance(option, Option))
    return {option.name: option.opts[-1] for option in options if option.name}


def variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return f"PROXY_{name.upper()}"


def choices(kind: Any) -> tuple[str, ...]:
    """Returns the values that a setting may have, if they are listed."""
    if get_origin(kind) in (Union, types.UnionType):
        return choices(next(each for each in get_args(kind) if each is not type(None)))
    return get_args(kind) if get_origin(kind) is Literal else ()


def meaning(field: FieldInfo, values: Sequence[Any]) -> str:
    """Returns the description, with the possible values."""
    listed = " ".join(f"`{each}`" for each in values)
    return f"{field.description}{f' ({listed})' if listed else ''}"


def entry(head: str, value: str, words: str) -> str:
    """Returns a line of a list; an empty default is left out."""
    return f"- {head}{'' if value == 'none' else f' ({value})'}: {words}"


def default(name: str, field: FieldInfo) -> str:
    if name in DEFAULTS:
        return DEFAULTS[name]
    value = "required" if field.is_required() else field.default
    if value is None or value in ("", (), {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


TABLES = """
## Several agents

See [agents](agents.md#several-agents-in-one-server), [upstreams](upstreams.md#several-upstreams) and
[routes](agents.md#routes). In a variable, all tables of a kind are one JSON object.

{tables}"""


def table_rows(table: type[BaseModel], name: str = "") -> str:
    """Returns the keys of a table, one in a line, with their flags if it is the setting `name`."""
    by_flag = {place: flag for flag, place in KEYS_OF_TABLES.items()}
    rows = []
    for key, field in table.model_fields.items():
        flag = by_flag.get((name, key), "").replace("_", "-")
        head = f"`{key}`" + (f", `--{flag}`" if flag else "")
        rows.append(entry(head, default(key, field), meaning(field, choices(field.annotation))))
    return "\n".join(rows) + "\n"


def single_tables() -> str:
    """Returns the text about settings that are a table."""
    parts = []
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            rows = table_rows(type(field.default), name)
            parts.append(f"\n## `[{name}]`: {field.description}\n\n{rows}")
    return "".join(parts)


def own_settings() -> str:
    """Returns the list of settings that each agent may have in its table."""
    agents: dict[str, list[str]] = {}
    for spec in (AUTO, *specs()):
        agents.setdefault(", ".join(f"`{name}`" for name in sorted(spec.settings)), []).append(
            f"`{spec.name}`"
        )
    lines = [f"- {', '.join(names)}: {settings}" for settings, names in agents.items() if settings]
    return "Settings from above that an agent may have for itself:\n\n" + "\n".join(lines) + "\n"


def tables_of_agents() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yields the settings of parts that are tables of agents, with what each table has."""
    for name in agent_tables():
        yield name, get_args(Settings.model_fields[name].annotation)[1]


def tables() -> str:
    """Returns the text about the tables."""
    parts = (
        *(f"### `[{name}.NAME]`\n\n{table_rows(table)}" for name, table in tables_of_agents()),
        "### `[agents.NAME]`\n\n" + table_rows(AgentTable) + "\n" + own_settings(),
        "### `[routes.NAME]`\n\n" + table_rows(Route),
    )
    return TABLES.format(tables="\n".join(parts))


def document() -> str:
    """Returns the whole file."""
    by_flag = flags()
    rows = []
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            continue
        other = variable(name, field)
        names = (name, by_flag.get(name), None if other == f"PROXY_{name.upper()}" else other)
        head = ", ".join(f"`{each}`" for each in names if each)
        rows.append(
            entry(head, default(name, field), meaning(field, field.examples or choices(field.annotation)))
        )
    return HEAD + "\n".join(rows) + "\n" + single_tables() + tables()


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
