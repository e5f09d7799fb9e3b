"""The list of models that Codex reads as a client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.surfaces.answers.codex_models import codex_list_body
from codex_proxy.surfaces.models import ModelCatalog, listed_names
from tests.growth import assert_linear
from tests.surfaces.catalogs import catalog_of

LEVELS = [{"effort": effort, "description": effort} for effort in ("low", "high")]
NATIVE = {
    "slug": "gpt-5.5",
    "display_name": "GPT-5.5",
    "base_instructions": "You are Codex.",
    "tool_mode": "code_mode_only",
    "supported_reasoning_levels": LEVELS,
    "new_field": {"a": 1},
}
CODEX = AgentModel(
    id="gpt-5.5", display_name="GPT-5.5", serves_unnamed=True, native=json.dumps(NATIVE).encode()
)
OTHER = AgentModel(
    id="opus",
    display_name="Opus",
    context_window=200_000,
    input_modalities=("text",),
    efforts=("low", "high", "max"),
    default_effort="high",
)


def entries(catalog: ModelCatalog) -> dict[str, dict[str, Any]]:
    """The entries of all listed names, by their slugs."""
    listed = codex_list_body(catalog, listed_names(catalog, "prod"))["models"]
    return {entry["slug"]: entry for entry in listed}


def test_a_model_of_codex_has_each_field_that_codex_gave_it() -> None:
    assert entries(catalog_of(models=(CODEX,)))["gpt-5.5"].items() >= NATIVE.items()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("codex-5", {"visibility": "list"}),
        ("codex-5-low", {"visibility": "hide", "default_reasoning_level": "low"}),
        ("codex-5-minimal", {"visibility": "hide", "default_reasoning_level": None}),
        ("gpt-4o", {"visibility": "list"}),
    ],
)
def test_another_name_of_a_model_has_its_fields(name: str, more: dict[str, Any]) -> None:
    own = {"slug": name, "display_name": name}
    found = entries(catalog_of(models=(CODEX,), aliases=(("gpt-4o", "codex-5"),)))[name]
    assert found.items() >= {**NATIVE, **own, **more}.items()


def test_the_default_of_an_agent_counts_where_it_is_known_by_no_name() -> None:
    one_of_several = AgentModel(id="a/m", agent="a", serves_unnamed=True, native=CODEX.native)
    catalog = catalog_of(models=(one_of_several,))
    assert entries(catalog)["a/m"]["tool_mode"] == "code_mode_only"


def test_a_model_of_another_agent_has_the_tools_of_codex_and_what_is_known_of_it() -> None:
    found = entries(catalog_of(models=(OTHER,), codex=()))["opus"]
    assert found["apply_patch_tool_type"] == "freeform"
    assert found["supports_search_tool"] is True
    assert found["base_instructions"]
    assert found["context_window"] == 200_000
    assert found["input_modalities"] == ["text"]
    assert found["supported_reasoning_levels"] == LEVELS, "each release of Codex knows these"
    assert (found["default_reasoning_level"], found["display_name"]) == ("high", "Opus")


def test_names_of_no_known_model_are_listed_and_those_that_lead_nowhere_are_not() -> None:
    nowhere = catalog_of(aliases=(("round", "about"), ("about", "round")), any_model=False, codex=())
    assert entries(nowhere) == {}
    assert set(entries(catalog_of(codex=()))) == {"default"}


def test_a_long_list_costs_in_proportion_to_its_length() -> None:
    def catalog_with(size: int) -> ModelCatalog:
        return catalog_of(models=tuple(AgentModel(id=f"model-{number}") for number in range(size)))

    assert_linear(catalog_with, entries, 2_000)


def test_a_field_of_a_model_that_codex_cannot_read_is_left_out() -> None:
    """One such value makes Codex refuse the whole list."""
    odd = AgentModel(id="odd", input_modalities=("text", "audio"), efforts=("max",), default_effort="max")
    entry = entries(catalog_of(models=(odd,)))["odd"]
    assert (entry["input_modalities"], entry["supported_reasoning_levels"]) == (["text"], [])
    assert entry["default_reasoning_level"] is None
