"""The rows of a store: the columns to select and their conversions, also to lines of an export; the checksums, so that
damaged data is never returned; and the tables that are copied and checked. Conversions raise `StoreDamaged`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from codex_proxy.core.tokens import FIGURES
from codex_proxy.store.values import (
    MAX_METADATA_KEYS,
    ChainTurn,
    Frame,
    StoreConflict,
    StoreDamaged,
    StoredConversation,
    StoredItem,
    StoredResponse,
)

Kind: TypeAlias = Literal["response", "conversation"]
KINDS: Final[tuple[Kind, ...]] = ("response", "conversation")

INPUT_SIDE: Final = 0
OUTPUT_SIDE: Final = 1
"""The side of a response's output; `INPUT_SIDE` is that of its input. Each item of a response is on one."""

ITEM_COLUMNS: Final = "items.id, items.json, items.raw, items.created, items.digest"
RESPONSE_COLUMNS: Final = (
    "owner, id, status, created, json, previous_id, conversation_id, background, recovery, json_sum,"
    " recovery_sum"
)
CONVERSATION_COLUMNS: Final = "owner, id, created, version, metadata, metadata_sum"

_metadata_decoder = msgspec.json.Decoder(dict[str, str])


def item_of(row: Iterable[Any]) -> StoredItem:
    id, json, raw, created, digest = row
    if item_digest(json, raw) != digest:
        raise damage_error(f"the item {id}")
    return StoredItem(id, json, raw, created)


def response_of(row: Iterable[Any]) -> StoredResponse:
    owner, id, status, created, json, previous_id, conversation_id, background, recovery, *sums = row
    verify(json, sums[0], f"the response {id}")
    verify(recovery, sums[1], f"the response {id}")
    return StoredResponse(
        owner=owner,
        id=id,
        status=status,
        created=created,
        json=json,
        previous_id=previous_id,
        conversation_id=conversation_id,
        background=bool(background),
        recovery=recovery,
    )


def conversation_of(row: Iterable[Any]) -> StoredConversation:
    owner, id, created, version, metadata, stored = row
    verify(metadata, stored, f"the metadata of the conversation {id}")
    return StoredConversation(
        owner=owner, id=id, created=created, version=version, metadata=_metadata_decoder.decode(metadata)
    )


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Returns metadata as JSON. Raises `StoreConflict` for too many keys."""
    if len(metadata) > MAX_METADATA_KEYS:
        raise StoreConflict("too_many_keys", f"metadata may have at most {MAX_METADATA_KEYS} keys")
    return msgspec.json.encode(metadata)


def merge_metadata(metadata: Mapping[str, str], changes: Mapping[str, str | None]) -> bytes:
    """Returns metadata with `changes` as JSON; None deletes a key. Raises `StoreConflict`."""
    merged = {**metadata, **changes}
    return encode_metadata({key: value for key, value in merged.items() if value is not None})


def turns_of(rows: Iterable[Sequence[Any]]) -> list[ChainTurn]:
    """Returns the turns of rows with a response's id, a side (None: it has no items) and the `ITEM_COLUMNS`."""
    sides: dict[str, tuple[list[StoredItem], list[StoredItem]]] = {}
    for response_id, side, *item in rows:
        turn = sides.setdefault(response_id, ([], []))
        if side is not None:
            turn[side].append(item_of(item))
    return [
        ChainTurn(response_id, tuple(turn[INPUT_SIDE]), tuple(turn[OUTPUT_SIDE]))
        for response_id, turn in sides.items()
    ]


def frames_of(rows: Iterable[Sequence[Any]], response_id: str, max_bytes: int | None) -> list[Frame]:
    """Returns the frames of rows with number, data and checksum: at most `max_bytes`, but at least one."""
    what = f"an event of the response {response_id}"
    found: list[Frame] = []
    size = 0
    for number, data, stored in rows:
        size += len(data)
        if found and max_bytes is not None and size > max_bytes:
            break
        found.append((number, verify(data, stored, what)))
    return found


# --- an export ------------------------------------------------------------------------------------

OBJECTS_AT_ONCE: Final = 20
"""The objects that are read at once, with all their items."""


def export_line(kind: Kind, columns: Iterable[Any], items: Sequence[tuple[int, StoredItem]]) -> bytes:
    """Returns an object's line. `columns` are `RESPONSE_COLUMNS` or `CONVERSATION_COLUMNS`; each item comes with its
    side (`INPUT_SIDE` or `OUTPUT_SIDE`). Raises `StoreDamaged`.
    """
    line: dict[str, object]
    if kind == "conversation":
        conversation = conversation_of(columns)
        line = {
            "owner": conversation.owner,
            "id": conversation.id,
            "created": conversation.created,
            "metadata": conversation.metadata,
            "items": [_item(item) for _, item in items],
        }
    else:
        response = response_of(columns)
        line = {
            "owner": response.owner,
            "id": response.id,
            "status": response.status,
            "created": response.created,
            "previous_response_id": response.previous_id,
            "conversation": response.conversation_id,
            "response": _raw(response.json),
            "input": [_item(item) for side, item in items if side == INPUT_SIDE],
            "output": [_item(item) for side, item in items if side == OUTPUT_SIDE],
        }
    return msgspec.json.encode({"type": kind, **line}) + b"\n"


