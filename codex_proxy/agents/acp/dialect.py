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

from codex_proxy.agents.acp.calls import ClientCalls
from codex_proxy.agents.acp.client_tools import ClientTools
from codex_proxy.agents.acp.failures import (
    failure_of_error,
)
from codex_proxy.agents.acp.messages import (
    CANCELLED,
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
    new_session,
    notification,
    refusal,
    request,
    request_id,
)
from codex_proxy.agents.acp.program import Program
from codex_proxy.agents.acp.prompt import first_prompt, later_prompt
from codex_proxy.agents.acp.session_setup import Request, plan_setup
from codex_proxy.agents.acp.turn_end import UNREADABLE_ANSWER, turn_end
from codex_proxy.agents.acp.turn_states import CLIENT_WAITS, TABLE, TurnChange, TurnState
from codex_proxy.agents.acp.updates import UpdateReader
from codex_proxy.agents.acp.usage import UsageCounter, counts_output
from codex_proxy.agents.dialect import NOTHING, Decision, Ended, Reply, Step, ToolReply
from codex_proxy.agents.failures import CONVERSATION_LOST, failure_from_exit
from codex_proxy.core.events import (
    ApprovalRequested,
    Event,
    Notice,
    StepCompleted,
    Stop,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryOutput
from codex_proxy.core.turn import Turn, without_content

NOT_LISTED = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The agent did not connect to the tools of the request in time. Try again.",
    retry_after=5,
)
APPROVALS = {"execute": "command", "edit": "file_change", "delete": "file_change", "move": "file_change"}


