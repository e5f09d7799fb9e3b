"""Sets values in the text of a settings file, and keeps everything else, also comments and order. Raises
`DocumentError` if something would be lost.
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import MutableMapping, Sequence
from typing import Any

import tomlkit
import tomlkit.exceptions
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from codex_proxy.parts.clients.clients import Entry, Format


class DocumentError(Exception):
    """A settings file cannot be changed. The message ends a sentence: `it is not TOML`."""


def set_values(text: str, format: Format, entries: Sequence[Entry]) -> str:
    """Returns the text with the entries set, unchanged if it has them."""
    if "\r\n" in text:
        return set_values(text.replace("\r\n", "\n"), format, entries).replace("\n", "\r\n")
    head = _HEAD.match(text) if format == "yaml" else None
    if head is not None:
        return head[0] + set_values(text[head.end() :], format, entries)
    document = _parse(text, format)
    wanted = _plain(document)
    _put_all(wanted, entries)
    if wanted == _plain(document):
        return text
    _put_all(document, entries)
    new = _serialize(document, format, text)
    if _plain(_parse(new, format)) != wanted:
        raise DocumentError("the change would alter other values in it, too")
    if set(_comments(text)) - set(_comments(new)):
        raise DocumentError("a comment in it would be lost")
    return new


_HEAD = re.compile(r"(?:[ ]*(?:#[^\n]*)?\n)*---[ ]*(?:#[^\n]*)?\n")
"""Matches the lines before a YAML document and its `---`, which the library would drop."""


def _comments(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.lstrip().startswith("#")]


def _parse(text: str, format: Format) -> Any:
    try:
        document = _PARSERS[format](text)
    except (tomlkit.exceptions.TOMLKitError, YAMLError, json.JSONDecodeError) as error:
        more = " (comments are not JSON, and would be lost)" if format == "json" else ""
        reason = str(error).strip().partition("\n")[0]
        raise DocumentError(f"it is not {format.upper()}{more}: {reason}") from error
    if not isinstance(document, MutableMapping):
        raise DocumentError("it is not an object of named settings")
    return document


def _parse_yaml(text: str) -> Any:
    yaml = _yaml(text)
    document = yaml.load(text)
    return yaml.map() if document is None else document


def _parse_json(text: str) -> Any:
    return json.loads(text) if text.strip() else {}


_PARSERS = {"toml": tomlkit.parse, "yaml": _parse_yaml, "json": _parse_json}


def _serialize(document: Any, format: Format, before: str) -> str:
    if format == "toml":
        return tomlkit.dumps(document)
    if format == "yaml":
        out = io.StringIO()
        _yaml(before).dump(document, out)
        return out.getvalue()
    return json.dumps(document, indent=_indent(before), ensure_ascii=False) + "\n"


def _yaml(text: str) -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.allow_duplicate_keys = False
    offset = _dash_offset(text)
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _dash_offset(text: str) -> int:
    """Returns by how much the first list is indented below its key; 2 without one."""
    found = re.search(
        r"^( *)[^\s#-][^\n]*:[ ]*(?:#[^\n]*)?\n(?:[ ]*(?:#[^\n]*)?\n)*( *)- ", text, re.MULTILINE
    )
    return max(0, len(found[2]) - len(found[1])) if found else 2


def _indent(text: str) -> int | str:
    found = re.search(r"^[{\[]\s*\n([ \t]+)", text)
    if found is None:
        return 2
    return "\t" if "\t" in found[1] else len(found[1])


def _plain(document: Any) -> dict[str, Any]:
    unwrapped = document.unwrap() if isinstance(document, tomlkit.TOMLDocument) else document
    plain: dict[str, Any] = _data(unwrapped)
    return plain


def _data(value: Any) -> Any:
    if isinstance(value, MutableMapping):
        return {str(key): _data(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_data(each) for each in value]
    return copy.copy(value)


def _put_all(document: MutableMapping[str, Any], entries: Sequence[Entry]) -> None:
    for entry in entries:
        *way, last = entry.path
        parent = document
        for name in way:
            if parent.get(name) is None:
                parent[name] = {}
            parent = parent[name]
            if not isinstance(parent, MutableMapping):
                raise DocumentError(f"`{name}` in it has an unexpected type")
        if entry.list_key:
            _put_item(parent, last, entry)
        elif not (entry.only_if_missing and last in parent):
            parent[last] = copy.deepcopy(entry.value)


def _put_item(parent: MutableMapping[str, Any], name: str, entry: Entry) -> None:
    if parent.get(name) is None:
        parent[name] = []
    items = parent[name]
    if not isinstance(items, list):
        raise DocumentError(f"`{name}` in it is not a list")
    for index, item in enumerate(items):
        if isinstance(item, MutableMapping) and item.get(entry.list_key) == entry.value[entry.list_key]:
            for key, value in entry.value.items():
                if item.get(key) != value:
                    items[index][key] = copy.deepcopy(value)
            return
    items.append(copy.deepcopy(entry.value))
