"""Models as Anthropic's clients list them: names, entries, and pages by cursors from both sides."""

from __future__ import annotations

import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.surfaces.messages.answer import (
    anthropic_names,
    model_body,
    models_page,
)
from codex_proxy.surfaces.models import resolve
from tests.surfaces.catalogs import catalog_of

CATALOG = catalog_of(
    models=(
        AgentModel(id="gpt-5.5", display_name="GPT-5.5", context_window=272_000, is_default=True),
        AgentModel(id="claude-sonnet-5-5"),
    ),
)

NAMES = ("a", "b", "c", "d", "e")
FIVE = catalog_of(models=tuple(AgentModel(id=name) for name in NAMES), codex=())


def page(**query: object) -> tuple[list[str], bool]:
    body = models_page(NAMES, {name: str(value) for name, value in query.items()}, FIVE, 0)
    ids = [entry["id"] for entry in body["data"]]
    assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return ids, body["has_more"]


def test_every_name_is_there_with_claude_in_it_and_can_be_asked_for() -> None:
    names = anthropic_names(CATALOG, "prod")
    assert {"codex-5", "claude-codex-5", "gpt-5.5", "claude-gpt-5.5", "claude-sonnet-5-5"} <= set(names)
    assert not any(name.startswith("claude-claude") for name in names)
    assert len(names) == len(set(names))
    for name in names:
        resolve(name, CATALOG)


def test_an_entry_has_the_name_that_was_asked_for_and_the_models_context_window() -> None:
    assert model_body("claude-codex-5", CATALOG, 86_400) == {
        "type": "model",
        "id": "claude-codex-5",
        "display_name": "GPT-5.5",
        "created_at": "1970-01-02T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 272_000,
        "max_tokens": None,
    }


def test_an_entry_of_which_nothing_is_known_is_shown_by_its_name() -> None:
    entry = model_body("codex-5", catalog_of(), 0)
    assert (entry["display_name"], entry["max_input_tokens"]) == ("codex-5", None)


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(Fault) as refused:
        model_body("claude-opus-5-5", CATALOG, 0)
    assert refused.value.failure.kind is FaultKind.MODEL_NOT_FOUND


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({"limit": 2}, ["a", "b"], True),
        ({"limit": 5}, list(NAMES), False),
        ({"limit": 2, "after_id": "b"}, ["c", "d"], True),
        ({"limit": 2, "after_id": "c"}, ["d", "e"], False),
        ({"limit": 2, "after_id": "e"}, [], False),
        ({"limit": 2, "before_id": "e"}, ["c", "d"], True),
        ({"limit": 2, "before_id": "c"}, ["a", "b"], False),
        ({"limit": 2, "before_id": "a"}, [], False),
    ],
)
def test_a_page_is_what_stands_behind_one_cursor_or_before_the_other(
    query: dict[str, object], ids: list[str], more: bool
) -> None:
    assert page(**query) == (ids, more)


@pytest.mark.parametrize("cursor", ["after_id", "before_id"])
def test_a_cursor_that_is_no_model_is_refused(cursor: str) -> None:
    with pytest.raises(Fault) as refused:
        page(**{cursor: "nobody"})
    assert refused.value.failure.param == cursor


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", "", "٣", "9" * 5000])
def test_a_page_of_another_size_than_there_can_be_is_refused(limit: str) -> None:
    with pytest.raises(Fault) as refused:
        page(limit=limit)
    assert refused.value.failure.param == "limit"


def test_both_cursors_at_once_are_refused() -> None:
    with pytest.raises(Fault):
        page(after_id="a", before_id="b")


def test_a_page_has_twenty_entries_unless_another_number_is_asked_for() -> None:
    names = [f"model-{number}" for number in range(1001)]
    many = catalog_of(models=tuple(AgentModel(id=name) for name in names), codex=())
    for query, count in (({}, 20), ({"before_id": ""}, 20), ({"limit": "1000", "after_id": "model-0"}, 1000)):
        assert len(models_page(names, query, many, 0)["data"]) == count
