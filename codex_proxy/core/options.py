"""The table of options: how the APIs call each field of a `Turn`, what an agent needs so that it has an effect, whether
a session depends on it, and where bodies for model servers have it. Types and limits are in the wire models.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

Api: TypeAlias = Literal["chat", "completions", "responses", "messages", "ollama"]


Capability = Literal[
    "history",
    "client_tools",
    "tool_replies",
    "structured_output",
    "images",
    "plain_model",
    "web_search",
    "code_interpreter",
    "file_search",
    "image_generation",
    "effort",
    "verbosity",
    "service_tier",
    "sampling",
    "tool_choice",
    "max_tokens",
    "forwarding",
    "system_prompt",
    "sandbox",
    "exact_usage",
    "stop_reasons",
    "parallel_calls",
    "model_choice",
    "stored_sessions",
    "steering",
    "subagents",
]
"""What an agent can do. `tool_replies`: the turn continues with the outputs of its calls, so the server can run
tools. `structured_output`: the provider gets the answer's schema, not the model as text. `max_tokens`: the agent
applies the limit. `forwarding`: the server speaks Chat Completions, and can get fields that a `Turn` lacks.
`system_prompt`: instructions are sent as such, not as text of the user. `parallel_calls`: the calls of a step are
reported together. `model_choice`: the turn's model is used. `stored_sessions`: the agent stores its own session of a
conversation, and goes on with it later. `steering`: a running turn takes further input of its client. `subagents`: the
turn's agent may have some.
`effort`: the turn's effort is used, whatever efforts the models list. `code_interpreter`, `file_search`,
`image_generation`: the model server runs these tools of OpenAI's servers.