TITLE = "codex-proxy"
"""The title of sessions of an agent that would call its model for one."""


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
        alone: bool = False,
    ) -> None:
        """`channel` is the number of the session's channel, from which its request ids are made. `new_id` returns a
        new id that begins with the given prefix. `servers` are the entries of `mcpServers` in `session/new`; if
        there are any, the first prompt waits for `ToolsListed`. `ahead`: `session/new` was already sent on the
        channel. `alone`: the process serves only this session."""
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
        self._tools_listed = not self._servers
        self._reader = UpdateReader(new_id, program.preset)
        self._usage = UsageCounter(program.preset.usage)
        self._events: list[Event] = self._reader.events
        """Events since the last step; the reader appends to the same list."""
        self._writes: list[bytes] = []
        self.calls = ClientCalls(
            new_id, self._reader, self._writes, one_at_a_time=program.preset.one_call_at_a_time, alone=alone
        )
        self._permissions: dict[str, tuple[int | str, Any]] = {}
        """Unanswered requests for permission: the request id and the options of each, by an id of this server."""
        self._rejected = False
        """Whether a request for permission was rejected in this turn. Some agents end the turn then."""

    # --- the dialect ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._state is TurnState.DONE

    def begin(self, turn: Turn) -> Step:
        self._turn = without_content(turn)
        self.calls.tools = ClientTools(turn.tools)
        self._reader.start_turn(self.calls.tools)
        prompt = first_prompt(turn.history, takes_system=self._program.declared.system_prompt)
        self._prompt, self.flattened = prompt.blocks, prompt.flattened
        if self._ahead:
            self._expect(self._session_opened)
        else:
            self._request("session/new", self._session_params(turn, prompt.system), self._session_opened)
        return self._take_step()

    @property
    def tested(self) -> bool:
        """Whether a release of the program was tested, so that it is known when it requests the client's tools."""
        return bool(self._program.preset.tested)

    @property
    def answered(self) -> bool:
        """Whether the agent has answered the prompt, and the session only waits for another one."""
        return self._state is TurnState.REUSABLE

    @property
    def thread(self) -> str:
        return self.session if self._state is TurnState.REUSABLE and self._program.reopening else ""

    def reopen(self, turn: Turn, thread: str, new_items: Sequence[HistoryItem]) -> Step:
        self._turn = without_content(turn)
        self.calls.tools = ClientTools(turn.tools)
        self._reader.start_turn(self.calls.tools)
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
        params = new_session(turn.workdir, self._servers, self._program.preset.session_meta)
        if system:
            content = [{"type": "text", "text": system}]
            params["systemPrompt"] = {"mode": "append", "content": content}
        return params

    @property
    def can_resume(self) -> bool:
        if self._state is TurnState.REUSABLE:
            return True
        return self._state is TurnState.PROMPTING and self.calls.waiting and not self.calls.broken

    def resume(self, turn: Turn, new_items: Sequence[HistoryItem]) -> Step:
        if not self.can_resume:
            self._end(TurnEnded(Stop.FAILED, "provider", CONVERSATION_LOST))
            return self._take_step()
        self._turn = without_content(turn)
        self._events.append(TurnStarted(self.session, self._model or turn.model))
        if self._state is TurnState.REUSABLE:
            self._reader.start_turn(self.calls.tools)
            self._usage.start_turn()
            self._rejected = self.calls.broken = False
            self._send_prompt(later_prompt(new_items).blocks)
        else:
            self._usage.start_request()
            self._reader.start_request()
            for item in new_items:
                if isinstance(item, HistoryOutput):
                    self.calls.give_output(item.call_id, ToolReply(item.parts))
            self.calls.ask_client()
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
            self.calls.give_output(request_id, reply)
        elif isinstance(reply, Decision) and (asked := self._permissions.pop(request_id, None)) is not None:
            id, options = asked
            if not reply.approve:
                self._rejected, self._reader.spoke = True, False
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
            self.calls.clear()
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
        assert self._turn is not None
        plan = plan_setup(message.result, session, self._turn, self._program, tools=bool(self.calls.tools))
        if isinstance(plan, Failure):
            self._fail(plan)
            return
        self._model = plan.model
        self._setup.extend(plan.requests)
        if titled_by := self._program.preset.titled_by:
            self._send(titled_by, {"sessionId": session, "title": TITLE})
        self._continue_setup()

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
        if update.tool_call_id:
            self.calls.on_update()
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
        if self.calls.tools.may_be_allowed(call) or self._program.allows_all(turn.sandbox):
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
        end = turn_end(result, self._reader, self._program.preset, rejected=self._rejected)
        usage = None if isinstance(end, Failure) else self._usage.read_result(result)
        if usage is not None:
            self._events.append(UsageReported(usage, "provider"))
        if counts_output(result):  # it may count more than this request, but shows that the model was asked
            self._events.append(StepCompleted())
        if isinstance(end, Failure):
            self._fail(end)
        else:
            self._end(end, well=end.stop is not Stop.INTERRUPTED)

    # --- the client's tools ---------------------------------------------------------------------

    def _handle_tool_server(self, message: ToolsListed | ToolCalled | ToolsSettled | ToolDropped) -> None:
        match message:
            case ToolsListed():
                self._listed(message)
            case ToolCalled() if self._state is TurnState.PROMPTING:
                self._usage.add_model_call()
                self.calls.add(message)
            case ToolCalled():
                self.calls.refuse(message)
            case ToolsSettled():
                self.calls.settle(message)
            case ToolDropped():
                self.calls.drop(message.key)

    def _listed(self, message: ToolsListed) -> None:
        if self._tools_listed:
            return
        self._tools_listed = True
        if not message.in_time:
            self._events.append(Notice("tools_not_listed"))
            if self.tested and self._state is TurnState.OPENING:
                self._fail(NOT_LISTED)  # a model without the client's tools would do something else
                return
        if self._state is TurnState.OPENING and self.session and not self._handlers:
            self._continue_setup()

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
        self.calls.clear()
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
            self._send("session/close", {"sessionId": session})

    def _send(self, method: str, params: dict[str, Any]) -> None:
        """Sends a request whose answer nothing waits for."""
        self._requests += 1
        self._writes.append(request(request_id(self._channel, self._requests), method, params))

    def _change(self, change: TurnChange) -> None:
        self._state = TABLE[self._state, change]

    def _take_step(self) -> Step:
        if not self._events and not self._writes:
            return NOTHING
        step = Step(self._events[:], b"".join(self._writes))
        self._events.clear()
        self._writes.clear()
        return step
