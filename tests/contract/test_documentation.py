"""The lists of fields in the pages of the APIs, and in the schemas of bodies, are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, create_model

from codex_proxy import surfaces
from codex_proxy.core.options import AS_IS, NAMES, OPTIONS, SAMPLING, Api
from codex_proxy.http.openapi import body_schemas
from codex_proxy.surfaces.chat.completions import CompletionRequest
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.ollama.wire import OllamaChatRequest, OllamaGenerateRequest, Options
from codex_proxy.surfaces.requests.fields import Ignored, Refused
from codex_proxy.surfaces.responses.wire import ResponseRequest

ROOT = Path(__file__).parents[2]
CODE = Path(surfaces.__path__[0])
REQUESTS: dict[Api, type[BaseModel]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponseRequest,
    "messages": MessagesRequest,
    "ollama": OllamaChatRequest,
}


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def marked(model: type[BaseModel], mark: type) -> set[str]:
    fields = model.model_fields.items()
    return {name for name, field in fields if any(isinstance(each, mark) for each in field.metadata)}


def names_behind(text: str, begin: str, end: str) -> set[str]:
    """The code words of a page from one text to another."""
    return set(re.findall(r"`([\w.]+)`", text.partition(begin)[2].partition(end)[0]))


def test_the_parameters_of_chat_that_are_ignored_are_all_named() -> None:
    section = page("chat-completions").partition("\n## What is ignored\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", section.strip().split("\n\n")[1])
    assert sorted(named) == sorted({*SAMPLING["chat"], *marked(ChatRequest, Ignored)})


def test_the_fields_of_responses_that_are_ignored_are_all_named() -> None:
    named = names_behind(page("responses"), "- **Ignored fields**", ", options of")
    inner = {"reasoning.context", "reasoning.mode"}
    assert named == {*marked(ResponseRequest, Ignored), *inner}
    refused = names_behind(page("responses"), "and unknown fields. ", " and unknown fields with")
    assert refused == marked(ResponseRequest, Refused)


def test_the_fields_of_messages_that_are_ignored_or_refused_are_all_named() -> None:
    lines = page("messages").splitlines()
    (ignored,) = (line for line in lines if line.startswith("- `cache_control`") and "ignored" in line)
    assert set(re.findall(r"`(\w+)`", ignored)) == marked(MessagesRequest, Ignored)
    (refused,) = (line for line in lines if line.startswith("- `thread`"))
    assert names_behind(refused, "- ", ": a 400") == marked(MessagesRequest, Refused)
    assert "- " + ", ".join(f"`{name}`" for name in SAMPLING["messages"]) + ": passed" in page("messages")


def test_the_fields_of_ollama_that_are_ignored_and_its_options_are_all_named() -> None:
    (ignored,) = (line for line in page("ollama").splitlines() if line.endswith("any other: ignored"))
    assert set(re.findall(r"`(\w+)`", ignored)) >= marked(OllamaGenerateRequest, Ignored) - {"top_logprobs"}
    options = names_behind(page("ollama"), "- `options`: ", " where the agent")
    assert options == {*Options.model_fields} == {*SAMPLING["ollama"], "num_predict", "stop"}


@pytest.mark.parametrize("api", REQUESTS)
def test_each_option_of_the_table_stands_in_the_wire_model_at_its_path(api: Api) -> None:
    fields = REQUESTS[api].model_fields
    names = {
        *NAMES[api].values(),
        *(f"options.{name}" if api == "ollama" else name for name in SAMPLING[api]),
    }
    if api == "completions":
        names -= {"reasoning_effort", "reasoning.summary"}  # of the model's name alone
    assert {re.split(r"[.\[]", name)[0] for name in names} <= {*fields}
    if api == "chat":
        assert {name for option in OPTIONS for name in option.also} <= {*fields}


def test_the_schemas_of_bodies_say_what_is_ignored_refused_or_needs_a_capability() -> None:
    schemas = body_schemas(max_choices=5)
    for name in ("ChatRequest", "ResponseRequest", "MessagesRequest", "OllamaChatRequest"):
        for field, schema in schemas[name]["properties"].items():
            model = {each.__name__: each for each in REQUESTS.values()}[name]
            described = schema.get("description", "")
            assert described.startswith("Has no effect") is (field in marked(model, Ignored)), field
            assert described.startswith("Refused") is (field in marked(model, Refused)), field
    chat, text = schemas["ChatRequest"]["properties"], schemas["TextOptions"]["properties"]
    options = schemas["OllamaOptions"]["properties"]
    for schema in (chat["verbosity"], chat["seed"], text["verbosity"], options["top_k"]):
        assert schema["description"].startswith("Needs an agent with the capability")


PASSED_ON = frozenset({"allowed_callers", "exit_code", "outcome", "server_description", "stderr", "stdout"})
"""Fields of items and tools of the Responses API that are checked, and then passed on with the whole of these."""


def unread_fields(api: Api, model: type[BaseModel]) -> set[str]:
    """The served fields of a wire model, and of the objects in it, that neither the table of options nor the API's code
    names.
    """
    folders = (CODE / {"completions": "chat"}.get(api, api), CODE / "requests")
    code = "\n".join(path.read_text("utf-8") for folder in folders for path in folder.glob("*.py"))
    in_table = {path[-1] for path in AS_IS[api].values()} | {*SAMPLING[api]}
    found = set()
    for name, field in model.model_fields.items():
        if name not in {*PASSED_ON, *in_table, *marked(model, Ignored), *marked(model, Refused)}:
            found |= set() if re.search(rf"\.{name}\b|\"{name}\"", code) else {name}
        for inner in models_in(field.annotation):
            found |= unread_fields(api, inner)
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The wire models in the type of a field: itself, or in a union or a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


@pytest.mark.parametrize("api", REQUESTS)
def test_each_served_field_of_a_request_is_read_and_a_new_one_is_found(api: Api) -> None:
    part = create_model("Part", character_hint=(str | None, None))
    more = create_model(
        "More", __base__=REQUESTS[api], personality_hint=(str | None, None), some=(list[part] | None, None)
    )
    assert unread_fields(api, REQUESTS[api]) == set()
    assert unread_fields(api, more) == {"personality_hint", "character_hint", "some"}
