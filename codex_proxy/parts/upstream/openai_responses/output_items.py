"""The output items of an answer while they arrive. Servers leave ids and indexes out, give several items the same one,
or an item another id in each event (Copilot, mistral.rs), so an item is known by both together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from codex_proxy.agents.shared.conversions import CustomInput, FunctionArguments
from codex_proxy.core.items import ToolKind
from codex_proxy.core.json_values import canonical_json, encode_json, objects_in, text_at, without_surrogates

CALL_KINDS: Final[Mapping[str, ToolKind]] = {"function_call": "function", "custom_tool_call": "custom"}
"""The kind of a call by its item's type."""
CALL_TEXTS: Final[Mapping[ToolKind, str]] = {"function": "arguments", "custom": "input"}
"""The field with the model's text, by the kind of call."""
MAX_COMPARED_ITEMS: Final = 100
"""Maximum open items to which a complete one is compared whose id and place tell nothing."""
_Key = tuple[Hashable, ...]
TextKey = tuple[str, int]
"""A text of an item: its field, and the number of its part."""
CALL: Final = "call"
"""The family of calls. The family of another item is its type."""
CALL_KEY: Final[TextKey] = ("call", 0)
_MESSAGE_FIELDS: Final = ("text", "refusal")
_REASONING_FIELDS: Final = ("summary", "content")
MAX_COMPARED: Final = 1 << 20
"""Maximum characters of arguments that are compared as JSON."""


def family_of(kind: str) -> str:
    return CALL if kind in CALL_KINDS else kind


class OutputItem:
    """An item, from its first event on."""

    __slots__ = (
        "begun", "call_id", "cited", "echo", "family", "finished", "form", "id", "implied", "index", "item_id",
        "kind", "name", "pieces", "reader", "told", "vouched",
    )  # fmt: skip

    def __init__(self, id: str, kind: str) -> None:
        self.id = id
        """Its id in events: the server's, if no other item has it."""
        self.kind = kind
        self.family = family_of(kind)
        self.form: dict[str, Any] = {}
        """The item as the server has given it last."""
        self.item_id = ""
        self.index: Hashable = None
        self.call_id = self.name = ""
        self.pieces: dict[TextKey, list[str]] = {}
        """The texts so far."""
        self.vouched: set[TextKey] = set()
        """Texts that came whole."""
        self.echo: dict[TextKey, int] = {}
        """Where late deltas go on to repeat a text that came whole, before them."""
        self.implied = False
        """Whether it was begun by another event than `output_item.added`."""
        self.begun = True
        """Whether it is open: neither `output_item.done` nor the last event has come."""
        self.finished = False
        """Whether its last events were made."""
        self.told = False
        """Whether the client has heard of this call."""
        self.reader: CustomInput | FunctionArguments | None = None
        """Reads the arguments of a function's call, or the input of a custom tool's call that travels as one."""
        self.cited = 0
        """Number of annotations that came in events."""

    def text(self, key: TextKey) -> str:
        pieces = self.pieces.get(key)
        if not pieces:
            return ""
        if len(pieces) > 1:
            pieces[:] = ("".join(pieces),)
        return pieces[0]

    def field(self, name: str) -> str:
        """Returns the texts of all parts of a field."""
        return "".join(self.text(key) for key in sorted(self.pieces) if key[0] == name)

    def rest_of(self, key: TextKey, whole: str) -> str | None:
        """Returns what a whole text has beyond the pieces; None if it contradicts them."""
        return rest_of(self.text(key), whole, is_json=self.kind == "function_call")

    def rest_of_field(self, name: str, whole: str) -> str | None:
        """Returns what a whole field has beyond the pieces of all its parts; None if it contradicts them."""
        return rest_of(self.field(name), whole, is_json=self.kind == "function_call")

    def may_be(self, form: Mapping[str, Any]) -> bool:
        """Whether a complete item of the last event may be this one, by its type, name and texts."""
        return (
            self.family == family_of(text_at(form, "type")) and _fits(self, form) and self.agrees_with(form)
        )

    def agrees_with(self, form: Mapping[str, Any]) -> bool:
        """Whether the texts of a complete item do not contradict those that came."""
        return all(
            self.rest_of_field(name, "".join(parts)) is not None for name, parts in texts_in(form).items()
        )


