"""The `x-codex-*` headers about how an agent ran a turn (docs/api.md#headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.account import AgentModel
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.options import OPTIONS, Option
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.surfaces.request_options import ParsedRequest

IGNORED_HEADER: Final = "x-codex-ignored-params"


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
    names = facts.parsed.fields.options
    named = [] if facts.can("sampling") else [*facts.turn.sampling]
    named += facts.parsed.ignored
    if facts.parsed.asked or _optional_values(facts.turn) != _UNASKED:
        named += [names.get(option.field, "") for option in _options_without_effect(facts)]
    if not facts.can("model_choice") and facts.names_unknown_model():
        named.append(names["model"])
    return filter(None, dict.fromkeys(named))


def _options_without_effect(facts: _TurnFacts) -> Iterator[Option]:
    able, values = _abilities(facts), msgspec.structs.asdict(facts.turn)
    for option in _OPTIONAL:
        value, default = values[option.field], _DEFAULTS[option.field]
        asked = option.field in facts.parsed.asked or (value != default and value not in option.harmless)
        unable = able.isdisjoint(option.needs) or (option.field == "effort" and not _takes_effort(facts))
        if asked and unable and (not option.only_with or values[option.only_with]):
            yield option


def _takes_effort(facts: _TurnFacts) -> bool:
    """Whether an agent that has efforts has the turn's."""
    return facts.can("effort") or facts.turn.effort in (None, *facts.model.efforts)


def _abilities(facts: _TurnFacts) -> set[str]:
    """Returns the agent's capabilities, as far as the turn's model has them."""
    able, model = set[str](facts.agent.capabilities), facts.model
    if model.efforts:
        able.add("effort")
    if not model.verbosity:
        able.discard("verbosity")
    return able


_OPTIONAL: Final = tuple(each for each in OPTIONS if each.needs and each.field not in ("model", "sampling"))
_optional_values: Final = attrgetter(*(option.field for option in _OPTIONAL))
_PLAIN: Final = Turn(model="", history=())
_UNASKED: Final = _optional_values(_PLAIN)
_DEFAULTS: Final = msgspec.structs.asdict(_PLAIN)


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
    IGNORED_HEADER: _ignored_fields,
    "x-codex-history": _history_changes,
    "x-codex-mode": _changed_mode,
    "x-codex-uncertain": _uncertain_fields,
    "x-codex-passed-params": lambda facts: iter(facts.parsed.passed_on),
}
"""What yields the words of each header; one without words is left out."""