def _item(item: StoredItem) -> dict[str, object]:
    return {"id": item.id, "created": item.created, "item": _raw(item.json), "raw": _raw(item.raw)}


def _raw(json: bytes) -> msgspec.Raw | None:
    return msgspec.Raw(json) if json else None


# --- checksums: a digest of an item, which also finds equal ones; they detect accidents, not tampering ------------


def checksum(data: object) -> int:
    """Returns the CRC-32 of bytes; -1 for another type, which is damage."""
    return zlib.crc32(data) if isinstance(data, bytes) else -1


def item_digest(json: object, raw: object) -> bytes:
    """Returns the digest of JSON and raw form; empty if one is not bytes, which is damage."""
    if not (isinstance(json, bytes) and isinstance(raw, bytes)):
        return b""
    length = len(json).to_bytes(8, "big")
    return blake2b(length + json + raw, digest_size=16).digest()


def verify(data: bytes, stored: int, what: str) -> bytes:
    """Returns `data`; raises `StoreDamaged`, naming it `what`, if its checksum is not `stored`."""
    if checksum(data) != stored:
        raise damage_error(what)
    return data


def damage_error(what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{what} in the store is damaged: its checksum does not match; see `codex-proxy store check`"
    )


# --- the tables that are copied and checked -------------------------------------------------------

Row: TypeAlias = Sequence[Any]
"""A row's values, in the order of `CopiedTable.columns`."""


class CopiedTable(NamedTuple):
    name: str
    key: tuple[str, ...]
    others: tuple[str, ...]
    """The other columns, but those that an engine fills itself."""
    at_once: int = 500
    """Maximum rows in memory at a time."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.key + self.others

    def select(self, *, first: bool) -> str:
        """Returns the SQL statement (as in `queries`) of `Store.rows_from`: with `first` from the first row, else from
        a key on. Its parameters are the key and the limit.
        """
        count = 0 if first else len(self.key)
        *key, limit = (f"?{number}" for number in range(1, count + 2))
        where = "" if first else f" WHERE ({', '.join(self.key)}) >= ({', '.join(key)})"
        order = ", ".join(self.key)
        return f"SELECT {', '.join(self.columns)} FROM @{self.name}{where} ORDER BY {order} LIMIT {limit}"

    def select_last(self) -> str:
        order = ", ".join(f"{name} DESC" for name in self.key)
        return f"SELECT {', '.join(self.columns)} FROM @{self.name} ORDER BY {order} LIMIT 1"


TABLES: Final = (
    CopiedTable("items", ("seq",), ("owner", "id", "digest", "created", "json", "raw"), at_once=20),
    CopiedTable(
        "responses",
        ("seq",),
        (
            *("owner", "id", "parent", "previous_id", "conversation_id", "status", "background", "created"),
            *("unfinished", "deleted"),
        ),
    ),
    CopiedTable(
        "response_bodies", ("response",), ("json", "json_sum", "recovery", "recovery_sum"), at_once=20
    ),
    CopiedTable("response_items", ("response", "side", "position"), ("item", "item_id", "visible")),
    CopiedTable("frames", ("response", "number"), ("data", "data_sum"), at_once=20),
    CopiedTable(
        "conversations",
        ("seq",),
        (
            *("owner", "id", "created", "touched", "version", "next_position", "metadata", "metadata_sum"),
            *("items", "bytes", "deleted"),
        ),
    ),
    CopiedTable("conversation_items", ("conversation", "position"), ("item", "item_id", "visible")),
    CopiedTable("steps", ("seq",), ("owner", "key", "created", "value", "value_sum"), at_once=20),
    CopiedTable("usage", ("owner", "hour", "model"), FIGURES),
    CopiedTable(
        "records",
        ("seq",),
        (
            *("owner", "kind", "id", "parent", "created", "touched"),
            *("busy", "deleted", "json_sum", "json"),
        ),
        at_once=20,
    ),
    CopiedTable("webhooks", ("seq",), ("event_id", "url", "body", "tries")),
)
"""The tables, each after those that it refers to."""

FLAGS: Final = frozenset({"background", "unfinished", "deleted", "visible", "busy"})
"""Boolean columns, which SQLite has as numbers."""
