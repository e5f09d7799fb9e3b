"""The dialect of Claude Code's JSON lines. Without IO. A turn is `initialize` with prompt, tools and schema; the
history, of which an empty `result` confirms each line of the user; the line to answer; and the answer's stream until
`result`. Over the same lines this server is an MCP server with the client's tools. A message's calls are passed on when
it ends, and wait without limit. A process whose turn has succeeded takes the next one.

A further input is a line that is written while tools run: the program takes it up with their outputs, and says so. If
the tools were quicker, it goes on with the line behind the `result`, which then does not end the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import NOTHING, Decision, Step, ToolReply
from codex_proxy.agents.shared.conversation import NO_TURN, ConversationStates, ConversationTurn, PendingCalls
from codex_proxy.agents.shared.conversions import call_ids_in, mcp_content
from codex_proxy.agents.shared.failures import clean_text
from codex_proxy.agents.shared.history_items import raw_call, raw_output
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part, divided
from codex_proxy.core.damaged_json import is_torn
from codex_proxy.core.events import (
    AccountLimitsReported,
    HistoryCompacted,
    InputTaken,
    Notice,
    Retrying,
    StepCompleted,
    Stop,
    ToolCallRequested,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, Tool
from codex_proxy.core.states import StateTable
from codex_proxy.core.turn import Turn, without_content
from codex_proxy.parts.claude_code import tasks
from codex_proxy.parts.claude_code.calls import MODEL_PREFIX, model_name, question_event, tool_entry
from codex_proxy.parts.claude_code.history import Conversation, PendingLines, conversation, lines_of
from codex_proxy.parts.claude_code.messages import (
    CLIENT_SERVER,
    ControlRequest,
    ControlResponse,
    Message,
    Result,
    Retry,
    RpcMessage,
    RpcParams,
    StreamEvent,
    StreamTokens,
    WholeMessage,
    control_answer,
    control_refusal,
    control_request,
    decode,
    may_carry_text,
    rpc_answer,
    rpc_refusal,
    string_in,
    user_line,
    uuid_of,
)
from codex_proxy.parts.claude_code.results import BROKE_OFF, TurnUsage, failure_of, retry_event
from codex_proxy.parts.claude_code.step_reader import StepReader
from codex_proxy.parts.claude_code.task_plan import TaskPlan
from codex_proxy.parts.claude_code.tasks import Tasks


class TurnState(Enum):
    STARTING = "the program is given the prompt, the tools and the settings"
    FEEDING = "the program is given the history, message by message"
    ACTIVE = "the model works on the turn, or waits for outputs of its calls"
    REUSABLE = "the program's turn ended well: another one can follow on it"
    ENDED = "nothing more is read"


class TurnChange(Enum):
    READY = "the program has taken the settings and listed the tools"
    ASKED = "the program was given the message that it answers"
    ENDED_WELL = "the program has reported the end of its turn"
    ENDED_BADLY = "the turn failed, was given up, or the process ended"
    RESUMED = "another turn begins"


TABLE = StateTable(
    TurnState.STARTING,
    {
        TurnState.STARTING: {TurnChange.READY: TurnState.FEEDING},
        TurnState.FEEDING: {TurnChange.ASKED: TurnState.ACTIVE},
        TurnState.ACTIVE: {TurnChange.ENDED_WELL: TurnState.REUSABLE},
        TurnState.REUSABLE: {TurnChange.RESUMED: TurnState.FEEDING},
        TurnState.ENDED: {},
    },
    always={TurnChange.ENDED_BADLY: TurnState.ENDED},
)

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.STARTING, TurnState.FEEDING, TurnState.ACTIVE}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.ENDED_BADLY,
)


INITIALIZE, SETTINGS, INTERRUPT = "initialize", "settings", "interrupt"
SYNTHETIC_MODEL: Final = "<synthetic>"
"""The model of messages that Claude Code writes itself, which report errors."""
EFFORTS: Final = {"none": "low", "minimal": "low"}
"""Replacements of efforts that Claude Code lacks."""
STOPS: Final = {
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.CONTENT_FILTER,
}
"""How a turn ends, by Anthropic's stop reasons for incomplete or refused answers."""
TELLS_INPUT: Final = "msg_lifecycle_v1"
"""The capability of a release that says what becomes of a line of the user that has a `uuid`."""
BAD_ANSWER: Final = Failure(
    FaultKind.AGENT_PROTOCOL,
    "Claude Code sent a message that this server does not understand. Try again; if it "
    "persists, the operator should update Claude Code or codex-proxy.",
)
NO_MESSAGE: Final = Message()
TORN_MESSAGE: Final = Message(whole=False)
NEEDED: Final = {
    TurnState.STARTING: frozenset({"control_response", "control_request"}),
    TurnState.FEEDING: frozenset({"result"}),
    TurnState.ACTIVE: frozenset({"result"}),
}
"""The types of lines without which a turn would wait for ever."""
DENIED: Final = "This server allows no more than its sandbox does: the turn is {}. Go on without it."
DENIED_BY_CLIENT: Final = "The user has declined this. Go on without it."


