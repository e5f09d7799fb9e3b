"""Reads the JSON Schema of an app-server's protocol: finds the messages by their methods, and the fields of a
message.

Comes in: the text that `codex app-server generate-json-schema` writes. It lists the requests of clients, the requests
of the server and the notifications, each as a method with a reference to its parameters. Raises `SchemaError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

Way = Literal["request", "answer", "notification", "question", "reply"]
"""The kinds of message. `request`: the parameters of a request that we send; `answer`: its result; `notification`;
`question`: the parameters of a request that the agent sends; `reply`: the result that we send."""

DEFINITIONS: Final[Mapping[str, str]] = {
    "rawResponseItem/completed": "RawResponseItemCompletedNotification",
    "rawResponse/completed": "RawResponseCompletedNotification",
    "account/read": "GetAccountResponse",
}
"""The definitions of messages that the schema does not lead to: notifications that its list lacks, and answers whose
definition has another name than the request."""


class SchemaError(ValueError):
    """The text is no schema of an app-server. The message says why."""


class ProtocolSchema:
    """The schema of one binary."""

    def __init__(self, text: bytes) -> None:
        try:
            self._document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SchemaError(f"it is not JSON: {error}") from error
        lists = ("ClientRequest", "ServerNotification", "ServerRequest")
        self._lists = {name: self._methods(name) for name in lists}

    def _methods(self, name: str) -> dict[str, Any]:
        """Returns the messages of a list: the node of the parameters by method."""
        listed = self._pointed(f"#/definitions/{name}")
        variants = listed.get("oneOf") if isinstance(listed, dict) else None
        if not isinstance(variants, list):
            raise SchemaError(f"it has no list {name}")
        methods = {}
        for each in variants:
            properties = each.get("properties", {}) if isinstance(each, dict) else {}
            for method in properties.get("method", {}).get("enum", ()):
                methods[method] = properties.get("params", True)
        return methods

    def _pointed(self, reference: str) -> Any:
        """Returns the node that a reference names; None where there is none."""
        node: Any = self._document
        for part in reference.removeprefix("#/").split("/"):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def message(self, way: Way, method: str) -> Any:
        """Returns the node of a message; None where there is no such message."""
        if way in ("request", "answer"):
            listed = self._lists["ClientRequest"].get(method)
        elif way == "notification":
            listed = self._lists["ServerNotification"].get(method)
        else:
            listed = self._lists["ServerRequest"].get(method)
        if way in ("answer", "reply") and listed is not None:
            reference = str(listed.get("$ref", "")) if isinstance(listed, dict) else ""
            return self._named(method) or self._pointed(reference.removesuffix("Params") + "Response")
        return self._named(method) if listed is None and way == "notification" else listed

    def _named(self, method: str) -> Any:
        """Returns the definition in `DEFINITIONS` for a method, in the second version of the API or without a
        version."""
        name = DEFINITIONS.get(method, "")
        return self._pointed(f"#/definitions/v2/{name}") or self._pointed(f"#/definitions/{name}")

    def at(self, node: Any, path: str) -> list[Any]:
        """Returns the nodes at a path."""
        found = [node]
        for step in path.split("."):
            step, _, tag = step.rstrip(">").partition("<")
            name = step.removesuffix("[]")
            found = self._inside(found, partial(_property, name=name))
            if name != step:
                found = self._inside(found, _element)
            if tag:
                found = [inner for each in found for inner in self._variants(each, tag)]
        return found

    def _inside(self, found: list[Any], part: Callable[[dict[str, Any]], Any]) -> list[Any]:
        """Returns one part of every node that has it."""
        parts = (part(inner) for each in found for inner in self.nodes(each))
        return [each for each in parts if each is not None]

    def nodes(self, node: Any, seen: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
        """Yields a node and its alternatives, with references followed."""
        if not isinstance(node, dict):
            return
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            yield from self.nodes(self._pointed(reference), seen | {reference})
        yield node
        for key in ("allOf", "anyOf", "oneOf"):
            for each in node.get(key) or ():
                yield from self.nodes(each, seen)

    def _variants(self, node: Any, tag: str) -> Iterator[dict[str, Any]]:
        """Yields those alternatives of a node that have this `type`."""
        for each in self.nodes(node):
            kind = (each.get("properties") or {}).get("type")
            if isinstance(kind, dict) and tag in (kind.get("enum") or ()):
                yield each


def _property(node: dict[str, Any], name: str) -> Any:
    return (node.get("properties") or {}).get(name)


def _element(node: dict[str, Any]) -> Any:
    return node.get("items")
