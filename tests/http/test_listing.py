"""Pages of stored items, as the SDKs page through them."""

from __future__ import annotations

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.http.listing import list_object, page_of
from codex_proxy.store.values import PageRequest


def test_the_newest_come_first_unless_asked_otherwise() -> None:
    assert page_of({}, default=2) == PageRequest(2, "desc")
    assert page_of({"order": "asc", "limit": "1", "after": "msg_0"}, default=2) == PageRequest(
        1, "asc", "msg_0"
    )


def test_a_page_names_its_ends_and_says_truthfully_whether_more_follows() -> None:
    page = list_object([{"id": "msg_1"}, {"id": "msg_2"}], has_more=True)
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_1", "msg_2", True)


def test_items_keep_their_order() -> None:
    items = [{"id": f"msg_{n}"} for n in range(2)]
    assert list_object(items, has_more=False) == {
        "object": "list",
        "data": items,
        "first_id": "msg_0",
        "last_id": "msg_1",
        "has_more": False,
    }


def test_an_empty_list_has_no_ends() -> None:
    assert list_object([], has_more=False) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1.5", "٣", "1_0", "9" * 5000])
def test_a_limit_is_from_1_to_100(limit: str) -> None:
    with pytest.raises(Fault) as raised:
        page_of({"limit": limit}, default=20)
    assert raised.value.failure.param == "limit"


def test_limits_that_are_allowed_are_taken() -> None:
    assert [page_of({"limit": limit}, default=20).limit for limit in ("1", "100", "")] == [1, 100, 20]


def test_an_order_that_there_is_not_is_named() -> None:
    with pytest.raises(Fault) as raised:
        page_of({"order": "up"}, default=20)
    assert raised.value.failure.param == "order"
