"""Random histories of responses and conversations: the store always says what a few dictionaries say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from codex_proxy.store.sqlite import removal
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    ItemReference,
    NewItem,
    NotFinished,
    NotStored,
    PageRequest,
    StoreConflict,
    StoredItem,
)
from tests.store.conftest import Connections
from tests.store.stored import OTHER, OWNER, Hands, conversation, hidden_item, item, response

T = TypeVar("T")

OWNERS = st.sampled_from([OWNER, OTHER])
RESPONSES = st.sampled_from([f"resp_{number}" for number in range(6)])
CONVERSATIONS = st.sampled_from(["conv_1", "conv_2", "conv_3"])
ITEM_IDS = [f"item_{number}" for number in range(7)]
TEXTS = st.sampled_from(["", "other"])
ITEMS = st.builds(item, st.sampled_from(ITEM_IDS), TEXTS) | st.builds(hidden_item, st.sampled_from(ITEM_IDS))
SIDES = st.lists(ITEMS, max_size=3, unique_by=lambda each: each.id)
NEW_ITEMS = st.lists(ITEMS | st.builds(ItemReference, st.sampled_from(ITEM_IDS)), max_size=3)


@dataclass
class KnownResponse:
    previous: str | None
    status: str
    input: list[StoredItem]
    output: list[StoredItem]
    deleted: bool = False


@dataclass
class KnownConversation:
    metadata: dict[str, str] = field(default_factory=dict)
    items: list[StoredItem] = field(default_factory=list)
    version: int = 0


class Machine(RuleBasedStateMachine):
    """One store and one model of it; every rule does the same to both and compares what they say."""

    engines: ClassVar[tuple[ModuleType, ...]] = (removal,)
    """The modules that remove what was deleted."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.patch = pytest.MonkeyPatch()
        for engine in self.engines:
            self.patch.setattr(engine, "PIECE", 2)  # so that most deletions take several writes
        self.open()

    def open(self) -> None:
        """Opens an empty store."""
        opened = Connections()
        self.store: Store = SqliteStore.in_memory(clock=Hands(), opener=opened)
        self.connection = opened[0]

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.outcome_of(self.store.close())
            self.runner.close()
            self.patch.undo()

    def outcome_of(self, asked: Coroutine[Any, Any, T]) -> T | type[Exception]:
        """The value, or the kind of error."""
        try:
            return self.runner.run(asked)
        except (NotFinished, NotStored, StoreConflict) as error:
            return type(error)


