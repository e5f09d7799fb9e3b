"""The `x-codex-*` headers about how an agent ran a turn; docs/api.md#headers describes each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.account import AgentModel
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.surfaces.request_options import ParsedRequest


class _RanTurn(NamedTuple):
    """`continued`: the session has seen the earlier messages."""

    agent: Agent
    parsed: ParsedRequest
    turn: Turn
    continued: bool

    def can(self, capability: str) -> bool:
        return capability in self.agent.capabilities

    @property
    def model(self) -> AgentModel:
        """The agent's model; an unknown one if it is not listed."""
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
    """`continued`: the session has seen the earlier messages."""
    ran = _RanTurn(agent_for(agent, turn.model), parsed, turn, continued)
    return {name: value for name, make in _HEADERS.items() if (value := ", ".join(make(ran)))}


def _ignored(ran: _RanTurn) -> Iterator[str]:
    # A model server gets these as they are, whatever it makes of them.
    sent = {*ran.turn.sampling, "service_tier"} if ran.can("sampling") else ()
    yield from (name for name in ran.parsed.ignored if name not in sent)
    for field, has_no_effect in _WITHOUT_EFFECT.items():
        if has_no_effect(ran):
            yield getattr(ran.parsed.fields, field, field)


_WITHOUT_EFFECT: Final[dict[str, Callable[[_RanTurn], bool]]] = {
    "web_search": lambda ran: ran.parsed.web_search and not (ran.turn.web_search and ran.can("web_search")),
    "verbosity": lambda ran: (
        ran.turn.verbosity is not None and not (ran.can("verbosity") and ran.model.verbosity)
    ),
    "parallel_calls": lambda ran: (
        ran.parsed.parallel_calls and bool(ran.turn.tools) and not ran.can("parallel_calls")
    ),
    "model": lambda ran: not ran.can("model_choice") and ran.names_unknown_model(),
    "effort": lambda ran: (
        "effort" in ran.agent.missing_features and bool(ran.turn.effort or ran.turn.summary)
    ),
    "service_tier": lambda ran: "effort" in ran.agent.missing_features and ran.turn.service_tier is not None,
}
"""When a field has no effect with the agent, by `FieldNames` or the field's name in every API."""


def _history(ran: _RanTurn) -> Iterator[str]:
    if not ran.can("history"):
        if not ran.continued and _history_becomes_text(ran):
            yield "flattened"
    elif not ran.can("system_prompt") and any(map(_is_instruction, ran.turn.history)):
        yield "system-as-user"


def _history_becomes_text(ran: _RanTurn) -> bool:
    history, first = ran.turn.history, 0
    if ran.can("system_prompt"):
        while first < len(history) and _is_instruction(history[first]):
            first += 1
    return len(history) - first > 1


def _is_instruction(item: object) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _mode(ran: _RanTurn) -> Iterator[str]:
    if ran.turn.tools and ran.can("client_tools") and not ran.can("plain_model"):
        yield "agent"


def _uncertain(ran: _RanTurn) -> Iterator[str]:
    if ran.turn.forwarded is not None:
        return  # the client gets the upstream's own answer
    if not ran.can("exact_usage"):
        yield "usage"
    if not ran.can("stop_reasons"):
        yield "finish_reason"
    if ran.turn.mode == "agent" and not ran.can("sandbox"):
        yield "sandbox"


_HEADERS: Final[dict[str, Callable[[_RanTurn], Iterator[str]]]] = {
    "x-codex-ignored-params": _ignored,
    "x-codex-history": _history,
    "x-codex-mode": _mode,
    "x-codex-uncertain": _uncertain,
    "x-codex-passed-params": lambda ran: iter(ran.parsed.passed_on),
}
"""What yields the words of each header; without words it is left out."""
