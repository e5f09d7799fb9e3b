"""Schemas of real releases, cut down to what the contract reads: tests/golden/schemas, for tests without a binary."""

from __future__ import annotations

import json
from typing import Any

from codex_proxy.agents.codex_app_server.contract import CONTRACT, DEFINITIONS, check_contract

LISTS = ("ClientRequest", "ServerNotification", "ServerRequest")
DROPPED = ("description", "title", "$schema", "default", "examples", "format")
"""Keywords that are for people."""


def cut_down(schema: bytes) -> str:
    """Returns the schema without messages and definitions that no clause of the contract needs. The check of the
    contract gives the same result as with the whole schema.
    """
    document = json.loads(schema)
    methods = {clause.method for clause in CONTRACT}
    for name in LISTS:
        variants = document["definitions"][name]["oneOf"]
        document["definitions"][name]["oneOf"] = [each for each in variants if _method(each) in methods]
    kept = _reachable(document, methods)
    document["definitions"] = _filter(document["definitions"], "#/definitions/", kept)
    small = json.dumps(
        _plain({"definitions": document["definitions"]}), separators=(",", ":"), sort_keys=True
    )
    assert check_contract(small.encode()) == check_contract(schema)
    return small + "\n"


def _method(variant: dict[str, Any]) -> str:
    names = variant.get("properties", {}).get("method", {}).get("enum") or [""]
    return str(names[0])


def _reachable(document: dict[str, Any], methods: set[str]) -> set[str]:
    """Returns the pointers of all definitions that the messages refer to, directly or not."""
    every = _pointers(document["definitions"], "#/definitions/")
    ends = {f"{method.rpartition('/')[2]}" for method in methods}
    wanted = [
        pointer
        for pointer in every
        if (name := pointer.rpartition("/")[2]) in (*LISTS, *DEFINITIONS.values())
        or (name.endswith("Response") and any(end.lower() in name.lower() for end in ends))
    ]
    found: set[str] = set()
    while wanted:
        pointer = wanted.pop()
        if pointer in found or pointer not in every:
            continue
        found.add(pointer)
        wanted += _references(every[pointer])
    return found


def _pointers(definitions: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the definitions by pointer, also those in a group of definitions (`v2`)."""
    found: dict[str, Any] = {}
    for name, node in definitions.items():
        if _is_group(node):
            found |= _pointers(node, f"{prefix}{name}/")
        else:
            found[prefix + name] = node
    return found


def _is_group(node: Any) -> bool:
    keywords = {"type", "enum", "oneOf", "anyOf", "allOf", "properties", "$ref", "const", "description"}
    return isinstance(node, dict) and bool(node) and not keywords & set(node)


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []


def _filter(definitions: dict[str, Any], prefix: str, kept: set[str]) -> dict[str, Any]:
    found = {}
    for name, node in definitions.items():
        if _is_group(node):
            found[name] = _filter(node, f"{prefix}{name}/", kept)
        elif prefix + name in kept:
            found[name] = node
    return found


def _plain(node: Any, *, names: bool = False) -> Any:
    """Returns the node without texts for people; `names`: its keys are names of properties, not keywords."""
    if isinstance(node, dict):
        return {
            key: _plain(value, names=key in ("properties", "definitions") and not names)
            for key, value in node.items()
            if names or key not in DROPPED
        }
    return [_plain(value) for value in node] if isinstance(node, list) else node
