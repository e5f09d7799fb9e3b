"""The items of tools that the model server runs, as it gives them. Only ids and places are this answer's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.items import CODE_CALL, Activity
from codex_proxy.surfaces.base import raw_text
from codex_proxy.surfaces.items import PREFIXES, ItemDict
from codex_proxy.surfaces.responses.output import OutputItem, new_item_id

HOSTED_TYPES: Final = frozenset({"code_interpreter_call", "file_search_call", "image_generation_call"})
_RUNNING: Final = frozenset({"in_progress", "interpreting", "searching", "generating"})
_Fields = dict[str, msgspec.Raw]
_decode = msgspec.json.Decoder(_Fields).decode


class HostedItem(OutputItem):
    __slots__ = ("_fields",)

    def __init__(self, item: Activity, ids: IdSource) -> None:
        super().__init__(item, item.hosted, new_item_id(item.id, PREFIXES[item.hosted], ids))
        self._fields: _Fields = {}

    def set(self, json: bytes) -> None:
        """Sets the item as it is now."""
        self._fields = _decode(json)

    def whole(self) -> dict[str, Any]:
        status: Any = self._fields.get("status", self.status)
        if self.status != "in_progress" and _is_running(status):  # the server has never said how it ended
            status = "failed" if self.kind == "image_generation_call" else "incomplete"
        return {**self._fields, "type": self.kind, "id": raw_text(self.id), "status": status}


def _is_running(status: str | msgspec.Raw) -> bool:
    given = status if isinstance(status, str) else msgspec.json.decode(status)
    return isinstance(given, str) and given in _RUNNING


def event_fields(json: bytes) -> _Fields:
    """Returns the fields of an event."""
    return _decode(json)


def without_container(item: ItemDict) -> ItemDict:
    """Returns a call of `code_interpreter` without the container that it ran in, in which the model server would run
    later code, too; other items unchanged.
    """
    if item["type"] != CODE_CALL or not item.get("container_id"):
        return item
    return {name: value for name, value in item.items() if name != "container_id"}
