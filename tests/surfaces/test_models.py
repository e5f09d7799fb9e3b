"""Names of models: what they mean, and which we list."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.surfaces.models import (
    ModelCatalog,
    ResolvedModel,
    list_body,
    listed_names,
    one_body,
    resolve,
    service_tier,
)
from tests.growth import assert_linear
from tests.surfaces.catalogs import catalog_of

CATALOG = catalog_of(
    models=(
        AgentModel(
            id="gpt-5.5",
            display_name="GPT-5.5",
            context_window=272_000,
            input_modalities=("text", "image"),
            efforts=("low", "medium", "high"),
            default_effort="medium",
            is_default=True,
            native=msgspec.Raw(b'{"slug":"gpt-5.5"}'),
        ),
        AgentModel(id="GPT-mini"),
        AgentModel(id="gpt-odd-high"),
        AgentModel(id="gpt-odd"),
        AgentModel(id="secret", hidden=True),
    ),
    aliases=(("gpt-4o", "codex-5"), ("quick", "gpt-mini-low"), ("round", "about"), ("about", "round")),
)

ANY = catalog_of(any_model=True)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("gpt-5.5", ResolvedModel("gpt-5.5")),
        ("codex-5", ResolvedModel("gpt-5.5")),
        ("codev-5", ResolvedModel("gpt-5.5")),
        ("codex-5-minimal", ResolvedModel("gpt-5.5", "minimal")),
        ("codev-5-high", ResolvedModel("gpt-5.5", "high")),
        ("gpt-5.5-low", ResolvedModel("gpt-5.5", "low")),
        ("gpt-4o", ResolvedModel("gpt-5.5")),
        ("gpt-4o-high", ResolvedModel("gpt-5.5", "high")),
        ("quick", ResolvedModel("GPT-mini", "low")),
        ("quick-high", ResolvedModel("GPT-mini", "high")),
        ("secret", ResolvedModel("secret")),
        ("codex-5:model", ResolvedModel("gpt-5.5", None, "model")),
        ("codex-5-high:agent", ResolvedModel("gpt-5.5", "high", "agent")),
    ],
)
def test_a_name_means_a_model_an_effort_and_a_mode(name: str, meaning: ResolvedModel) -> None:
    assert resolve(name, CATALOG) == meaning


@pytest.mark.parametrize("name", ["CODEX-5-High:MODEL", "Gpt-Mini", "GPT-4O", "SECRET"])
def test_a_models_name_is_found_in_any_case(name: str) -> None:
    assert resolve(name, CATALOG) == resolve(name.lower(), CATALOG)


def test_a_name_as_written_wins_over_an_effort_suffix() -> None:
    assert resolve("gpt-odd-high", CATALOG) == ResolvedModel("gpt-odd-high")
    assert resolve("gpt-odd-low", CATALOG) == ResolvedModel("gpt-odd", "low")


@pytest.mark.parametrize("name", ["", "gpt-3", "-high", ":model", "round", "codex-5-huge", "x" * 1000])
def test_an_unknown_name_is_not_found_and_the_message_says_where_names_are_listed(name: str) -> None:
    with pytest.raises(Fault, match="/v1/models") as raised:
        resolve(name, CATALOG)
    assert raised.value.failure.kind == FaultKind.MODEL_NOT_FOUND
    assert raised.value.failure.param == "model"
    assert len(raised.value.failure.message) < 200


def test_with_a_custom_provider_any_name_passes_as_written() -> None:
    assert resolve("Meta/Llama-high", ANY) == ResolvedModel("Meta/Llama-high")
    assert resolve("Meta/Llama:model", ANY) == ResolvedModel("Meta/Llama", None, "model")


def test_with_a_custom_provider_an_alias_means_its_model_all_the_same() -> None:
    aliases = (("gpt-4o", "Meta/Llama"), ("fast", "GPT-4o"), ("round", "about"), ("about", "round"))
    catalog = catalog_of(any_model=True, aliases=aliases)
    assert resolve("gpt-4o", catalog) == resolve("fast", catalog) == ResolvedModel("Meta/Llama")
    assert resolve("gpt-4o-high:model", catalog) == ResolvedModel("Meta/Llama", "high", "model")
    assert resolve("round", catalog).agent_model in ("round", "about")


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("claude-codex-5-high", ResolvedModel("gpt-5.5", "high")),
        ("claude-gpt-mini", ResolvedModel("GPT-mini")),
        ("Claude-gpt-4o:agent", ResolvedModel("gpt-5.5", mode="agent")),
    ],
)
def test_every_name_may_have_claude_in_front_for_clients_that_list_no_other(
    name: str, meaning: ResolvedModel
) -> None:
    assert resolve(name, CATALOG) == meaning


def test_an_alias_with_a_star_means_what_no_other_name_does() -> None:
    catalog = catalog_of(
        models=CATALOG.models,
        aliases=(("claude-haiku-*", "gpt-mini-low"), ("claude-*", "codex-5"), ("claude-real", "gpt-odd")),
    )
    assert resolve("Claude-Haiku-5-5", catalog) == ResolvedModel("GPT-mini", "low")
    assert resolve("claude-opus-5-5", catalog) == ResolvedModel("gpt-5.5")
    assert resolve("claude-opus-5-5:agent", catalog) == ResolvedModel("gpt-5.5", mode="agent")
    assert resolve("claude-real", catalog) == ResolvedModel("gpt-odd")
    assert resolve("claude-gpt-odd", catalog) == ResolvedModel("gpt-odd")
    with pytest.raises(Fault):
        resolve("gemini-3", catalog)
    assert not any("*" in name for name in listed_names(catalog, "prod"))


def test_with_a_custom_provider_an_alias_with_a_star_may_mean_any_name() -> None:
    catalog = catalog_of(any_model=True, aliases=(("claude-*", "some/model"),))
    assert resolve("claude-opus-5-5", catalog) == ResolvedModel("some/model")


def test_the_operators_default_model_is_what_codex_5_means() -> None:
    assert resolve("codex-5", catalog_of(default_model="mine")) == ResolvedModel("mine")


def test_without_a_known_default_the_agent_takes_its_own() -> None:
    assert resolve("codex-5-low", catalog_of()) == ResolvedModel("", "low")


def model_ids(env: str) -> list[str]:
    return [entry["id"] for entry in list_body(CATALOG, env, 1)["data"]]


def test_v1_models_advertises_codev_5_in_dev_stacks_and_codex_5_in_prod_hosts() -> None:
    assert "codev-5-high" in model_ids("dev")
    assert "codex-5" not in model_ids("dev")
    assert "codex-5-high" in model_ids("prod")
    assert "codev-5" not in model_ids("prod")


def test_the_list_holds_the_agents_models_and_the_operators_aliases() -> None:
    assert {"gpt-5.5", "GPT-mini", "gpt-4o", "quick"} <= set(model_ids("prod"))


def test_hidden_models_and_aliases_that_lead_nowhere_are_not_listed() -> None:
    assert not {"secret", "round", "about"} & set(model_ids("prod"))


def test_every_name_that_is_listed_can_be_asked_for() -> None:
    assert [resolve(name, CATALOG) for name in model_ids("prod")]


def test_an_entry_carries_what_is_known_of_the_model_behind_the_name() -> None:
    assert one_body("gpt-4o-high", CATALOG, 7) == {
        "id": "gpt-4o-high",
        "object": "model",
        "created": 7,
        "owned_by": "codex",
        "display_name": "GPT-5.5",
        "context_window": 272_000,
        "input_modalities": ["text", "image"],
        "efforts": ["low", "medium", "high"],
        "default_effort": "high",
    }


def test_an_entry_says_nothing_of_what_is_not_known() -> None:
    assert one_body("GPT-mini", CATALOG, 7) == {
        "id": "GPT-mini",
        "object": "model",
        "created": 7,
        "owned_by": "codex",
    }


@pytest.mark.parametrize("models", [(), (AgentModel(id="parrot-1", is_default=True),)])
def test_a_model_without_an_owner_belongs_to_its_agent(models: tuple[AgentModel, ...]) -> None:
    catalog = catalog_of(models=models, any_model=True, codex=())
    listed = list_body(catalog, "prod", 7)["data"]
    assert {entry["owned_by"] for entry in listed} == {"fixed"}
    for name in ("default", "codex-5", "unlisted"):
        assert one_body(name, catalog, 7)["owned_by"] == "fixed"


def test_a_model_belongs_to_whom_its_agent_says() -> None:
    models = (AgentModel(id="opus", owned_by="anthropic", is_default=True),)
    for codex in ((), ("",)):
        assert one_body("default", catalog_of(models=models, codex=codex), 7)["owned_by"] == "anthropic"


def test_a_long_list_costs_in_proportion_to_its_length() -> None:
    def catalog_with(size: int) -> ModelCatalog:
        return catalog_of(models=tuple(AgentModel(id=f"model-{number}") for number in range(size)))

    assert_linear(catalog_with, lambda catalog: list_body(catalog, "prod", 1), 10_000)


@pytest.mark.parametrize("agent", ["", "codex"])
@pytest.mark.parametrize(
    ("asked", "own", "tier"),
    [
        ("priority", "fast", ("priority", ())),
        ("fast", "fast", ("priority", ())),
        ("auto", "fast", ("priority", ())),
        ("priority", "slow", ("default", ("service_tier",))),
        ("auto", "slow", ("default", ())),
        ("priority", None, ("default", ("service_tier",))),
        ("auto", None, ("default", ())),
        ("flex", None, ("flex", ())),
    ],
)
def test_the_tier_of_a_model_that_is_not_named_is_that_of_the_one_which_the_agent_uses(
    agent: str, asked: str, own: str | None, tier: tuple[str, tuple[str, ...]]
) -> None:
    front = f"{agent}/" if agent else ""
    of_fast: dict[str, Any] = {"service_tiers": ("flex", "priority"), "default_tier": "priority"}
    models = tuple(
        AgentModel(id=front + name, agent=agent, serves_unnamed=name == own, **more)
        for name, more in {"fast": of_fast, "slow": {}}.items()
    )
    found = service_tier(asked, ResolvedModel(front), catalog_of(models=models, other_tiers=("flex",)))
    assert (found.served, found.ignored) == tier
