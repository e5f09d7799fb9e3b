"""Things to store, and a clock, for the tests beside it."""

from __future__ import annotations

from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    PageRequest,
    Record,
    StoredConversation,
    StoredItem,
    StoredResponse,
)

OWNER = "key-1"
OTHER = "key-2"


class Hands:
    """A clock that stands still until the test moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return self.now


def item(id: str, text: str = "", *, raw: bytes = b"", created: float = 0.0) -> StoredItem:
    return StoredItem(id, f'{{"id":"{id}","text":"{text}"}}'.encode(), raw, created)


def hidden_item(id: str) -> StoredItem:
    """What only the model sees."""
    return StoredItem(id, b"", f'{{"hidden":"{id}"}}'.encode())


def items(*ids: str) -> list[StoredItem]:
    return [item(id) for id in ids]


def response(
    id: str,
    *,
    after: str | None = None,
    owner: str = OWNER,
    status: str = "completed",
    created: float = 1_700_000_000.0,
    background: bool = False,
    conversation: str | None = None,
    size: int = 0,
) -> StoredResponse:
    return StoredResponse(
        owner=owner,
        id=id,
        status=status,
        created=created,
        json=f'{{"id":"{id}","padding":"{"x" * size}"}}'.encode(),
        previous_id=after,
        conversation_id=conversation,
        background=background,
        recovery=b"how to go on" if background else b"",
    )


def conversation(id: str, *, owner: str = OWNER, **metadata: str) -> StoredConversation:
    return StoredConversation(owner=owner, id=id, created=1_700_000_000.0, metadata=metadata)


def record(id: str, text: str = "", *, kind: str = "item", parent: str = "", busy: bool = False) -> Record:
    json = f'{{"id":"{id}","text":"{text}"}}'.encode()
    return Record(kind=kind, id=id, json=json, created=1_700_000_000.0, parent=parent, busy=busy)


def session(id: str, text: str = "", *, busy: bool = False) -> Record:
    return record(id, text, kind="session", busy=busy)


async def turn(
    store: Store,
    id: str,
    *,
    after: str | None = None,
    append: str | None = None,
    created: float = 1_700_000_000.0,
    size: int = 0,
) -> None:
    """A whole turn: `in-<id>` said, `out-<id>` answered."""
    await store.add_response(
        response(id, after=after, created=created, size=size),
        input=[item(f"in-{id}")],
        output=[item(f"out-{id}")],
        append=append,
    )


async def context_ids(store: Store, response_id: str, owner: str = OWNER) -> list[str]:
    return [
        each.id for turn in await store.context(owner, response_id) for each in (*turn.input, *turn.output)
    ]


async def conversation_ids(store: Store, id: str, page: PageRequest | None = None) -> list[str]:
    listed = await store.items(OWNER, id, page or PageRequest(limit=100_000, order="asc"))
    return [each.id for each in listed.items]


async def whole_turns(store: Store, acknowledged: list[str]) -> list[str]:
    """Everything acknowledged is there, as whole turns in `conv_1`. Returns the ids of all responses there."""
    missing = [id for id in acknowledged if await store.response(OWNER, id) is None]
    assert missing == []
    listed = await conversation_ids(store, "conv_1")
    kept = [id.removeprefix("in-") for id in listed[::2]]
    assert listed == [f"{side}-{id}" for id in kept for side in ("in", "out")]
    assert len(kept) == (await store.stats()).responses
    return kept
