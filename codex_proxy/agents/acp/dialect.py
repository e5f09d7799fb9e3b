"""The dialect of ACP: converts the turns of one session to the agent's messages, and its messages to events.
Without IO.

A turn is `session/new`, requests that set the mode and the model, and `session/prompt`, whose answer ends the turn.
To continue a session that was closed, `session/resume` or `session/load` is sent in place of `session/new`; the
updates about earlier turns that follow are dropped. The agent calls the client's tools at the session's tool server
(an MCP server); its turn continues when a later request of the client brings the outputs. After a turn that
succeeded the session takes another prompt; after one that failed or was cancelled it takes none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from codex_proxy.agents.acp.client_tools import ClientTools, call_result
from codex_proxy.agents.acp.failures import (
    failure_of_error,
    failure_of_session,
    failure_of_text,
    unknown_model,
)
from codex_proxy.agents.acp.messages import (
    CANCELLED,
    INVALID_PARAMS,
    Input,
    Message,
    ModelCallFailed,
    RpcError,
    ToolCalled,
    ToolDropped,
    ToolsListed,
    ToolsSettled,
    answer,
    decision,
    notification,
    refusal,
    request,
    request_id,
    tool_output,
)
from codex_proxy.agents.acp.program import Program
from codex_proxy.agents.acp.prompt import first_prompt, later_prompt
from codex_proxy.agents.acp.session_setup import UNNAMED_MODEL, Request, session_options_of
from codex_proxy.agents.acp.turn_states import CLIENT_WAITS, TABLE, TurnChange, TurnState
from codex_proxy.agents.acp.updates import INFO, UpdateReader, session_failure
from codex_proxy.agents.acp.usage import UsageCounter
from codex_proxy.agents.conversions import custom_input
from codex_proxy.agents.dialect import NOTHING, Decision, Ended, Reply, Step, ToolReply
from codex_proxy.agents.failures import CONVERSATION_LOST, failure_from_exit, stop_from_text
from codex_proxy.core.events import (
    ApprovalRequested,
    Event,
    Notice,
    RawItem,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryOutput
from codex_proxy.core.turn import Turn, without_content

STOPS = {
    "end_turn": Stop.STOP,
    "max_tokens": Stop.LENGTH,
    "max_turn_requests": Stop.LENGTH,
    "refusal": Stop.CONTENT_FILTER,
    "cancelled": Stop.INTERRUPTED,
}
UNREADABLE_ANSWER = Failure(
    kind=FaultKind.AGENT_PROTOCOL,
    message="The agent sent a message that this server does not understand. Try again, or update the agent.",
)
NO_SAFE_MODE = (
    "{} offers no mode that is read-only or asks for permission. To serve its turns, the "
    "operator must start the server with --agent-unconfined."
)
UNEXPLAINED = Failure(
    kind=FaultKind.UPSTREAM_ERROR,
    message="The agent ended its turn without an answer or a reason. Try again.",
)
APPROVALS = {"execute": "command", "edit": "file_change", "delete": "file_change", "move": "file_change"}


class AcpTurn:
    """The `Dialect` of agents that speak ACP: the turns of one session, one after the other. It reads the messages
    of one channel of an `AcpConnection` and the tool server's events; `turn_states` has its states."""

    def __init__(
        self,
        channel: int,
        program: Program,
        new_id: Callable[[str], str],
        *,
        servers: Sequence[dict[str, Any]] = (),
        ahead: bool = False,
    ) -> None:
        """`channel` is the number of the session's channel, from which its request ids are made. `new_id` returns a
        new id that begins with the given prefix. `servers` are the entries of `mcpServers` in `session/new`; if
        there are any, the first prompt waits for `ToolsListed`. `ahead`: `session/new` was already sent on the
        channel."""
        self.flattened = False
        """Whether the history was sent as one text."""
        self._channel = channel
        self._program = program
        self._new_id = new_id
        self._servers = list(servers)
        self._state = TABLE.start
        self._requests = 0
        self._ahead = ahead
        self._handlers: dict[int | str, Callable[[Message], None]] = {}
        """The handler for the answer to each unanswered request, by request id."""
        self._turn: Turn | None = None
        self.session = ""
        """The agent's id of the session; empty before it is known."""
        self.lost = False
        """Whether the closed session could not be opened again."""
        self._reopening = False
        self._model = ""
        self._setup: deque[tuple[Request, Callable[[RpcError], Failure]]] = deque()
        """The requests that still have to be made before the first prompt, each with a function that converts its
        error to the turn's failure."""
        self._prompt: list[dict[str, Any]] = []
        """The first prompt, until it is sent."""
        self._tools = ClientTools()
        self._tools_listed = not self._servers
        self._reader = UpdateReader(new_id, program.preset)
        self._usage = UsageCounter(program.preset.usage)
        self._events: list[Event] = self._reader.events
        """Events since the last step; the reader appends to the same list."""
        self._writes: list[bytes] = []
        self._new_calls: list[ToolCalled] = []
        """Calls of the client's tools that have not been passed on to the client yet."""
        self._settled = False
        """Whether the time to wait for further calls is over, although the agent has not reported all calls that
        were made."""
        self._waiting: dict[str, str] = {}
        """The calls whose outputs the client was asked for: the tool server's key of each, by call id."""
        self._permissions: dict[str, tuple[int | str, Any]] = {}
        """Unanswered requests for permission: the request id and the options of each, by an id of this server."""
        self._rejected = False
        """Whether a request for permission was rejected in this turn. Some agents end the turn then."""
        self._broken = False
        """Whether the agent has stopped waiting for the output of a call in this turn and gone on without it."""

    # --- the dialect ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._state is TurnState.DONE

    def begin(self, turn: Turn) -> Step:
        self._turn = without_content(turn)
        self._tools = ClientTools(turn.tools)
        self._reader.start_turn(self._tools)
        prompt = first_prompt(turn.history, takes_system=self._program.declared.system_prompt)
        self._prompt, self.flattened = prompt.blocks, prompt.flattened
        if self._ahead:
            self._expect(self._session_opened)
        else:
            self._request("session/new", self._session_params(turn, prompt.system), self._session_opened)
        return self._take_step()

    @property
    def thread(self) -> str:
        return self.session if self._state is TurnState.REUSABLE and self._program.reopening else ""

    def reopen(self, turn: Turn, thread: str, new_items: Sequence[HistoryItem]) -> Step:
        self._turn = without_content(turn)
        self._tools = ClientTools(turn.tools)
        self._reader.start_turn(self._tools)
        self._reopening, self.session = True, thread
        method = self._program.reopening
        if self._ahead:
            self._expect(self._close_unused)
        if not method:
            self._fail(CONVERSATION_LOST)
            return self._take_step()
        self._prompt = later_prompt(new_items).blocks
        # Not every agent stores the system prompt.
        system = first_prompt(turn.history, takes_system=self._program.declared.system_prompt).system
        params = {"sessionId": thread, **self._session_params(turn, system)}
        self._request(method, params, self._session_opened)
        return self._take_step()

    def _session_params(self, turn: Turn, system: str) -> dict[str, Any]:
        """Returns the parameters of `session/new`, or those of `session/resume` and `session/load` except the
        session's id. `system` is the system prompt; empty if there is none."""
        params: dict[str, Any] = {"cwd": turn.workdir, "mcpServers": self._servers}
        if system:
            content = [{"type": "text", "text": system}]
            params["systemPrompt"] = {"mode": "append", "content": content}
        return params

    @property
    def can_resume(self) -> bool:
        if self._state is TurnState.REUSABLE:
            return True
        return self._state is TurnState.PROMPTING and bool(self._waiting) and not self._broken

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        if not self.can_resume:
            self._end(TurnEnded(Stop.FAILED, "provider", CONVERSATION_LOST))
            return self._take_step()
        self._turn = without_content(turn)
        self._events.append(TurnStarted(self.session, self._model or turn.model))
        if self._state is TurnState.REUSABLE:
            self._reader.start_turn(self._tools)
            self._usage.start_turn()
            self._rejected = self._broken = False
            self._send_prompt(later_prompt(new_items).blocks)
        else:
            self._usage.start_request()
            self._reader.start_request()
            for item in new_items:
                if isinstance(item, HistoryOutput):
                    self._give_output(item.call_id, ToolReply(item.parts))
            self._ask_client()
        return self._take_step()

    def receive(self, lines: Sequence[Input]) -> Step:
        active = self._state is TurnState.PROMPTING
        for message in lines:
            if isinstance(message, Message):
                update = message.params.update
                if message.method == "session/update" and update is not None:
                    if active:
                        self._read_update(update)
                    continue
                self._handle(message)
            elif isinstance(message, ModelCallFailed):
                if active:
                    self._reader.retry(message.text)
            else:
                self._handle_tool_server(message)
            active = self._state is TurnState.PROMPTING
        return self._take_step()

    def answer(self, request_id: str, reply: Reply) -> Step:
        if isinstance(reply, ToolReply):
            self._give_output(request_id, reply)
        elif isinstance(reply, Decision) and (asked := self._permissions.pop(request_id, None)) is not None:
            id, options = asked
            self._rejected = self._rejected or not reply.approve
            self._writes.append(answer(id, decision(options, allow=reply.approve)))
        return self._take_step()

    def interrupt(self) -> Step:
        if self._state in CLIENT_WAITS:
            self._close_items()
            self._events.append(TurnEnded(Stop.INTERRUPTED))
        if self._state is TurnState.PROMPTING:
            self._writes += [answer(id, CANCELLED) for id, _ in self._permissions.values()]
            self._permissions.clear()
            self._writes.append(notification("session/cancel", {"sessionId": self.session}))
            self._waiting.clear()
            self._new_calls.clear()
        if self._state is not TurnState.CANCELLING:
            self._change(TurnChange.UNWANTED)
            if self._state is TurnState.DONE:
                self._close_session(self.session)
            else:
                self._stop_if_answered()
        return self._take_step()

    def eof(self, ended: Ended) -> Step:
        if self._state in CLIENT_WAITS:
            self._close_items()
            self._events.append(TurnEnded(Stop.FAILED, "provider", failure_from_exit(ended)))
        self._change(TurnChange.PROCESS_ENDED)
        self._handlers.clear()
        events = self._events[:]
        self._events.clear()
        self._writes.clear()
        return Step(events)

    # --- opening the session --------------------------------------------------------------------

    def _request(self, method: str, params: dict[str, Any], on_answer: Callable[[Message], None]) -> None:
        self._writes.append(request(self._expect(on_answer), method, params))

    def _expect(self, on_answer: Callable[[Message], None]) -> int:
        """Sets the handler for the answer to the next request. Returns the request's id."""
        self._requests += 1
        id = request_id(self._channel, self._requests)
        self._handlers[id] = on_answer
        return id

    def _close_unused(self, message: Message) -> None:
        """Handles the answer to the `session/new` that was sent before the turn came: closes the new session,
        because the turn continues an existing one."""
        session = message.result.get("sessionId") if isinstance(message.result, dict) else None
        if isinstance(session, str):
            self._close_session(session)

    def _session_opened(self, message: Message) -> None:
        if message.error is not None:
            self._fail(failure_of_error(message.error, self._program.preset))
            return
        told = message.result.get("sessionId") if isinstance(message.result, dict) else None
        session = self.session if self._reopening and told is None else told
        if not isinstance(session, str) or not session:
            self._fail(UNREADABLE_ANSWER)
            return
        self.session = session
        if self._state is not TurnState.OPENING:
            return
        failure = self._plan_setup(message.result)
        if failure is not None:
            self._fail(failure)
            return
        self._continue_setup()

    def _plan_setup(self, result: object) -> Failure | None:
        """Stores in `_setup` the requests that set the mode, model and effort of the session. `result` is the
        agent's answer to the request that opened it. Returns the failure if the turn cannot run on this session,
        else None."""
        turn, program = self._turn, self._program
        assert turn is not None
        session_options = session_options_of(result)
        wanted = program.modes(turn.sandbox, tools=bool(self._tools))
        mode = session_options.mode_of(wanted)
        if wanted and mode is None and not program.unconfined:
            message = NO_SAFE_MODE.format(program.preset.title)
            return Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=message)
        self._model = session_options.model.current if session_options.model is not None else ""
        if mode is not None and session_options.mode is not None:
            self._plan(session_options.mode.request(self.session, mode), self._failure_of_refusal)
        models = session_options.model.values if session_options.model is not None else ()
        # Before anybody had signed in, the agent listed no model: then its own choice is meant.
        any_will_do = turn.model in ("", UNNAMED_MODEL) and turn.model not in models
        if turn.model != self._model and not any_will_do:
            if session_options.model is None or turn.model not in models:
                return unknown_model(turn.model, program.preset)
            self._plan(session_options.model.request(self.session, turn.model), self._failure_of_model)
            self._model = turn.model
        if session_options.effort is not None and turn.effort in session_options.effort.values:
            self._plan(session_options.effort.request(self.session, turn.effort), self._failure_of_refusal)
        return None

    def _plan(self, wanted: Request | None, on_refusal: Callable[[RpcError], Failure]) -> None:
        if wanted is not None:
            self._setup.append((wanted, on_refusal))

    def _failure_of_refusal(self, error: RpcError) -> Failure:
        return failure_of_error(error, self._program.preset)

    def _failure_of_model(self, error: RpcError) -> Failure:
        failure = failure_of_error(error, self._program.preset)
        if failure.kind is FaultKind.AGENT_NOT_AUTHENTICATED and error.code != INVALID_PARAMS:
            return failure
        assert self._turn is not None
        return unknown_model(self._turn.model, self._program.preset)

    def _continue_setup(self) -> None:
        """Sends the next request that sets up the session. If there are no more, sends the prompt; if the agent has
        not listed the client's tools yet, waits for that first."""
        if self._setup:
            (method, params), on_refusal = self._setup.popleft()
            self._request(method, params, lambda message: self._set_up(message, on_refusal))
        elif self._tools_listed or self._program.preset.lists_late:
            blocks, self._prompt = self._prompt, []
            self._events.append(TurnStarted(self.session, self._model))
            self._send_prompt(blocks)

    def _set_up(self, message: Message, on_refusal: Callable[[RpcError], Failure]) -> None:
        if self._state is not TurnState.OPENING:
            return
        if message.error is not None:
            self._fail(on_refusal(message.error))
        else:
            self._continue_setup()

    def _send_prompt(self, blocks: list[dict[str, Any]]) -> None:
        self._change(TurnChange.PROMPTED)
        params = {"sessionId": self.session, "prompt": blocks}
        self._request("session/prompt", params, self._prompt_answered)

    # --- what the agent says --------------------------------------------------------------------

    def _read_update(self, update: Any) -> None:
        self._reader.read(update)
        if self._reader.calls_model_again:
            self._usage.add_model_call()
        if self._settled and not self._waiting and self._all_calls_arrived():
            self._ask_client()
        usage = self._usage.read_update(update.meta)
        if usage is not None:
            self._events.append(UsageReported(usage, "provider"))

    def _handle(self, message: Message) -> None:
        if message.method is None:
            handler = self._handlers.pop(message.id, None) if message.id is not None else None
            if handler is not None:
                handler(message)
                self._stop_if_answered()
        elif message.id is not None:
            self._handle_request(message, message.id)

    def _handle_request(self, message: Message, id: int | str) -> None:
        if message.method != "session/request_permission":
            self._writes.append(refusal(id))
            return
        call, options = message.params.tool_call, message.params.options
        if self._state is not TurnState.PROMPTING or call is None:
            self._writes.append(answer(id, CANCELLED))
            return
        turn = self._turn
        assert turn is not None
        call = self._reader.add_call(call)
        if self._tools.may_be_allowed(call) or self._program.allows_all(turn.sandbox):
            self._writes.append(answer(id, decision(options, allow=True)))
            return
        name = self._new_id("ask_")
        self._permissions[name] = (id, options)
        kind: Any = APPROVALS.get(call.kind or "", "permission")
        self._events.append(ApprovalRequested(name, kind, ""))

    def _prompt_answered(self, message: Message) -> None:
        if self._state is not TurnState.PROMPTING:
            return
        if message.error is not None:
            self._reader.drop_held()
            self._fail(failure_of_error(message.error, self._program.preset))
            return
        result = message.result if isinstance(message.result, dict) else {}
        failure = self._failure_in(result)
        if failure is not None:
            self._fail(failure)
            return
        usage = self._usage.read_result(result)
        if usage is not None:
            self._events.append(UsageReported(usage, "provider"))
        stop = _cut_in(result) or STOPS.get(str(result.get("stopReason")))
        if stop is None:
            self._fail(UNREADABLE_ANSWER)
        elif stop is Stop.INTERRUPTED:
            self._end(TurnEnded(stop, "provider"))
        else:
            self._end(TurnEnded(stop, "provider"), well=True)

    def _failure_in(self, result: dict[str, Any]) -> Failure | None:
        """Returns the failure that the result of `session/prompt` describes; None if the turn succeeded. Held text
        that is no error stays held; a text of the agent about itself becomes a `Notice`."""
        preset = self._program.preset
        told = session_failure(result.get("_meta"))
        if told is not None and told.get("severity") == "error" and _cut_in(result) is None:
            return failure_of_session(told, preset)
        held = self._reader.drop_held()
        if held and result.get("usage") is None and not held.startswith(INFO):
            return failure_of_text(held, preset)
        if held.startswith(INFO) and result.get("usage") is None:
            self._events.append(Notice("agent_info", held.removeprefix(INFO)[:200]))
        elif held:
            self._reader.held = held
        if result.get("stopReason") != "end_turn" or result.get("usage") is not None or told is not None:
            return None
        untold = preset.errors_as_text and not self._rejected
        return UNEXPLAINED if untold or (preset.null_usage_fails and "usage" in result) else None

    # --- the client's tools ---------------------------------------------------------------------

    def _handle_tool_server(self, message: ToolsListed | ToolCalled | ToolsSettled | ToolDropped) -> None:
        match message:
            case ToolsListed():
                self._listed(message)
            case ToolCalled() if self._state is TurnState.PROMPTING:
                self._usage.add_model_call()
                self._new_calls.append(message)
                self._settled = False
            case ToolCalled():
                self._writes.append(tool_output(message.key, call_result((), success=False)))
            case ToolsSettled() if not self._waiting and (message.last or self._all_calls_arrived()):
                self._ask_client()
            case ToolsSettled():
                self._settled = True
            case ToolDropped():
                self._dropped(message.key)

    def _listed(self, message: ToolsListed) -> None:
        if self._tools_listed:
            return
        self._tools_listed = True
        if not message.in_time:
            self._events.append(Notice("tools_not_listed"))
        if self._state is TurnState.OPENING and self.session and not self._handlers:
            self._continue_setup()

    def _all_calls_arrived(self) -> bool:
        """Returns whether as many calls have arrived at the tool server as the agent has reported in its updates;
        for an agent that makes its calls one after the other, whether at most as many have. If so, no further call
        of this step (one call of the model), and no text that comes before the calls, can arrive."""
        called, reported = len(self._new_calls), self._reader.open_client_calls
        return called <= reported if self._program.preset.one_call_at_a_time else called == reported

    def _ask_client(self) -> None:
        """Adds a `ToolCallRequested` event for each new call, so that the client is asked for the outputs, and then
        the end of the step (one call of the model). For a call of a tool that the client does not offer, the agent
        gets a failed output instead. Does nothing if there are no new calls."""
        calls, self._new_calls = self._new_calls, []
        self._settled = False
        if not calls or self._state is not TurnState.PROMPTING:
            return
        self._reader.end_texts()
        for call in calls:
            tool = self._tools.tool(call.name)
            if tool is None:
                self._writes.append(tool_output(call.key, call_result((), success=False)))
                continue
            call_id = (
                call.call_id if call.call_id and call.call_id not in self._waiting else self._new_id("call_")
            )
            self._waiting[call_id] = call.key
            is_custom = tool.kind == "custom"
            text = custom_input(call.arguments) if is_custom else call.arguments
            self._events.append(_raw_call(call_id, tool.name, text, custom=is_custom))
            self._events.append(ToolCallRequested(call_id, call_id, tool.name, text, "", tool.kind))
        self._events.append(StepCompleted())

    def _give_output(self, call_id: str, reply: ToolReply) -> None:
        key = self._waiting.pop(call_id, None)
        if key is not None:
            self._writes.append(tool_output(key, call_result(reply.parts, success=reply.success)))
            if not self._waiting:
                self._ask_client()

    def _dropped(self, key: str) -> None:
        """Handles `ToolDropped` for the call `key`: forgets the call if the client was not asked for its output
        yet. If it was, the turn cannot be resumed with outputs any more (`can_resume`)."""
        self._new_calls = [call for call in self._new_calls if call.key != key]
        if key in self._waiting.values():
            self._broken = True

    # --- the end --------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        if self._reopening and self._state is TurnState.OPENING:
            self.lost, self.session, failure = True, "", CONVERSATION_LOST
        if self._state in CLIENT_WAITS or self._state is TurnState.REUSABLE:
            self._end(TurnEnded(Stop.FAILED, "provider", failure))

    def _end(self, ended: TurnEnded, *, well: bool = False) -> None:
        """Ends the client's turn with `ended`. Called if nothing has to be cancelled, because the agent has ended
        its turn or never got the prompt. `well`: the session can be used for another turn."""
        self._close_items()
        self._events.append(ended)
        self._waiting.clear()
        self._new_calls.clear()
        self._permissions.clear()
        if self._state in CLIENT_WAITS or self._state is TurnState.REUSABLE:
            self._change(TurnChange.ENDED_WELL if well else TurnChange.ENDED_BADLY)

    def _close_items(self) -> None:
        if self._state is TurnState.PROMPTING:
            self._reader.end_texts()

    def _stop_if_answered(self) -> None:
        """Closes the session of a cancelled turn if the agent has answered all requests on the channel."""
        if self._state is TurnState.CANCELLING and not self._handlers:
            self._change(TurnChange.STOPPED)
            self._close_session(self.session)

    def _close_session(self, session: str) -> None:
        """Sends `session/close` if the agent supports it, without waiting for the answer."""
        if session and self._program.declared.closes:
            self._requests += 1
            id = request_id(self._channel, self._requests)
            self._writes.append(request(id, "session/close", {"sessionId": session}))

    def _change(self, change: TurnChange) -> None:
        self._state = TABLE[self._state, change]

    def _take_step(self) -> Step:
        if not self._events and not self._writes:
            return NOTHING
        step = Step(self._events[:], b"".join(self._writes))
        self._events.clear()
        self._writes.clear()
        return step


def _cut_in(result: dict[str, Any]) -> str | None:
    """Returns the stop reason (`Stop`) if a result of `session/prompt` has a `sessionFailure` that says that the
    answer was cut off; None if not."""
    told = session_failure(result.get("_meta"))
    return None if told is None else stop_from_text(str(told.get("title")))


def _raw_call(call_id: str, name: str, text: str, *, custom: bool) -> RawItem:
    """Returns a call as an item of the Responses API (`function_call` or `custom_tool_call`), for the history of
    later turns. `text` is the JSON of the arguments, or the input of a `custom` tool."""
    kind, field = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
    return RawItem(kind, msgspec.json.encode({"type": kind, "call_id": call_id, "name": name, field: text}))
