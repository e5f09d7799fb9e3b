"""Reads the settings that a session offers, and makes the requests that set them. Models are in an option
(`session/set_config_option`) or in `models` (`session/set_model`); modes in an option or in `modes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import objects_in, text_at, value_at
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.failures import failure_of_error, unknown_model
from codex_proxy.parts.acp.messages import INVALID_PARAMS, RpcError
from codex_proxy.parts.acp.program import Program

Request: TypeAlias = tuple[str, dict[str, Any]]

UNNAMED_MODEL: Final = "default"
"""The model of an agent that lists none."""

NO_SAFE_MODE: Final = (
    "{} offers no mode that is read-only or asks for permission. To serve its turns, the "
    "operator must start the server with --agent-unconfined."
)


class SessionOption(msgspec.Struct, frozen=True):
    method: str
    key: str
    """The request's parameter with the value."""
    values: tuple[str, ...]
    current: str
    """The value at the beginning; empty if the agent does not report it."""
    option: str = ""
    names: tuple[str, ...] = ()
    """Display names, one for each of `values`."""

    def request(self, session: str, value: str) -> Request:
        params = {"sessionId": session, self.key: value}
        return self.method, {**params, "configId": self.option} if self.option else params


class SessionOptions(msgspec.Struct, frozen=True):
    mode: SessionOption | None = None
    model: SessionOption | None = None
    effort: SessionOption | None = None

    def mode_of(self, names: Sequence[str]) -> str | None:
        """Returns the first of these modes that the session offers, if any."""
        offered = self.mode.values if self.mode is not None else ()
        return next((name for name in names if name in offered), None)

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models, of which the current is the default; `default` alone if there is no choice."""
        choice = self.model
        if choice is None:
            return (AgentModel(id=UNNAMED_MODEL, is_default=True, owned_by="agent"),)
        names = choice.names or choice.values
        efforts = self.effort.values if self.effort is not None else ()
        return tuple(
            AgentModel(
                id=value,
                display_name=name,
                is_default=value == choice.current,
                owned_by="agent",
                efforts=efforts,
            )
            for value, name in zip(choice.values, names, strict=True)
        )


def session_options_of(result: object) -> SessionOptions:
    """Reads the result of `session/new`. Parts with an unexpected form count as missing."""
    options = {
        option["category"]: found
        for option in objects_in(value_at(result, "configOptions"))
        if isinstance(option.get("category"), str) and (found := _option(option)) is not None
    }
    modes, models = value_at(result, "modes"), value_at(result, "models")
    return SessionOptions(
        mode=_option_from_list(modes, "availableModes", "id", "currentModeId", "session/set_mode", "modeId")
        or options.get("mode"),
        model=options.get("model")
        or _option_from_list(
            models, "availableModels", "modelId", "currentModelId", "session/set_model", "modelId"
        ),
        effort=options.get("thought_level"),
    )


class SetupPlan(msgspec.Struct, frozen=True):
    requests: tuple[tuple[Request, Callable[[RpcError], Failure]], ...]
    """The requests, each with the conversion of its error to the turn's failure."""
    model: str
    """The session's model after them; empty if not known."""


def plan_setup(
    result: object, session: str, turn: Turn, program: Program, *, tools: bool
) -> SetupPlan | Failure:
    """Returns the requests for a turn on the session that `result` has opened, or why it cannot run there. `tools`: the
    turn has client tools.
    """
    options = session_options_of(result)
    wanted = program.modes(turn.sandbox, tools=tools)
    mode = options.mode_of(wanted)
    if wanted and mode is None and not program.unconfined:
        return Failure(FaultKind.AGENT_MISCONFIGURED, NO_SAFE_MODE.format(program.preset.title))

    def refusal_of(error: RpcError) -> Failure:
        return failure_of_error(error, program.preset)

    def model_refused(error: RpcError) -> Failure:
        failure = refusal_of(error)
        if failure.kind is FaultKind.AGENT_NOT_AUTHENTICATED and error.code != INVALID_PARAMS:
            return failure
        return unknown_model(turn.model, program.preset)

    planned: list[tuple[SessionOption, str, Callable[[RpcError], Failure]]] = []
    model = options.model.current if options.model is not None else ""
    if mode is not None and options.mode is not None:
        planned.append((options.mode, mode, refusal_of))
    models = options.model.values if options.model is not None else ()
    # Before anybody had signed in, the agent listed no model: then its own choice is meant.
    any_will_do = turn.model in ("", UNNAMED_MODEL) and turn.model not in models
    if turn.model != model and not any_will_do:
        if options.model is None or turn.model not in models:
            return unknown_model(turn.model, program.preset)
        planned.append((options.model, turn.model, model_refused))
        model = turn.model
    if options.effort is not None and turn.effort in options.effort.values:
        planned.append((options.effort, turn.effort, refusal_of))
    requests = tuple(
        (option.request(session, value), on_error)
        for option, value, on_error in planned
        if value != option.current
    )
    return SetupPlan(requests, model)


def _option(option: dict[str, Any]) -> SessionOption | None:
    """Converts an entry of `configOptions`; None if it cannot be set."""
    id, current = option.get("id"), option.get("currentValue")
    entries = [
        entry
        for each in objects_in(option.get("options"))
        for entry in (objects_in(each.get("options")) if "options" in each else [each])
    ]
    entries = [entry for entry in entries if isinstance(entry.get("value"), str)]
    if not isinstance(id, str) or not isinstance(current, str) or not entries:
        return None
    values = tuple(entry["value"] for entry in entries)
    names = tuple(_name(entry, entry["value"]) for entry in entries)
    return SessionOption("session/set_config_option", "value", values, current, id, names)


def _option_from_list(
    given: object, list: str, id: str, current: str, method: str, key: str
) -> SessionOption | None:
    """Converts `given`, the `modes` or `models` of `session/new`; None without values. `list`, `id` and `current` are
    the names of its fields; for `method` and `key` see `SessionOption`.
    """
    entries = [entry for entry in objects_in(value_at(given, list)) if isinstance(entry.get(id), str)]
    chosen = text_at(given, current)
    names = {entry[id]: _name(entry, entry[id]) for entry in entries}
    if chosen and chosen not in names:
        names = {chosen: chosen, **names}
    return SessionOption(method, key, tuple(names), chosen, names=tuple(names.values())) if names else None


def _name(entry: dict[str, Any], id: str) -> str:
    return text_at(entry, "name") or id