class StoreMachine(Machine):
    """Responses and conversations."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: dict[tuple[str, str], KnownResponse] = {}
        self.conversations: dict[tuple[str, str], KnownConversation] = {}

    def sizes(self, owner: str, id: str) -> tuple[int, int]:
        """Returns how many items and bytes the store says that a conversation has."""
        found: tuple[int, int] = self.connection.execute(
            "SELECT items, bytes FROM conversations WHERE owner = ? AND id = ?", (owner, id)
        ).fetchone()
        return found

    # --- what the model knows -------------------------------------------------------------------

    def live(self, owner: str, id: str | None) -> KnownResponse | None:
        known = self.responses.get((owner, id or ""))
        return None if known is None or known.deleted else known

    def continued(self, owner: str, id: str) -> bool:
        return any(of == owner and each.previous == id for (of, _), each in self.responses.items())

    def sweep(self) -> None:
        """Deleted responses that nothing continues leave."""
        while True:
            gone = [key for key, each in self.responses.items() if each.deleted and not self.continued(*key)]
            if not gone:
                return
            for key in gone:
                del self.responses[key]

    def visible(self, owner: str) -> dict[str, list[StoredItem]]:
        """What the owner may refer to; of several with one id, all."""
        found: dict[str, list[StoredItem]] = {}
        for (of, _), known in self.responses.items():
            if of == owner and not known.deleted:
                for each in (*known.input, *known.output):
                    found.setdefault(each.id, []).append(each)
        for (of, _), talk in self.conversations.items():
            if of == owner:
                for each in talk.items:
                    found.setdefault(each.id, []).append(each)
        return {
            id: [each for each in several if each.visible]
            for id, several in found.items()
            if any(each.visible for each in several)
        }

    def appended(self, talk: KnownConversation, sides: list[StoredItem]) -> None:
        for each in sides:
            if each.id not in [known.id for known in talk.items]:
                talk.items.append(each)
        talk.version += 1

    # --- responses ------------------------------------------------------------------------------

    @rule(
        owner=OWNERS,
        id=RESPONSES,
        after=st.none() | RESPONSES,
        status=st.sampled_from(["in_progress", "completed"]),
        input=SIDES,
        output=SIDES,
        to=st.none() | CONVERSATIONS,
    )
    def add_response(
        self,
        owner: str,
        id: str,
        after: str | None,
        status: str,
        input: list[StoredItem],
        output: list[StoredItem],
        to: str | None,
    ) -> None:
        said = self.outcome_of(
            self.store.add_response(
                response(id, owner=owner, after=after, status=status, background=True),
                input=input,
                output=output,
                append=to if to else None,
            )
        )
        talk = self.conversations.get((owner, to or ""))
        if after is not None and self.live(owner, after) is None:
            assert said is NotStored
        elif (owner, id) in self.responses:
            assert said is StoreConflict
        elif to is not None and talk is None:
            assert said is NotStored
        else:
            assert said is None
            self.responses[owner, id] = KnownResponse(after, status, input, output)
            if talk is not None:
                self.appended(talk, [*input, *output])

    @rule(owner=OWNERS, id=RESPONSES, output=SIDES, to=st.none() | CONVERSATIONS)
    def complete_response(self, owner: str, id: str, output: list[StoredItem], to: str | None) -> None:
        said = self.outcome_of(
            self.store.update_response(
                owner,
                id,
                status="completed",
                json=b"{}",
                output=output,
                append=to if to else None,
                only_from={"in_progress"},
            )
        )
        known, talk = self.live(owner, id), self.conversations.get((owner, to or ""))
        if known is None or known.status != "in_progress":
            assert said is False
        elif to is not None and talk is None:
            assert said is NotStored
        else:
            assert said is True
            known.status, known.output = "completed", output
            if talk is not None:
                self.appended(talk, [*known.input, *output])

    @rule(owner=OWNERS, id=RESPONSES)
    def delete_response(self, owner: str, id: str) -> None:
        known = self.live(owner, id)
        assert self.outcome_of(self.store.delete_response(owner, id)) is (known is not None)
        if known is not None:
            known.deleted = True
            self.sweep()

    # --- conversations --------------------------------------------------------------------------

    @rule(owner=OWNERS, id=CONVERSATIONS)
    def add_conversation(self, owner: str, id: str) -> None:
        said = self.outcome_of(self.store.add_conversation(conversation(id, owner=owner)))
        assert said == (StoreConflict if (owner, id) in self.conversations else ())
        self.conversations.setdefault((owner, id), KnownConversation())

    @rule(owner=OWNERS, id=CONVERSATIONS, changes=st.dictionaries(st.sampled_from("abc"), st.none() | TEXTS))
    def change_metadata(self, owner: str, id: str, changes: dict[str, str | None]) -> None:
        said = self.outcome_of(self.store.update_conversation(owner, id, changes))
        talk = self.conversations.get((owner, id))
        if talk is None:
            assert said is NotStored
        else:
            merged = talk.metadata | changes
            talk.metadata = {key: value for key, value in merged.items() if value is not None}

    @rule(owner=OWNERS, id=CONVERSATIONS, new=NEW_ITEMS)
    def append_items(self, owner: str, id: str, new: list[NewItem]) -> None:
        talk = self.conversations.get((owner, id))
        said = self.outcome_of(self.store.append_items(owner, id, new))
        may_refer = self.visible(owner)
        ids = [each.id for each in new]
        if talk is None or any(isinstance(each, ItemReference) and each.id not in may_refer for each in new):
            assert said is NotStored
        elif len(set(ids)) < len(ids) or set(ids) & {each.id for each in talk.items}:
            assert said is StoreConflict
        else:
            assert isinstance(said, tuple)
            for asked, given in zip(new, said, strict=True):
                assert given in may_refer[asked.id] if isinstance(asked, ItemReference) else given == asked
            talk.items += said
            talk.version += 1

    @rule(owner=OWNERS, id=CONVERSATIONS, item_id=st.sampled_from(ITEM_IDS))
    def delete_item(self, owner: str, id: str, item_id: str) -> None:
        said = self.outcome_of(self.store.delete_item(owner, id, item_id))
        talk = self.conversations.get((owner, id))
        found = [each for each in talk.items if each.id == item_id and each.visible] if talk else []
        assert (said is NotStored) is (not found)
        if talk is not None and found:
            talk.items.remove(found[0])
            talk.version += 1

    @rule(owner=OWNERS, id=CONVERSATIONS)
    def delete_conversation(self, owner: str, id: str) -> None:
        known = self.conversations.pop((owner, id), None)
        assert self.outcome_of(self.store.delete_conversation(owner, id)) is (known is not None)

    # --- what always holds ----------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        for (owner, id), talk in self.conversations.items():
            said = self.outcome_of(self.store.conversation(owner, id))
            assert (said.metadata, said.version) == (talk.metadata, talk.version)  # type: ignore[union-attr]
            scanned: list[StoredItem] = []
            self.outcome_of(self.store.scan_conversation(owner, id, scanned.append))
            assert scanned == talk.items
            assert self.sizes(owner, id) == (len(talk.items), sum(each.size for each in talk.items))
            shown = [each for each in talk.items if each.visible]
            page = self.outcome_of(self.store.items(owner, id, PageRequest(limit=2, order="asc")))
            assert (list(page.items), page.has_more) == (shown[:2], len(shown) > 2)  # type: ignore[union-attr]
        for (owner, id), known in self.responses.items():
            chain = self.outcome_of(self.store.context(owner, id))
            if known.deleted:
                assert chain is NotStored
                continue
            expected = []
            at: str | None = id
            while at is not None:
                turn = self.responses[owner, at]
                expected.append((at, tuple(turn.input), tuple(turn.output)))
                at = turn.previous
            assert [(each.response_id, each.input, each.output) for each in chain] == expected[::-1]  # type: ignore[union-attr]
            visited: list[StoredItem] = []
            read: object = self.outcome_of(self.store.scan_context(owner, id, visited.append))
            if known.status == "in_progress":
                assert read is NotFinished
                continue
            assert visited == [each for turn in expected[::-1] for side in turn[1:] for each in side]

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def nothing_is_kept_that_nobody_holds(self) -> None:
        held = {
            (owner, each.id, each.json, each.raw)
            for (owner, _), known in self.responses.items()
            for each in (*known.input, *known.output)
        } | {
            (owner, each.id, each.json, each.raw)
            for (owner, _), talk in self.conversations.items()
            for each in talk.items
        }
        self.outcome_of(self.store.sweep())
        stats = self.outcome_of(self.store.stats())
        assert stats.items == len(held)  # type: ignore[union-attr]
        live = sum(not each.deleted for each in self.responses.values())
        assert stats.responses == live  # type: ignore[union-attr]


SETTINGS = settings(
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestStoreAgainstItsModel = StoreMachine.TestCase
TestStoreAgainstItsModel.settings = SETTINGS