def rest_of(said: str, whole: str, *, is_json: bool) -> str | None:
    """Returns what `whole` has beyond `said`; empty if it is less or the same, None if it is something else. White
    space at the ends makes no difference, nor in JSON.
    """
    if whole.startswith(said):
        return whole[len(said) :]
    said, whole = without_surrogates(said).lstrip(), without_surrogates(whole).lstrip()
    if whole.startswith(said):
        return whole[len(said) :]
    if said.startswith(whole.rstrip()):
        return ""
    if is_json and len(said) + len(whole) <= MAX_COMPARED and canonical_json(said) == canonical_json(whole):
        return ""
    return None


def texts_in(form: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the texts of a complete item, of each part, by their field."""
    kind = text_at(form, "type")
    if kind in CALL_KINDS:
        return {CALL: [call_text(form)]}
    if kind == "message":
        parts = objects_in(form.get("content"))
        return {name: [text_at(part, name) for part in parts] for name in _MESSAGE_FIELDS}
    if kind == "reasoning":
        return {
            name: [text_at(part, "text") for part in objects_in(form.get(name))] for name in _REASONING_FIELDS
        }
    return {}


def call_text(form: Mapping[str, Any]) -> str:
    """Returns the arguments or the input of a call."""
    given = form.get(CALL_TEXTS[CALL_KINDS[form["type"]]])
    return encode_json(given).decode() if isinstance(given, dict) else text_at(given)


class OutputItems:
    """Finds the item to which an event belongs."""

    def __init__(self) -> None:
        self.all: list[OutputItem] = []
        """All items, as they began."""
        self._open: dict[_Key, dict[OutputItem, None]] = {}
        """The open items by what tells them (`_keys_of`)."""
        self._by_call_id: dict[str, OutputItem] = {}
        self._ids: Counter[str] = Counter()
        """The number of items that have had an id; below, those with an index, and those with a call id."""
        self._indexes: Counter[Hashable] = Counter()
        self._call_ids: Counter[str] = Counter()
        self._ended: set[tuple[str, str, Hashable, str, int]] = set()
        """What tells a complete item that comes again: type, ids, index, and a hash of its texts."""

    def add(self, item: OutputItem) -> None:
        self.all.append(item)
        for key in _keys_of(item):
            self._open.setdefault(key, {})[item] = None
        if item.item_id:
            self._ids[item.item_id] += 1
        if item.index is not None:
            self._indexes[item.index] += 1
        if call_id := text_at(item.form, "call_id"):
            self._call_ids[call_id] += 1
            self._by_call_id[call_id] = item

    def end(self, item: OutputItem) -> None:
        """Notes that nothing more belongs to an item."""
        item.begun = False
        self._by_call_id.pop(text_at(item.form, "call_id"), None)
        for key in _keys_of(item):
            self._open[key].pop(item, None)

    def has_id(self, id: str) -> bool:
        return id in self._ids

    def has_call_id(self, call_id: str) -> bool:
        return call_id in self._call_ids

    def is_repeated(self, form: Mapping[str, Any], item_id: str, index: Hashable) -> bool:
        """Whether a complete item has come before, word by word; notes it. Without an id and an index nobody can
        tell.
        """
        kind, call_id = text_at(form, "type"), text_at(form, "call_id")
        sign = (kind, item_id, index, call_id, hash(tuple(map(tuple, texts_in(form).values()))))
        known = sign in self._ended and (item_id != "" or index is not None)
        self._ended.add(sign)
        return known

    def _newest(self, *key: Hashable) -> list[OutputItem]:
        """Returns the newest open items with this key, at most two."""
        return list(islice(reversed(self._open.get(key, {})), 2))

    def of_event(self, item_id: str, index: Hashable, family: str) -> Sequence[OutputItem] | None:
        """Returns the open items to which an event may belong: several if nobody can tell, none if it begins another,
        None if its item has ended.
        """
        named = self._newest("id", item_id, family)
        placed = self._newest("index", index, family)
        if named and placed:
            if self._ids[item_id] == 1:
                return named
            if self._indexes[index] == 1:
                return placed
            return [item for item in named if item in placed] or (*named, *placed)
        if named or placed:
            return named or placed
        found = self._newest("family", family)
        if found and not found[0].implied:
            return found  # the server announces its items
        if item_id in self._ids or (index in self._indexes and not item_id):
            return None
        return () if item_id or index is not None else found

    def of_complete(self, form: Mapping[str, Any], item_id: str, index: Hashable) -> OutputItem | None:
        """Returns the open item that a complete one ends, if any."""
        family, call_id = family_of(text_at(form, "type")), text_at(form, "call_id")
        if family == CALL and self._call_ids[call_id] == 1 and call_id in self._by_call_id:
            return self._by_call_id[call_id]
        found = self.of_event(item_id, index, family)
        if found is None:
            return None
        if len(found) == 1 and _fits(found[0], form):
            return found[0]
        some = islice(self._open.get(("family", family), ()), MAX_COMPARED_ITEMS)
        fitting = [item for item in some if _fits(item, form)]
        if len(fitting) > 1:
            said = [item for item in fitting if item.pieces and item.agrees_with(form)]
            fitting = said or [item for item in fitting if not item.pieces]
        return fitting[0] if fitting and found else None

    def begun_before(self, form: Mapping[str, Any], item_id: str, index: Hashable) -> OutputItem | None:
        """Returns the open item whose beginning this is, told again or late."""
        signs = (
            family_of(text_at(form, "type")),
            item_id,
            index,
            text_at(form, "call_id"),
            text_at(form, "name"),
        )
        newest = next(iter(self._newest("id", item_id) or self._newest("index", index)), None)
        if newest is None:
            return None
        known = (newest.family, newest.item_id, newest.index, newest.call_id, newest.name)
        return newest if known == signs else None

    def match(self, output: Sequence[dict[str, Any]]) -> list[OutputItem | None]:
        """Returns the item that each of the last event's items is: by id, else position and texts, else texts, else
        the next of its family. The others are new.
        """
        left = dict.fromkeys(self.all)
        ids = {item.item_id: item for item in self.all if self._ids[item.item_id] == 1}
        call_ids = {item.call_id: item for item in self.all if self._call_ids[item.call_id] == 1}
        indexes = {item.index: item for item in self.all if self._indexes[item.index] == 1}
        found: list[OutputItem | None] = []
        for position, form in enumerate(output):
            family, call_id = family_of(text_at(form, "type")), text_at(form, "call_id")
            nth = self.all[position] if position < len(self.all) else None
            named = call_ids.get(call_id) if family == CALL else None
            likely = (named, ids.get(text_at(form, "id")), indexes.get(position, nth))
            item = next(
                (each for each in likely if each is not None and each in left and each.may_be(form)), None
            )
            found.append(item)
            if item is not None:
                del left[item]
        by_text: dict[Any, list[OutputItem]] = {}
        by_family: dict[str, list[OutputItem]] = {}
        for item in reversed(left):
            by_text.setdefault((item.family, item.name, item.field(_main_field(item.family))), []).append(
                item
            )
            by_family.setdefault(item.family, []).append(item)
        for by_what, places in ((_signs_of, by_text), (_family_of, by_family)):
            for position, form in enumerate(output):
                same = places.get(by_what(form), []) if found[position] is None else []
                while same and same[-1] not in left:
                    same.pop()
                if same:
                    item = found[position] = same.pop()
                    del left[item]
        return found


def _signs_of(form: Mapping[str, Any]) -> Any:
    family = _family_of(form)
    return (
        family,
        text_at(form, "name") if family == CALL else "",
        "".join(texts_in(form).get(_main_field(family), ())),
    )


def _family_of(form: Mapping[str, Any]) -> str:
    return family_of(text_at(form, "type"))


def _main_field(family: str) -> str:
    return {"message": "text", "reasoning": "summary"}.get(family, family)


def _keys_of(item: OutputItem) -> Iterator[_Key]:
    """Yields what an open item is found by. An id and an index also with the family: an answer may have thousands of
    items with the same one.
    """
    yield "family", item.family
    if item.item_id:
        yield "id", item.item_id
        yield "id", item.item_id, item.family
    if item.index is not None:
        yield "index", item.index
        yield "index", item.index, item.family


def _fits(item: OutputItem, form: Mapping[str, Any]) -> bool:
    """Whether a complete item may be this one, by its name."""
    name = text_at(form, "name")
    return not (name and item.name and name != item.name)
