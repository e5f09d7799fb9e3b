"""The `x-codex-*` headers about how an agent ran a turn (docs/api.md#headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.account import AgentModel
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.surfaces.request_options import ParsedRequest


class _TurnFacts(NamedTuple):
    agent: Agent
    parsed: ParsedRequest
    turn: Turn
    continued: bool

    def can(self, capability: str) -> bool:
        return capability in self.agent.capabilities

    @property
    def model(self) -> AgentModel:
        wanted = self.turn.model.removeprefix(f"{self.agent.name}{MODEL_SEPARATOR}")
        for model in self.agent.models():
            if model.id == wanted or (not wanted and (model.is_default or model.serves_unnamed)):
                return model
        return AgentModel(id=wanted)

    def names_unknown_model(self) -> bool:
        ids = {model.id for model in self.agent.models()}
        named = self.turn.model
        return bool(named) and not {named, named.removeprefix(f"{self.agent.name}{MODEL_SEPARATOR}")} & ids


def agent_headers(
    agent: Agent, parsed: ParsedRequest, turn: Turn, *, continued: bool = False
) -> dict[str, str]:
    """Returns the headers of an answer. `continued`: see `Source`."""
    facts = _TurnFacts(agent_for(agent, turn.model), parsed, turn, continued)
    return {name: value for name, make in _HEADERS.items() if (value := ", ".join(make(facts)))}


def _ignored_fields(facts: _TurnFacts) -> Iterator[str]:
    # A model server gets these as they are, whatever it makes of them.
    sent = {*facts.turn.sampling, "service_tier"} if facts.can("sampling") else ()
    named = [name for name in facts.parsed.ignored if name not in sent]
    for field, has_no_effect in TURN_FIELDS.items():
        if has_no_effect is not None and has_no_effect(facts):
            named.append(getattr(facts.parsed.fields, field, field))
    yield from filter(None, dict.fromkeys(named))


def _without_effort(facts: _TurnFacts) -> bool:
    effort = facts.turn.effort
    return effort is not None and not (facts.can("effort") or effort in facts.model.efforts)


def _without_summary(facts: _TurnFacts) -> bool:
    """Whether a summary is asked of an agent that has no efforts; the others show their reasoning."""
    asked = facts.turn.summary not in (None, "none")
    return asked and not (facts.can("effort") or facts.model.efforts)


TURN_FIELDS: Final[Mapping[str, Callable[[_TurnFacts], bool] | None]] = {
    "effort": _without_effort,
    "summary": _without_summary,
    "verbosity": lambda facts: (
        facts.turn.verbosity is not None and not (facts.can("verbosity") and facts.model.verbosity)
    ),
    "service_tier": lambda facts: facts.turn.service_tier is not None and not facts.can("effort"),
    "web_search": lambda facts: (
        facts.parsed.web_search and not (facts.turn.web_search and facts.can("web_search"))
    ),
    "parallel_tool_calls": lambda facts: (
        facts.parsed.parallel_calls and bool(facts.turn.tools) and not facts.can("parallel_calls")
    ),
    "model": lambda facts: not facts.can("model_choice") and facts.names_unknown_model(),
    # Named by the parsers, since an upstream may get them.
    **dict.fromkeys(("sampling",)),
    # Refused, or served by this server, where an agent lacks the capability.
    **dict.fromkeys(
        (
            *("history", "mode", "tools", "tool_choice", "output_schema", "json_object", "choices", "stop"),
            *("max_tokens", "workdir", "sandbox", "passed_fields", "forwarded"),
        )
    ),
    # Not of the request, but of this server.
    **dict.fromkeys(
        (
            *(
                "owner",
                "max_server_steps",
                "max_server_calls",
                "schema_field",
                "confine_reads",
                "permissions",
            ),
            *("reports_stop", "origin", "instructions_in_outputs", "calls_without_ids"),
        )
    ),
}
"""Every field of a `Turn`, with what says that it has no effect; None if it always has one. `FieldNames` has their
names in the API, empty if no client asks for one by itself.
"""


def _history_changes(facts: _TurnFacts) -> Iterator[str]:
    if not facts.can("history"):
        if not facts.continued and _history_becomes_text(facts):
            yield "flattened"
    elif not facts.can("system_prompt") and any(map(_is_instruction, facts.turn.history)):
        yield "system-as-user"


def _history_becomes_text(facts: _TurnFacts) -> bool:
    history, first = facts.turn.history, 0
    if facts.can("system_prompt"):
        while first < len(history) and _is_instruction(history[first]):
            first += 1
    return len(history) - first > 1


def _is_instruction(item: object) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _changed_mode(facts: _TurnFacts) -> Iterator[str]:
    if facts.turn.tools and facts.can("client_tools") and not facts.can("plain_model"):
        yield "agent"


def _uncertain_fields(facts: _TurnFacts) -> Iterator[str]:
    if facts.turn.forwarded is not None:
        return  # the client gets the upstream's own answer
    if not facts.can("exact_usage"):
        yield "usage"
    if not facts.can("stop_reasons"):
        yield "finish_reason"
    if facts.turn.mode == "agent" and not facts.can("sandbox"):
        yield "sandbox"


_HEADERS: Final[dict[str, Callable[[_TurnFacts], Iterator[str]]]] = {
    "x-codex-ignored-params": _ignored_fields,
    "x-codex-history": _history_changes,
    "x-codex-mode": _changed_mode,
    "x-codex-uncertain": _uncertain_fields,
    "x-codex-passed-params": lambda facts: iter(facts.parsed.passed_on),
}
"""What yields the words of each header; one without words is left out."""
