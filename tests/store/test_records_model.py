"""Random histories of records: the store always says what a dictionary says."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from codex_proxy.store.values import NotStored, Page, PageRequest, Record, RecordKey
from tests.store.stored import OTHER, OWNER, record
from tests.store.test_model import OWNERS, SETTINGS, Machine

KEYS = [("root", "r1"), ("root", "r2"), ("part", "p1"), ("part", "p2"), ("leaf", "l1"), ("leaf", "l2")]
PARENTS = st.sampled_from(["", "", "r1", "r2", "p1", "l1"])
RECORDS = st.builds(
    lambda key, text, parent, busy: record(key[1], text, kind=key[0], parent=parent, busy=busy),
    st.sampled_from(KEYS),
    st.sampled_from(["", "other", "x" * 9000]),
    PARENTS,
    st.booleans(),
)
SOME_KEYS = st.lists(st.sampled_from(KEYS), max_size=2)


class RecordsMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, dict[RecordKey, Record]] = {OWNER: {}, OTHER: {}}
        """The records of each owner, in the order of their lists."""

    def remove(self, known: dict[RecordKey, Record], key: RecordKey) -> bool:
        if known.pop(key, None) is None:
            return False
        for below in [each.key for each in known.values() if each.parent == key[1]]:
            self.remove(known, below)
        return True

    @rule(
        owner=OWNERS,
        records=st.lists(RECORDS, max_size=5),
        gone=SOME_KEYS,
        require=st.none() | st.sampled_from(KEYS),
    )
    def write(
        self, owner: str, records: list[Record], gone: list[RecordKey], require: RecordKey | None
    ) -> None:
        said = self.outcome_of(self.store.write_records(owner, records, gone=gone, require=require))
        changed = dict(self.known[owner])
        is_right = require is None or require in changed
        for each in records:
            if each.key in gone:
                continue
            before = changed.get(each.key)
            first = next(one for one in records if one.key == each.key)
            is_right &= first.parent in ("", *(id for _, id in changed))
            parent = first.parent if before is None else before.parent
            changed[each.key] = msgspec.structs.replace(each, parent=parent)
        assert (said is NotStored) is not is_right
        if is_right:
            for key in gone:
                self.remove(changed, key)
            self.known[owner] = changed

    @rule(owner=OWNERS, key=st.sampled_from(KEYS))
    def delete(self, owner: str, key: RecordKey) -> None:
        said = self.outcome_of(self.store.delete_record(owner, *key))
        assert said is self.remove(self.known[owner], key)

    @rule()
    def sweep(self) -> None:
        self.outcome_of(self.store.sweep())
        stats = self.outcome_of(self.store.stats())
        assert stats.records == sum(map(len, self.known.values()))  # type: ignore[union-attr]

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        for owner, known in self.known.items():
            for key in KEYS:
                assert self.outcome_of(self.store.record(owner, *key)) == known.get(key)
            for kind in ("root", "part", "leaf"):
                for parent in {"", *(each.parent for each in known.values())}:
                    listed = [each for each in known.values() if (each.kind, each.parent) == (kind, parent)]
                    page = self.outcome_of(
                        self.store.records(owner, kind, PageRequest(1, "asc"), parent=parent)
                    )
                    assert page == Page(tuple(listed[:1]), has_more=len(listed) > 1)
        for kind in ("root", "part", "leaf"):
            busy = self.outcome_of(self.store.busy_records(kind))
            expected = [
                (owner, each) for owner in self.known for each in self.known[owner].values() if each.busy
            ]
            assert sorted(busy, key=str) == sorted(  # type: ignore[arg-type]
                (each for each in expected if each[1].kind == kind), key=str
            )


TestRecordsAgainstTheirModel = RecordsMachine.TestCase
TestRecordsAgainstTheirModel.settings = SETTINGS