class ClaudeCodeTurn(ConversationTurn[TurnState, TurnChange, msgspec.Raw]):
    stores_sessions = True
    reopen_id = ""  # the client names a stored session; another one cannot be opened again
    lost = False
    """Whether the stored session could not be opened again."""

    def __init__(self, *, takes_mark: bool = True, spoken: Conversation | None = None) -> None:
        """`spoken`: the turn's history, if it is converted already."""
        self._tools: dict[str, Tool] = {}
        self._reader = StepReader(NO_TURN, self._tools)
        super().__init__(STATES, self._reader.events)
        self._takes_mark, self._spoken = takes_mark, spoken
        self._feed = PendingLines((), 1)
        self._unready: set[str] = set()
        """Requests that must be answered before the history is written."""
        self._pending = PendingCalls(_output_answer)
        self._usage = TurnUsage()
        self._reported_usage = Usage()
        self._step_open = False
        self._started = self._reopened = False
        self._own_model = ""
        """The model that the program has named."""
        self._error_code: str | None = None
        self._tells_input = False
        """Whether the release says what becomes of a line of the user."""
        self._tools_run = False
        """Whether the model's message has ended with calls, and the next one has not begun."""
        self._inputs: dict[str, Sequence[HistoryMessage]] = {}
        """Further inputs of the client that were not written, by their ids."""
        self._written: dict[str, str] = {}
        """The ids of those that were, and that the program has not taken up, by the `uuid` of their line."""
        self._tasks = Tasks()
        self._result: Result | None = None
        """The `result` behind which the program goes on with what was written."""

    # --- the dialect ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._state in (TurnState.REUSABLE, TurnState.ENDED)

    def reopen(self, turn: Turn, reopen_id: str, new_items: Sequence[HistoryItem]) -> Step:
        """Starts the turn on the stored session with which the process was started."""
        self._reopened = True
        self._reader.task_plan = TaskPlan(is_whole=False)
        system = (self._spoken or conversation(turn.history)).system
        self._spoken = Conversation(system, lines_of(new_items))
        return self.begin(turn)

    def begin(self, turn: Turn) -> Step:
        self._tools = {model_name(tool.name): tool for tool in turn.tools}
        self._reader = StepReader(turn, self._tools, self._reader.task_plan)
        self._events = self._reader.events
        self._reader.calls.start_turn(call_ids_in(turn.history))
        spoken, self._spoken = self._spoken or conversation(turn.history), None
        self._feed = PendingLines(spoken.lines, 1, takes_mark=self._takes_mark)
        fields: dict[str, Any] = {"hooks": None}
        if turn.mode == "model":
            fields["systemPrompt"] = spoken.system
        elif spoken.system:
            fields["appendSystemPrompt"] = spoken.system
        self._unready = {INITIALIZE}
        if self._tools:
            fields["sdkMcpServers"] = [CLIENT_SERVER]
            if (
                self._takes_mark
            ):  # an earlier release lists them when it is asked something, and waits for them
                self._unready.add("tools/list")
        if turn.output_schema is not None:
            fields["jsonSchema"] = turn.output_schema
        self._writes.append(control_request(INITIALIZE, "initialize", **fields))
        settings = {"model": turn.model} if turn.model else {}
        if turn.effort is not None:
            settings["effortLevel"] = EFFORTS.get(turn.effort, turn.effort)
        if settings:
            self._unready.add(SETTINGS)
            self._writes.append(control_request(SETTINGS, "apply_flag_settings", settings=settings))
        self._turn, self._tasks = without_content(turn), Tasks(turn.toolset)
        return self._take_step()

    @property
    def can_resume(self) -> bool:
        return self._state is TurnState.REUSABLE or (
            self._state is TurnState.ACTIVE and self._pending.can_resume
        )

    def _start_again(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        self._reported_usage = Usage()
        self._tools_run = False
        self._reader.calls.start_turn(call_ids_in(turn.history))
        self._change(TurnChange.RESUMED)
        self._feed = PendingLines(lines_of(new_items), self._feed.number, takes_mark=self._takes_mark)
        self._give_next()

    def _take_outputs(self, outputs: Sequence[HistoryOutput]) -> None:
        self._reported_usage = Usage()
        self._usage.begin_request()
        for output in outputs:
            self._writes.append(self._pending.add_reply(output.call_id, ToolReply(output.parts)))

    def receive(self, lines: Sequence[bytes]) -> Step:
        for line in divided(lines):
            message = NO_MESSAGE
            try:
                message = decode(line)
                self._handle(message, line)
            except UnreadableError:
                if message is NO_MESSAGE and is_torn(line):
                    message = TORN_MESSAGE
                self._on_unreadable(message, line)
        return self._take_step()

    def _give_output(self, call_id: str, reply: ToolReply) -> None:
        if call_id in self._pending.waiting:
            self._events.append(raw_output(call_id, reply.parts))
        self._writes.append(self._pending.add_reply(call_id, reply))

    def steer(self, id: str, messages: Sequence[HistoryMessage]) -> Step:
        if self._state in STATES.client_waits:
            self._inputs[id] = messages
            self._write_inputs()
        return self._take_step()

    def interrupt(self) -> Step:
        if self.finished:
            self._change(TurnChange.ENDED_BADLY)
            return NOTHING
        self._writes.append(control_request(INTERRUPT, "interrupt"))
        self._end(TurnEnded(Stop.INTERRUPTED))
        return self._take_step()

    # --- lines ----------------------------------------------------------------------------------

    def _handle(self, message: Message, line: bytes) -> None:
        if message.type == "control_request":
            self._on_control_request(message)
        elif message.type == "control_cancel_request":
            self._withdraw(message.request_id or "")
        elif self._state is TurnState.ENDED:
            pass
        elif not (message.whole and message.type):
            raise UnreadableError("the line breaks off, or has no type")
        elif message.type == "stream_event":
            if message.parent_tool_use_id is None:
                self._stream(message.event or StreamEvent())
        elif message.type == "control_response":
            self._on_control_response(decode_part(message.response, ControlResponse))
        elif message.type == "assistant":
            self._on_assistant(message)
        elif message.type == "user":
            whole = decode_part(message.message, WholeMessage, loosely=True)
            self._on_user(whole)
            if message.parent_tool_use_id and self._turn.subagents and self._state is TurnState.ACTIVE:
                self._events += self._tasks.on_message(message.parent_tool_use_id, whole)
        elif message.type == "result":
            self._on_result(decode_part(line, Result, loosely=True))
        elif message.type == "system":
            self._on_system(message, line)
        elif message.type == "command_lifecycle":
            self._on_line_state(message)
        elif message.type == "rate_limit_event" and message.rate_limit_info:
            self._events.append(AccountLimitsReported(bytes(message.rate_limit_info)))

    def _on_unreadable(self, message: Message, line: bytes) -> None:
        """Ends a turn that would wait for what cannot be read, or lose a part of its text. Else adds a `Notice`."""
        if self._state is TurnState.ENDED:
            return
        client_waits, needed = self._state in STATES.client_waits, NEEDED.get(self._state, frozenset())
        unanswered = message.type == "control_request" and not message.request_id
        is_lost = may_carry_text(message, line)
        if client_waits and (unanswered or is_lost or message.lacks_type or message.type in needed):
            self._fail(BAD_ANSWER)
        else:
            self._events.append(Notice("unreadable_message"))

    def _on_system(self, message: Message, line: bytes) -> None:
        if message.subtype == "init":
            self._session_id = message.session_id or self._session_id
            self._tells_input = TELLS_INPUT in message.capabilities
            self._own_model = message.model or self._turn.model
            self._tell_start()
        elif message.subtype == "api_retry" and self._state is TurnState.ACTIVE:
            self._step_open = False
            self._events.append(retry_event(decode_part(line, Retry)))
        elif message.subtype == "compact_boundary" and self._state is TurnState.ACTIVE:
            self._events.append(HistoryCompacted())
        elif message.subtype in tasks.LINES and self._turn.subagents and self._state is TurnState.ACTIVE:
            self._events += self._tasks.on_line(message.subtype, line)

    def _tell_start(self) -> None:
        """Tells the session, once. One that is stored has to have the whole history."""
        begun = self._state is TurnState.ACTIVE or self._turn.stored_session is None
        if begun and self._session_id and not self._started:
            self._started = True
            self._note_start(self._own_model)

    # --- the beginning --------------------------------------------------------------------------

    def _on_control_response(self, response: ControlResponse) -> None:
        id = response.request_id
        if not id:
            raise UnreadableError("it does not say what it answers")
        if self._state is not TurnState.STARTING or id not in self._unready:
            return
        if response.subtype != "success":
            said = clean_text(response.error or "")
            what = "the turn" if id == INITIALIZE else "the model or the effort of the request"
            message = f"Claude Code rejected {what}: {said}" if said else f"Claude Code rejected {what}."
            self._fail(Failure(FaultKind.AGENT_PROTOCOL, message))
            return
        self._mark_ready(id)

    def _mark_ready(self, what: str) -> None:
        self._unready.discard(what)
        if self._state is TurnState.STARTING and not self._unready:
            self._change(TurnChange.READY)
            self._give_next()

    def _give_next(self) -> None:
        """Writes lines of the history up to the next line of the user. The model answers the last one of all."""
        writes, last = self._feed.next()
        self._writes.append(writes)
        if last:
            self._change(TurnChange.ASKED)
            self._usage.begin_turn()
            self._reader.begin_turn()
            self._error_code = None
            self._step_open = False
            self._tell_start()

    # --- the model ------------------------------------------------------------------------------

    def _stream(self, event: StreamEvent) -> None:
        if self._state is not TurnState.ACTIVE:
            return
        if not event.type or (event.type == "message_start" and event.message is None):
            raise UnreadableError("it is no event")
        if event.type == "message_delta":
            if event.delta is not None and event.delta.stop_reason is not None:
                self._end_step(event.usage, event.delta.stop_reason)
            return
        if event.message is not None and event.type == "message_start":
            self._begin_step()
            begun = self._usage.begin_call(event.message.usage)
            if begun is not None:  # all that is known of a call that is cut
                self._events.append(UsageReported(begun, "provider", partial=True))
        self._reader.feed(event)

    def _begin_step(self) -> None:
        if self._step_open:
            self._events.append(Retrying(BROKE_OFF))
        self._step_open = True
        self._tools_run = False

    def _end_step(self, tokens: StreamTokens | None, stop_reason: str | None) -> None:
        self._step_open = False
        usage = self._usage.end_call(tokens)
        self._add_usage()
        self._ask(self._reader.take_calls())
        self._events.append(StepCompleted(usage))
        self._tools_run = stop_reason == "tool_use"
        self._write_inputs()

    def _add_usage(self) -> None:
        usage = self._usage.request
        if usage != self._reported_usage:
            self._reported_usage = usage
            self._events.append(UsageReported(usage, "provider"))

    def _ask(self, calls: Sequence[ToolCallRequested]) -> None:
        self._pending.add_calls(call.call_id for call in calls)
        self._events += calls

    def _on_assistant(self, message: Message) -> None:
        whole = decode_part(message.message, WholeMessage, loosely=True)
        if whole.model == SYNTHETIC_MODEL:
            self._error_code = string_in(message.error)
        elif self._state is not TurnState.ACTIVE:
            pass
        elif message.parent_tool_use_id is not None:
            if self._turn.subagents:
                self._events += self._tasks.on_message(message.parent_tool_use_id, whole)
            for block in whole.blocks:
                if block.type == "tool_use" and (block.name or "").startswith(MODEL_PREFIX):
                    self._reader.calls.note_sub_agent(block.id or "")
                elif block.type == "tool_use" and not self._turn.subagents:
                    self._reader.start_activity(block)
        elif self._reader.is_new(whole, step_open=self._step_open):
            self._begin_step()
            self._reader.read_message(whole, new=True)
            self._end_step(whole.usage, whole.stop_reason)
        else:
            self._reader.read_message(whole, new=False)

    def _on_user(self, message: WholeMessage) -> None:
        """Ends activities, and calls that the program itself has answered: a client's output for these is not used."""
        for block in message.blocks:
            if block.type == "tool_result":
                self._note_agent_answer(block.tool_use_id or "")
                self._reader.end_activity(block)

    def _note_agent_answer(self, id: str) -> None:
        calls = self._reader.calls.find_own_ids(id)
        if all(call in self._pending.waiting for call in calls):  # else it may be the output of the client
            self._pending.note_agent_answer(calls[0] if calls else id)

    # --- further input --------------------------------------------------------------------------

    def _write_inputs(self) -> None:
        """Writes the inputs that wait, each as a line of the user, if the program takes them up with outputs."""
        if self._state is not TurnState.ACTIVE or not (self._tools_run and self._tells_input):
            return
        for id, messages in self._inputs.items():
            (line,) = lines_of(messages)
            uuid = uuid_of(id)
            self._written[uuid] = id
            self._writes.append(user_line(line.blocks, query=True, takes_mark=self._takes_mark, uuid=uuid))
        self._inputs.clear()

    def _on_line_state(self, message: Message) -> None:
        if message.state == "queued" or message.command_uuid not in self._written:
            return
        id = self._written.pop(message.command_uuid)
        if message.state == "started":
            self._result = None
            self._events.append(InputTaken(id))
        elif self._result is not None and not self._written:  # the program has thrown it away
            self._succeed(self._result)

    # --- what the program asks ------------------------------------------------------------------

    def _on_control_request(self, message: Message) -> None:
        id = message.request_id or ""
        if not id:
            raise UnreadableError("it cannot be answered")
        try:
            request = decode_part(message.request, ControlRequest)
        except UnreadableError:
            self._writes.append(control_refusal(id))
            raise
        if request.subtype == "mcp_message" and request.server_name == CLIENT_SERVER and request.message:
            self._writes.append(self._answer_mcp(id, request.message))
        elif request.subtype == "can_use_tool":
            self._on_permission_request(id, request)
        else:
            self._writes.append(control_refusal(id))

    def _answer_mcp(self, request_id: str, rpc: RpcMessage) -> bytes:
        """Returns the answer to a request to the MCP server of the client's tools; empty if it comes later or was
        already written.
        """
        match rpc.method:
            case "initialize":
                version = (rpc.params or RpcParams()).protocol_version
                server = {"name": CLIENT_SERVER, "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
                return rpc_answer(request_id, rpc.id, result)
            case "tools/list":
                listed = [tool_entry(tool) for tool in self._tools.values()]
                self._writes.append(rpc_answer(request_id, rpc.id, {"tools": listed}))
                self._mark_ready("tools/list")
                return b""
            case "tools/call":
                return self._answer_call(request_id, rpc)
            case method if method.startswith("notifications/") or method == "ping":
                return rpc_answer(request_id, rpc.id, {})
        return rpc_refusal(request_id, rpc.id)

    def _answer_call(self, request_id: str, rpc: RpcMessage) -> bytes:
        """Returns the answer to a call of a client's tool; empty while the client's output is missing. Asks the client
        for a call that was not in the stream.
        """
        params = rpc.params or RpcParams()
        if self._state is not TurnState.ACTIVE:
            return rpc_refusal(request_id, rpc.id)
        id = (params.meta.call_id if params.meta is not None else None) or ""
        arguments = bytes(params.arguments or b"{}").decode("utf-8", "replace")
        own, new = self._reader.find_requested(id, params.name, arguments, self._pending.has_call)
        if not own:
            return rpc_refusal(request_id, rpc.id)
        if new is not None:
            self._events.append(raw_call(new))
            self._ask([new])
            self._events.append(StepCompleted())
        return self._pending.add_request(own, (request_id, rpc.id))

    def _on_permission_request(self, request_id: str, request: ControlRequest) -> None:
        """Allows calls of the client's tools, and in the sandbox `danger-full-access` everything of which the client is
        not to be asked. Asks about others; denies them after the turn's end.
        """
        self._questions[request_id], turn = request.input or msgspec.Raw(b"{}"), self._turn
        chosen = turn.approvals == "ask" or turn.toolset is not None
        if request.tool_name in self._tools or (turn.sandbox == "danger-full-access" and not chosen):
            self._decide(request_id, Decision(approve=True))
        elif self._state is TurnState.ACTIVE:
            self._events.append(question_event(request_id, request, self._turn))
        else:
            self._decide(request_id, Decision())

    def _write_answer(self, request_id: str, question: msgspec.Raw, reply: Decision) -> None:
        answer: dict[str, Any] = {"behavior": "allow", "updatedInput": question}
        if not reply.approve:
            message = DENIED_BY_CLIENT if reply.by_client else DENIED.format(self._turn.sandbox)
            answer = {"behavior": "deny", "message": reply.message or message}
        self._writes.append(control_answer(request_id, answer))

    # --- the end --------------------------------------------------------------------------------

    def _on_result(self, result: Result) -> None:
        if self._state is TurnState.STARTING:
            self.lost = self._reopened and result.failed
        elif self._state is TurnState.FEEDING:
            if result.failed:
                self._fail_by_result(result)
            else:
                self._give_next()
        elif self._state is TurnState.ACTIVE:
            self._usage.end_turn(result.usage)
            self._add_usage()
            if result.stop_reason == "refusal":
                self._end_early(Stop.CONTENT_FILTER)
            elif (result.terminal_reason or "").startswith("aborted"):
                self._end_early(Stop.INTERRUPTED)
            elif result.failed:
                self._fail_by_result(result)
            elif self._written:
                self._result = result
            else:
                self._succeed(result)

    def _end_early(self, stop: Stop) -> None:
        self._reader.finish(None)
        self._end(TurnEnded(stop, "provider"))

    def _succeed(self, result: Result) -> None:
        structured = bytes(result.structured_output).decode("utf-8", "replace")
        self._reader.finish(structured if structured and structured != "null" else None)
        self._pending.clear()
        self._inputs.clear()
        stop = STOPS.get(result.stop_reason or "", Stop.STOP)
        self._events.append(TurnEnded(stop, "provider"))
        self._change(TurnChange.ENDED_WELL if stop is Stop.STOP else TurnChange.ENDED_BADLY)

    def _fail_by_result(self, result: Result) -> None:
        code, status, reason = self._error_code, result.api_error_status, result.terminal_reason
        self._fail(failure_of(result.result, code=code, status=status, reason=reason))

    def _fail(self, failure: Failure) -> None:
        self._end(TurnEnded.with_failure(failure))

    def _end(self, ended: TurnEnded) -> None:
        self._events.append(ended)
        self._deny_all()
        self._pending.clear()
        self._change(TurnChange.ENDED_BADLY)


def _output_answer(request: tuple[str, int | str | None], reply: ToolReply) -> bytes:
    """Returns the answer to a call. `request` has the ids of the control request and of the JSON-RPC request in it."""
    result = {"content": mcp_content(reply.parts)}
    return rpc_answer(*request, result if reply.success else result | {"isError": True})
