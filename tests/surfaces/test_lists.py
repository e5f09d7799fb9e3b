"""Pages of stored items, as the SDKs page through them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault
from codex_proxy.surfaces.lists import Page, page_of, paged

ITEMS = [{"id": f"msg_{n}"} for n in range(5)]


def ids(page: dict[str, Any]) -> list[str]:
    return [item["id"] for item in page["data"]]


def test_the_newest_come_first_unless_asked_otherwise() -> None:
    assert ids(paged(ITEMS, page_of({}, default=2))) == ["msg_4", "msg_3"]
    assert ids(paged(ITEMS, page_of({"order": "asc", "limit": "1"}, default=2))) == ["msg_0"]


def test_a_page_names_its_ends_and_says_truthfully_whether_more_follows() -> None:
    page = paged(ITEMS, Page(3, "asc", "msg_0"))
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_1", "msg_3", True)
    assert not paged(ITEMS, Page(4, "asc", "msg_0"))["has_more"]


def test_an_empty_list_has_no_ends() -> None:
    assert paged([], Page(3)) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@given(st.integers(0, 12), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
def test_paging_through_a_list_gives_every_item_once(count: int, limit: int, order: str) -> None:
    items = [{"id": str(n)} for n in range(count)]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = paged(items, page_of({"limit": str(limit), "order": order, **after}, default=20))
        seen += ids(page)
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert sorted(seen, key=int, reverse=order == "desc") == seen
    assert len(seen) == count


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1.5", "٣", "1_0", "9" * 5000])
def test_a_limit_is_from_1_to_100(limit: str) -> None:
    with pytest.raises(Fault) as raised:
        page_of({"limit": limit}, default=20)
    assert raised.value.failure.param == "limit"


def test_limits_that_are_allowed_are_taken() -> None:
    assert [page_of({"limit": limit}, default=20).limit for limit in ("1", "100", "")] == [1, 100, 20]


@pytest.mark.parametrize(("query", "param"), [({"order": "up"}, "order"), ({"after": "msg_9"}, "after")])
def test_what_is_wrong_with_a_query_is_named(query: dict[str, str], param: str) -> None:
    with pytest.raises(Fault) as raised:
        paged(ITEMS, page_of(query, default=20))
    assert raised.value.failure.param == param
