"""Ids that follow from another id."""

from __future__ import annotations

import re

from codex_proxy.surfaces.responses.kept_log import DerivedIds

ID = "resp_" + "0" * 32


def some(id: str = ID, run: str = "") -> list[str]:
    ids = DerivedIds(id, run)
    return [ids.new(prefix) for prefix in ("msg_", "fc_", "msg_")]


def test_the_same_response_gives_the_same_ids_in_the_documented_form() -> None:
    assert some() == some()
    assert all(re.fullmatch(r"(msg|fc)_[0-9a-f]{32}", id) for id in some())


def test_no_two_items_of_any_responses_and_runs_have_the_same_id() -> None:
    found = [*some(), *some("resp_" + "1" * 32), *some(run="1.2"), *some(run="2.1")]
    assert len(set(found)) == len(found)
    assert len({id.partition("_")[2] for id in found}) == len(found)


def test_an_item_does_not_tell_the_id_that_it_was_made_from() -> None:
    assert all(id.partition("_")[2] not in ID for id in some())