If an agent lacks one of the next three, its answers say so in `x-codex-uncertain`. `sandbox`: commands run in the
turn's sandbox. `exact_usage`: the provider counts each request's tokens. `stop_reasons`: the agent reports why an
answer was cut off.
"""


class Option(NamedTuple):
    field: str
    """The attribute of `Turn`, or `sampling` for an entry of that mapping."""
    names: Mapping[Api, str] = {}
    """Its path in requests; in APIs that are missing nobody can ask for it."""
    also: tuple[str, ...] = ()
    """Other fields of a chat request that set it."""
    needs: tuple[Capability, ...] = ()
    """If an agent has none of these capabilities, `x-codex-ignored-params` names the option; if there are none here,
    this server applies or refuses what an agent cannot do.
    """
    harmless: tuple[object, ...] = ()
    """Values besides the default that ask for nothing an agent could lack, so that the paths below do not get them."""
    as_is: bool = False
    """Whether the turn has the value of the wire model, which stands there under its path in the request."""
    only_with: str = ""
    """The field of `Turn` without which it means nothing."""
    fixes_session: bool = False
    """Whether a kept session takes only turns with the same value."""
    chat_body: str = ""
    """Its path in a body of Chat Completions for a model server, which gets the value as it is."""
    responses_body: str = ""
    """Its path in a body of the Responses API."""


_ALL: Final[tuple[Api, ...]] = get_args(Api)
_TEXT_APIS: Final[tuple[Api, ...]] = ("chat", "completions", "responses", "ollama")


def _named(name: str, apis: tuple[Api, ...] = _ALL) -> dict[Api, str]:
    return dict.fromkeys(apis, name)


def _sampling(name: str, *apis: Api) -> Option:
    return Option("sampling", _named(name, apis), needs=("sampling",))


OPTIONS: Final = (
    Option("model", _named("model"), needs=("model_choice",), fixes_session=True),
    Option(
        "effort",
        _named("reasoning_effort")
        | {"responses": "reasoning.effort", "messages": "output_config.effort", "ollama": "think"},
        needs=("effort",),
        fixes_session=True,
        chat_body="reasoning_effort",
        responses_body="reasoning.effort",
    ),
    Option(
        "summary",
        _named("reasoning.summary", ("chat", "completions", "responses")),
        needs=("effort",),
        harmless=("none",),
        fixes_session=True,
        responses_body="reasoning.summary",
    ),
    Option(
        "verbosity",
        {"chat": "verbosity", "responses": "text.verbosity"},
        needs=("verbosity",),
        as_is=True,
        fixes_session=True,
        chat_body="verbosity",
        responses_body="text.verbosity",
    ),
    Option(
        "service_tier",
        _named("service_tier", ("chat", "responses")),
        needs=("service_tier", "sampling"),
        fixes_session=True,
        chat_body="service_tier",
        responses_body="service_tier",
    ),
    Option(
        "web_search",
        {"chat": "web_search_options", "responses": "tools[web_search]", "messages": "tools[web_search]"},
        needs=("web_search",),
        fixes_session=True,
    ),
    Option(
        "parallel_tool_calls",
        _named("parallel_tool_calls", ("chat", "responses"))
        | {"messages": "tool_choice.disable_parallel_tool_use"},
        needs=("parallel_calls",),
        harmless=(False,),
        only_with="tools",
    ),
    _sampling("temperature", *_ALL),
    _sampling("top_p", *_ALL),
    _sampling("top_k", "chat", "responses", "messages", "ollama"),
    _sampling("min_p", "chat", "responses", "ollama"),
    _sampling("presence_penalty", *_TEXT_APIS),
    _sampling("frequency_penalty", *_TEXT_APIS),
    _sampling("repetition_penalty", "chat", "responses"),
    _sampling("logit_bias", "chat"),
    _sampling("seed", "chat", "completions", "ollama"),
    _sampling("prediction", "chat"),
    # Applied or refused by this server, where the agent lacks a capability:
    Option("history", _named("messages") | {"completions": "prompt", "responses": "input"}),
    Option("mode", fixes_session=True),
    Option(
        "tools",
        _named("tools", ("chat", "responses", "messages", "ollama")),
        also=("functions",),
        fixes_session=True,
    ),
    Option(
        "tool_choice",
        _named("tool_choice", ("chat", "responses", "messages")),
        also=("function_call",),
        fixes_session=True,
    ),
    Option(
        "output_schema",
        {
            "chat": "response_format.json_schema.schema",
            "responses": "text.format.schema",
            "messages": "output_config.format.schema",
            "ollama": "format",
        },
        fixes_session=True,
    ),
    Option("hosted", fixes_session=True),
    Option("json_object"),
    Option("choices", _named("n", ("chat", "completions"))),
    Option("stop", _named("stop") | {"messages": "stop_sequences", "ollama": "options.stop"}),
    Option(
        "max_tokens",
        _named("max_tokens") | {"responses": "max_output_tokens", "ollama": "options.num_predict"},
        also=("max_completion_tokens",),
    ),
    Option("max_server_calls", {"responses": "max_tool_calls"}),
    Option("workdir", fixes_session=True),
    Option("sandbox", fixes_session=True),
    # A model server gets these as the client wrote them:
    *map(Option, ("passed_fields", "forwarded")),
    # Set by this server:
    Option("subagents", fixes_session=True),
    Option("approvals", fixes_session=True),
    Option("toolset", fixes_session=True),
    *map(Option, ("owner", "max_server_steps", "schema_field", "confine_reads", "permissions", "origin")),
    Option("stored_session", fixes_session=True),
    *map(Option, ("reports_stop", "instructions_in_outputs", "calls_without_ids")),
)
"""Every field of a `Turn`."""


NAMES: Final[Mapping[Api, Mapping[str, str]]] = {
    api: MappingProxyType(
        {each.field: each.names[api] for each in OPTIONS if api in each.names and each.field != "sampling"}
    )
    for api in _ALL
}
"""The names of options in each API, by the fields of `Turn`, without sampling."""
SAMPLING: Final[Mapping[Api, tuple[str, ...]]] = {
    api: tuple(option.names[api] for option in OPTIONS if option.field == "sampling" and api in option.names)
    for api in _ALL
}
"""The sampling parameters of each API."""
AS_IS: Final[Mapping[Api, Mapping[str, tuple[str, ...]]]] = {
    api: {
        each.field: tuple(each.names[api].split(".")) for each in OPTIONS if each.as_is and api in each.names
    }
    for api in _ALL
}
"""The paths, in a wire model, of the options whose values become those of a turn, by its fields."""
