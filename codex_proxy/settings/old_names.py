"""The old names of settings, which the next release does not accept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.parts import parts
from codex_proxy.settings.tables import ONLY_TABLE

Values: TypeAlias = dict[str, Any]


class OldName(msgspec.Struct, frozen=True):
    now: str
    """What to write instead: the end of a sentence that begins with `use`."""
    apply: Callable[[Any, Values], None]
    """Sets the new name's value from the old name's value (the first argument) in `Values`, unless the new name has
    one.
    """


def _set_key(values: Values, table: str, key: str, value: Any) -> None:
    keys = values.get(table) or {}
    if isinstance(keys, dict) and key not in keys:
        values[table] = {**keys, key: value}


def _moved_to_key(table: str, key: str) -> OldName:
    now = f"`{key}` of [{table}] (PROXY_{table.upper()}_{key.upper()})"
    return OldName(now, lambda value, values: _set_key(values, table, key, value))


def _moved_to_tables(setting: str, name: str, key: str) -> OldName:
    """Returns the old name of a `key` of the table `name` (`default`, or `*` for each table) of a setting."""

    def apply(value: Any, values: Values) -> None:
        found = values.get(setting) or {}
        if not isinstance(found, dict):
            return  # what is no table is an error of its own
        tables = dict(found)
        for each in (tuple(tables) or (ONLY_TABLE,)) if name == "*" else (name,):
            _set_key(tables, each, key, value)
        values[setting] = tables

    return OldName(f"`{key}` of [{setting}.{ONLY_TABLE if name == '*' else name}]", apply)


def _old_name(now: str) -> OldName:
    """Returns what a part declares (`Part.old_names`)."""
    table, *names, key = now.split(".")
    return _moved_to_tables(table, names[0], key) if names else _moved_to_key(table, key)


def _renamed_setting(name: str, now: str, convert: Callable[[Any], Any] = lambda value: value) -> OldName:
    """Returns the old name of a setting; `convert` makes the new value."""

    def apply(value: Any, values: Values) -> None:
        if name not in values:
            values[name] = convert(value)

    return OldName(now, apply)


def _apply_store_path(value: Any, values: Values) -> None:
    if values.get("store", "sqlite") == "sqlite":
        path = str(value)
        # With a `/`, `store` is a path.
        values["store"] = path if "/" in path or path == ":memory:" else f"./{path}"


def _removed_setting(reason: str) -> OldName:
    return OldName(f"nothing, since it has no effect any more: {reason}", lambda value, values: None)


_OF_KEPT_THREADS: Final = "the processes follow from `kept_threads` (PROXY_KEPT_THREADS)"
_OF_STORE: Final = (
    "it is fixed; `store_max_bytes` (PROXY_STORE_MAX_BYTES) and `store_max_age` bound the store"
)
_OF_MEMORY: Final = "it follows from the memory of the machine or container"

OLD_NAMES: Final[Mapping[str, OldName]] = {
    **{name: _old_name(now) for part in parts() for name, now in part.old_names.items()},
    "sse_keepalive_ms": _renamed_setting(
        "heartbeat_interval",
        "`heartbeat_interval` (HEARTBEAT_INTERVAL), in seconds",
        lambda ms: float(ms) / 1000,
    ),
    "mcp_start_wait": _renamed_setting("queue_wait", "`queue_wait` (PROXY_QUEUE_WAIT)"),
    "max_queued_turns": _removed_setting("64 turns of a key may wait, and none with `queue_wait = 0`"),
    "child_open_files": _moved_to_key("child_limits", "open_files"),
    "child_address_space": _moved_to_key("child_limits", "address_space"),
    "child_processes": _moved_to_key("child_limits", "processes"),
    "webhook_urls": _moved_to_key("webhooks", "urls"),
    "webhook_secret": _moved_to_key("webhooks", "secret"),
    "store_path": OldName("the path as `store` (PROXY_STORE)", _apply_store_path),
    "claude_processes": _removed_setting(_OF_KEPT_THREADS),
    "app_server_processes": _removed_setting(_OF_KEPT_THREADS),
    "app_server_max_age": _removed_setting("it is 6 hours"),
    "app_server_max_turns": _removed_setting("it is 10,000 turns"),
    "app_server_max_memory": _removed_setting("it is 1 GiB"),
    "codex_lite": _removed_setting("the model's entry in Codex's catalog decides"),
    "fake_markers": _removed_setting("the variable FAKE_CODEX_MARKERS=off switches them off"),
    "key_body_bytes": _removed_setting(_OF_MEMORY),
    "total_body_bytes": _removed_setting(_OF_MEMORY),
    "store_frames_max_age": _removed_setting("it is a day"),
    "store_max_responses": _removed_setting(_OF_STORE),
    "store_max_context_items": _removed_setting("it is 20,000 items"),
    "store_max_context_bytes": _removed_setting("it is 64 MiB"),
    "store_prune_seconds": _removed_setting("it is 10 minutes"),
}
"""Old names by the key of the settings file; the variable is `PROXY_` and the key in capitals."""


def old_names_in(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    of_variables = {name: environ.get(f"PROXY_{name.upper()}", "") for name in OLD_NAMES}
    found = {name: value for name, value in of_variables.items() if value}
    return found | {name: given[name] for name in OLD_NAMES if name in given}


def with_new_names(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns `given` and the values of old names, by new names."""
    values = {name: value for name, value in given.items() if name not in OLD_NAMES}
    for name, value in old_names_in(given, environ).items():
        OLD_NAMES[name].apply(value, values)
    return values


def advice_about(names: Iterable[str]) -> tuple[str, ...]:
    """Returns a text for each of these old names, which says what replaces it."""
    return tuple(
        f"`{name}` (PROXY_{name.upper()}) is an old name, which the next release does not accept: use "
        f"{OLD_NAMES[name].now}."
        for name in names
    )
