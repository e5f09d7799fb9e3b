"""The old names of settings, which this release still accepts, and what replaces each. The next release does not.

Pure: the values of all sources come in, and come out under their new names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.agents.upstream.config import DEFAULT

Values: TypeAlias = Mapping[str, Any]


class OldName(msgspec.Struct, frozen=True):
    """What replaces an old name."""

    now: str
    """What the operator writes instead, as the end of a sentence that begins with `use`."""
    values: Callable[[Any, Values], Values]
    """Returns the new names with their values. Its arguments are the value of the old name, and the values of all
    sources."""


def _key_of_upstreams(key: str, *, of_all: bool = False) -> OldName:
    """Returns the replacement of a setting by a key of `[upstreams.default]`. `of_all`: also of the other tables."""

    def values(value: Any, given: Values) -> Values:
        tables = given.get("upstreams") or {}
        is_single = not tables or DEFAULT in tables or "upstream_url" in given
        names = {*tables, *([DEFAULT] if is_single else ())} if of_all else {DEFAULT}
        return {"upstreams": {name: {key: value} for name in names}}

    return OldName(f"`{key}` of [upstreams.{DEFAULT}]", values)


OLD_NAMES: Final[Mapping[str, OldName]] = {
    "upstream_ca_file": _key_of_upstreams("ca_file", of_all=True),
    "upstream_connect_timeout": _key_of_upstreams("connect_timeout", of_all=True),
    "upstream_first_byte_timeout": _key_of_upstreams("first_byte_timeout", of_all=True),
    "upstream_retries": _key_of_upstreams("retries"),
    "upstream_retry_wait": _key_of_upstreams("retry_wait"),
    "upstream_breaker_failures": _key_of_upstreams("breaker_failures"),
}
"""Each old key of the settings file. Its environment variable is `PROXY_` and the key in capitals."""


def old_names_in(given: Values, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of old names, by the name: those among the values `given`, and those of variables."""
    of_variables = {name: environ.get(f"PROXY_{name.upper()}", "") for name in OLD_NAMES}
    found = {name: value for name, value in of_variables.items() if value}
    return found | {name: given[name] for name in OLD_NAMES if name in given}


def values_of_new_names(given: Values, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that old names give to new ones. `given`: the values of all sources, by any name."""
    result: dict[str, Any] = {}
    for name, value in old_names_in(given, environ).items():
        _merge(result, OLD_NAMES[name].values(value, given))
    return result


def _merge(into: dict[str, Any], values: Values) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def advice_about(names: Iterable[str]) -> tuple[str, ...]:
    """Returns a sentence about each of these old names, which says what replaces it."""
    return tuple(
        f"`{name}` (PROXY_{name.upper()}) is an old name, which the next release does not accept: use "
        f"{OLD_NAMES[name].now}."
        for name in names
    )
