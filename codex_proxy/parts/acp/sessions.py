"""The opening of a session until its first prompt: sets mode, model and effort, and waits until the agent has listed
the client's tools. Without IO. Models are in an option (`session/set_config_option`) or in `models`
(`session/set_model`); modes in an option or in `modes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.shared.conversation import NO_TURN, ChannelRequests
from codex_proxy.agents.shared.failures import BAD_ANSWER, CONVERSATION_LOST
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.json_values import objects_in, text_at, value_at
from codex_proxy.core.turn import Turn, without_content
from codex_proxy.parts.acp.content import Prompt, first_prompt, later_prompt
from codex_proxy.parts.acp.failures import failure_of_error, unknown_model
from codex_proxy.parts.acp.messages import INVALID_PARAMS, Message, RpcError, ToolsListed, new_session
from codex_proxy.parts.acp.presets import Program

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
    asks = turn.approvals == "ask" or turn.toolset is not None
    wanted = program.modes(turn.sandbox, tools=tools, asks=asks)
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


NOT_LISTED: Final = Failure(
    FaultKind.UNAVAILABLE,
    "The agent did not connect to the tools of the request in time. Try again.",
    retry_after=5,
)
TITLE: Final = "codex-proxy"
"""The title that this server gives to sessions; otherwise an agent would call its model for one."""


class SessionOpening:
    def __init__(
        self,
        requests: ChannelRequests[int, Message],
        program: Program,
        servers: Sequence[dict[str, Any]],
        *,
        ahead: bool,
    ) -> None:
        """`servers` are the entries of `mcpServers`; with any, the prompt waits for `ToolsListed`. `ahead`: whether
        `session/new` was already sent.
        """
        self.session = ""
        self.model = ""
        """The session's model; empty if the agent does not report it."""
        self._prompt = Prompt([])
        self._requests = requests
        self._program = program
        self._servers = list(servers)
        self._result: list[dict[str, Any]] | Failure | None = None
        self._kind: Literal["new", "ahead", "reopened", "lost", "over"] = "ahead" if ahead else "new"
        """How the session is opened. `lost`: it could not be reopened. `over`: it was set up, or is no
        longer wanted.
        """
        self._tools_listed = not servers
        self._turn = NO_TURN
        self._has_tools = False
        self._setup: deque[tuple[Request, Callable[[RpcError], Failure]]] = deque()
        """The requests before the first prompt, each with the conversion of its error to the turn's failure."""

    @property
    def is_lost(self) -> bool:
        return self._kind == "lost"

    @property
    def awaits_tools(self) -> bool:
        return not self._tools_listed

    def take_result(self) -> list[dict[str, Any]] | Failure | None:
        """Returns, once, the first prompt's content blocks, or why it cannot be sent; None until then."""
        result, self._result = self._result, None
        return result

    def open_new(self, turn: Turn) -> None:
        self._turn, self._has_tools = without_content(turn), bool(turn.tools)
        self._prompt = first_prompt(turn.history, takes_system=self._program.declared.system_prompt)
        if self._kind == "ahead":
            self._requests.expect(self._on_opened)
        else:
            self._requests.send("session/new", self._params(turn, self._prompt.system), self._on_opened)

    def reopen(self, turn: Turn, session: str, new_items: Sequence[HistoryItem]) -> None:
        """Opens a closed session, which has not seen `new_items`."""
        self._turn, self._has_tools = without_content(turn), bool(turn.tools)
        if self._kind == "ahead":
            self._requests.expect(self._close_unused)
        self._kind, self.session = "reopened", session
        method = self._program.reopen_method
        if not method:
            self._fail(CONVERSATION_LOST)
            return
        self._prompt = Prompt(later_prompt(new_items).blocks)
        # Not every agent stores the system prompt.
        system = first_prompt(turn.history, takes_system=self._program.declared.system_prompt).system
        self._requests.send(method, {"sessionId": session, **self._params(turn, system)}, self._on_opened)

    def cancel(self) -> None:
        if self._kind != "lost":
            self._kind = "over"

    def close(self, session: str) -> None:
        if session and self._program.declared.closes:
            self._requests.send("session/close", {"sessionId": session})

    def on_tools_listed(self, message: ToolsListed) -> None:
        if self._tools_listed:
            return
        self._tools_listed = True
        if not message.in_time and self._program.preset.tested_release:
            self._fail(NOT_LISTED)  # a model without the client's tools would do something else
        elif self.session and not self._requests:
            self._continue()

    def _params(self, turn: Turn, system: str) -> dict[str, Any]:
        params = new_session(turn.workdir, self._servers, self._program.preset.session_meta)
        if system:
            params["systemPrompt"] = {"mode": "append", "content": [{"type": "text", "text": system}]}
        return params

    def _close_unused(self, message: Message) -> None:
        """Closes the session that was opened ahead: the turn continues another one."""
        if isinstance(message.session, str):
            self.close(message.session)

    def _on_opened(self, message: Message) -> None:
        if message.error is not None:
            self._fail(failure_of_error(message.error, self._program.preset))
            return
        session = self.session if message.session is None else message.session
        if not isinstance(session, str) or not session:
            self._fail(BAD_ANSWER)
            return
        self.session = session
        if self._kind == "over":
            return
        plan = plan_setup(message.result, session, self._turn, self._program, tools=self._has_tools)
        if isinstance(plan, Failure):
            self._fail(plan)
            return
        self.model = plan.model
        self._setup.extend(plan.requests)
        if titled_by := self._program.preset.titled_by:
            self._requests.send(titled_by, {"sessionId": session, "title": TITLE})
        self._continue()

    def _continue(self) -> None:
        if self._kind == "over":
            return
        if self._setup:
            (method, params), on_refusal = self._setup.popleft()
            self._requests.send(method, params, lambda message: self._on_set_up(message, on_refusal))
        elif self._tools_listed or self._program.preset.lists_late:
            self._kind = "over"
            self._result, self._prompt = self._prompt.blocks, Prompt([])

    def _on_set_up(self, message: Message, on_refusal: Callable[[RpcError], Failure]) -> None:
        if message.error is None:
            self._continue()
        else:
            self._fail(on_refusal(message.error))

    def _fail(self, failure: Failure) -> None:
        if self._kind == "over":
            return
        if self._kind == "reopened":
            self._kind, self.session = "lost", ""
            failure = CONVERSATION_LOST
        else:
            self._kind = "over"
        self._result = failure
