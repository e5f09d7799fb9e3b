"""The dialect of `codex app-server`: the turns on one thread as messages, and its messages as events. No IO. A turn is
`thread/start`, then `thread/inject_items` and `turn/start` in one write, then notifications until `turn/completed`.
Calls are reported at `rawResponse/completed`. A thread can be resumed after a good end, or while it waits for outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from codex_proxy.agents.codex_app_server import item_reader
from codex_proxy.agents.codex_app_server.calls import ModelItems
from codex_proxy.agents.codex_app_server.children import ITEM_METHODS, Children, children_named
from codex_proxy.agents.codex_app_server.item_reader import MESSAGE, ItemReader, UserItem
from codex_proxy.agents.codex_app_server.questions import QUESTIONS, AskedActions, decision_answer
from codex_proxy.agents.codex_app_server.thread_turns import (
    ACTIVE,
    AGENT_MAY_WORK,
    MAX_MESSAGE_BYTES,
    STATES,
    UNWANTED,
    TurnChange,
    TurnState,
    encoded,
    message_fault,
    output_fault,
    resume_params,
    split_input,
    steered_input,
    thread_params,
    turn_settings,
)
from codex_proxy.agents.codex_app_server.wire import (
    OPEN_ELSEWHERE,
    TEXT_DELTA,
    THREAD_HELD,
    Message,
    Params,
    RawItemHead,
    StartedThread,
    ThreadStartResult,
    ThreadTokenUsage,
    TurnError,
    TurnPayload,
    TurnStartResult,
    TurnUsage,
    decode_usage,
    error_kind,
    failed_end,
    failure_of_error,
    output_answer,
    refusal,
    request,
    turn_end,
)
from codex_proxy.agents.dialect import Decision, Ended, Step, ToolReply
from codex_proxy.agents.sessions.session import TOO_LARGE
from codex_proxy.agents.shared.conversation import (
    NO_TURN,
    ChannelRequests,
    ConversationTurn,
    PendingCalls,
)
from codex_proxy.agents.shared.failures import (
    BAD_ANSWER,
    CONVERSATION_LOST,
    UNREADABLE_ERROR,
    retrying_event,
)
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part, decode_read_part
from codex_proxy.core.events import (
    InputTaken,
    Notice,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart
from codex_proxy.core.turn import Turn, without_content


class AppServerTurn(ConversationTurn[TurnState, TurnChange, int | str]):
    stores_sessions = True

    def __init__(self, channel: int, *, parallel_calls: bool = True) -> None:
        """`channel` begins its request ids. `parallel_calls`: the release reports the end of a model's response; before
        0.147 calls are reported one by one.
        """
        self._reader = ItemReader()
        super().__init__(STATES, self._reader.events)
        self._parallel_calls = parallel_calls
        self._requests: ChannelRequests[str, Message] = ChannelRequests(
            self._writes, lambda number: f"{channel}.{number}", request
        )
        self._turn_id: str | None = None
        self._previous_turn_id: str | None = None
        """The turn of which messages may still arrive."""
        self._model_items = ModelItems()
        self._asked = AskedActions(NO_TURN)
        self._tool_calls = PendingCalls(output_answer)
        self._usage = TurnUsage()
        self.reopen_id = ""  # an ephemeral thread cannot be opened again; the client names a stored one
        self.lost = False
        self.stored_thread: StartedThread | None = None
        """The thread that Codex stores for the turn."""
        self._reopened = False
        self._awaits_close = False
        """Whether the thread is to be unloaded, so that other programs can use it."""
        self._inputs: dict[str, Sequence[HistoryMessage]] = {}
        """Further inputs of the client that Codex was not given, by their ids."""
        self._steering: list[str] = []
        """The ids of those that it was given, and has not taken."""
        self._steer_unanswered = False
        self._steerable = True
        """Whether Codex has refused none: a later one must not come before it."""
        self._children = Children()
        self._held_end: TurnEnded | None = None
        """The end of the agent's turn, which waits for those of its children."""

    # --- the dialect ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._state is TurnState.DONE

    def begin(self, turn: Turn) -> Step:
        self._turn = turn
        self._reader.toolset = turn.toolset
        self._model_items = ModelItems(turn.tools, plain=turn.mode == "model")
        self._asked = AskedActions(turn)
        self._request("thread/start", thread_params(turn), "start a conversation", self._on_thread_started)
        return self._take_step()

    def reopen(self, turn: Turn, reopen_id: str, new_items: Sequence[HistoryItem]) -> Step:
        """Starts the turn on a stored thread. Codex tells no raw events of it, so that calls come one by one."""
        self._turn = turn
        self._reader.toolset = turn.toolset
        self._reopened = True
        self._model_items = ModelItems(turn.tools, plain=turn.mode == "model")
        self._asked = AskedActions(turn)

        def on_response(message: Message) -> None:
            if message.error is None:
                self._on_thread_started(message, new_items)
            elif THREAD_HELD in message.error.message:
                self._end(TurnEnded.with_failure(OPEN_ELSEWHERE), running=False)
            else:
                self.lost = True

        self._requests.send("thread/resume", resume_params(turn, reopen_id), on_response)
        return self._take_step()

    @property
    def can_resume(self) -> bool:
        if len(self._requests) > self._steer_unanswered or not self._session_id:
            return False
        if self._state is TurnState.REUSABLE:
            # A thread that is stored is unloaded, for another program can only use it then.
            return self._turn.stored_session is None
        return self._state is ACTIVE and self._tool_calls.can_resume

    def _start_again(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        self._usage.start_turn()
        self._change(TurnChange.RESUMED)
        self._previous_turn_id, self._turn_id = self._turn_id, None
        self._steerable = True
        self._reader.start_turn()
        self._start_turn(turn, new_items)

    def _take_outputs(self, outputs: Sequence[HistoryOutput]) -> None:
        self._usage.start_turn()
        fault = next(filter(None, (output_fault(output.parts) for output in outputs)), None)
        if fault is not None:
            self._fail(fault)
            return
        self._model_items.note_client_outputs(self._tool_calls.waiting)
        for output in outputs:
            self._give_output(output.call_id, ToolReply(output.parts))

    def receive(self, lines: Sequence[Message]) -> Step:
        events, open_items, late = self._events, self._reader.open_items, self._previous_turn_id
        active = self._state is ACTIVE
        text_alone = True
        may_have_children, own = self._turn.may_have_subagents, self._session_id
        for message in lines:
            if may_have_children and message.params.thread_id != own and self._is_of_child(message):
                text_alone = False
                continue
            if active and message.method == TEXT_DELTA and message.error is None:
                params = message.params
                if params.delta and (late is None or params.turn_id != late):
                    id = params.item_id
                    if id is None or open_items.get(id) != MESSAGE:
                        id = self._reader.message_of(id)
                    if id:
                        self._reader.seen_messages.add(id)
                        events.append(TextDelta(id, params.delta))
                continue
            text_alone = False
            try:
                self._handle_message(message)
            except UnreadableError:
                if self._state is ACTIVE:
                    self._on_unreadable(message)
            active = self._state is ACTIVE
        if text_alone:  # it changes nothing that a request or an end would follow from
            return super()._take_step()
        return self._take_step()

    def _is_of_child(self, message: Message) -> bool:
        """Handles a message of a child; returns whether it is one."""
        thread = message.params.thread_id
        child = self._children.threads.get(thread or "")
        if child is not None:
            self._writes.append(self._children.receive(child, message))
        elif thread is not None and self._session_id and thread != self._session_id:
            self._writes.append(self._children.receive_early(message))
        else:
            return False
        return True

    def _give_output(self, call_id: str, reply: ToolReply) -> None:
        if output_fault(reply.parts) is not None:
            reply = ToolReply((TextPart(TOO_LARGE.format(MAX_MESSAGE_BYTES)),), success=False)
        self._writes.append(self._tool_calls.add_reply(call_id, reply))

    def _write_answer(self, request_id: str, question: int | str, reply: Decision) -> None:
        self._writes.append(decision_answer(question, request_id, reply))
        self._reader.note_decision(self._asked.items.pop(request_id, ""), reply)
        if reply.by_client and reply.message and not reply.approve and self._turn_id is not None:
            # Codex has no words for a denial: the model gets them behind the call that was declined.
            params = {"threadId": self._session_id, "expectedTurnId": self._turn_id}
            input = steered_input([HistoryMessage("user", (TextPart(reply.message),))])
            self._requests.send("turn/steer", params | {"input": input})

    def steer(self, id: str, messages: Sequence[HistoryMessage]) -> Step:
        if self._state is ACTIVE and self._steerable:
            self._inputs[id] = messages
            self._steer_next()
        return self._take_step()

    @property
    def _open_subagents(self) -> tuple[str, ...]:
        return self._children.open

    def interrupt(self) -> Step:
        if self._state is ACTIVE:
            self._end(TurnEnded(Stop.INTERRUPTED))
        if self._state not in UNWANTED:
            for method, params in self._children.stop():
                self._requests.send(method, params)
            self._change(TurnChange.UNWANTED)
            self._continue_closing()
        return self._take_step()

    def eof(self, ended: Ended) -> Step:
        self._requests.clear()
        if self._state is ACTIVE:
            self._events += self._children.end(closes=True)
        return super().eof(ended)

    # --- our requests ---------------------------------------------------------------------------

    def _request(
        self, method: str, params: dict[str, Any], what: str, on_result: Callable[[Message], None] | None
    ) -> None:
        """Sends a request. An error fails the turn: the agent could not do `what`."""

        def on_response(message: Message) -> None:
            if message.error is None:
                if on_result is not None:
                    on_result(message)
            elif self._state is ACTIVE:
                self._end(TurnEnded.with_failure(failure_of_error(what, message.error)))

        self._requests.send(method, params, on_response)

    def _on_thread_started(self, message: Message, new_items: Sequence[HistoryItem] | None = None) -> None:
        """Starts the turn on its thread, which has seen none of the history, or all but `new_items`."""
        started = decode_part(message.result, ThreadStartResult)
        self._session_id = started.thread.id
        if self._turn.stored_session is not None:
            self.stored_thread = started.thread
        if self._state is not ACTIVE:
            return
        turn = self._turn
        self._model_name = started.model or turn.model
        self._note_start(self._model_name)
        self._start_turn(turn, turn.history if new_items is None else new_items)

    def _start_turn(self, turn: Turn, history: Sequence[HistoryItem]) -> None:
        first = len(turn.history) - len(history)
        injected, given = split_input(turn, history, first=first)
        items, input = list(map(encoded, injected)), encoded(given)
        fault = message_fault([*items, input])
        if fault is not None:
            self._end(TurnEnded.with_failure(fault), running=False)
            return
        if items:
            params: dict[str, Any] = {"threadId": self._session_id, "items": items}
            self._request("thread/inject_items", params, "take the conversation's history", None)
        params = {"threadId": self._session_id, "input": input} | turn_settings(turn)
        if (
            turn.stored_session is not None
        ):  # tells the thread's turns of this server from those of a terminal
            params["clientUserMessageId"] = turn.stored_session.conversation
        self._request("turn/start", params, "start the turn", self._turn_started)
        self._turn = without_content(turn)  # a thread may rest for minutes

    def _turn_started(self, message: Message) -> None:
        self._turn_id = decode_part(message.result, TurnStartResult).turn.id
        if self._turn_id == self._previous_turn_id:
            self._previous_turn_id = None
        self._steer_next()

    # --- further input --------------------------------------------------------------------------

    def _steer_next(self) -> None:
        """Gives Codex the next input, when it has accepted the one before: their order must stay."""
        if self._steer_unanswered or not self._inputs or self._turn_id is None:
            return
        id = next(iter(self._inputs))
        input = steered_input(self._inputs.pop(id))
        if not input:
            self._stop_steering()
            return
        self._steering.append(id)
        self._steer_unanswered = True
        params = {"threadId": self._session_id, "expectedTurnId": self._turn_id, "input": input}
        self._requests.send("turn/steer", params | {"clientUserMessageId": id}, partial(self._on_steered, id))

    def _on_steered(self, id: str, message: Message) -> None:
        self._steer_unanswered = False
        if message.error is None:
            self._steer_next()
        else:  # most often because the turn has just ended
            self._steering.remove(id)
            self._stop_steering()

    def _stop_steering(self) -> None:
        self._inputs.clear()
        self._steerable = False

    def _note_user_message(self, params: Params) -> None:
        """Notes that Codex has begun to act on an input: it gives up what the model was writing."""
        item = decode_part(params.item, UserItem, loosely=True)
        if item.type == "userMessage" and item.client_id in self._steering:
            self._steering.remove(item.client_id)
            self._reader.discard_text()
            raw, _ = self._model_items.take()
            self._events += [*raw, InputTaken(item.client_id)]

    # --- the end --------------------------------------------------------------------------------

    def _end(self, ended: TurnEnded, *, running: bool = True) -> None:
        """Ends the client's turn. `running`: whether Codex may still work, so that it has to be interrupted."""
        self._held_end = None
        self._reader.flush_outputs()
        raw, _ = self._model_items.take()
        self._events += [*raw, *self._children.end(closes=self._turn.stored_session is not None)]
        self._events.append(ended)
        self._questions.clear()
        self._tool_calls.clear()
        self._inputs.clear()
        if running:
            self._change(TurnChange.GIVEN_UP)
        else:  # an input that Codex has not told of may be in the thread
            ended_well = ended.stop == Stop.STOP and not self._steering
            self._change(TurnChange.ENDED_WELL if ended_well else TurnChange.ENDED_BADLY)

    def _fail(self, failure: Failure) -> None:
        self._end(TurnEnded.with_failure(failure), running=self._state in AGENT_MAY_WORK)

    def _continue_closing(self) -> None:
        if self._requests or self._awaits_close:
            return
        if not self._session_id:
            self._change(TurnChange.UNSUBSCRIBED)
        elif self._turn_id is not None and self._state is TurnState.CLOSING:
            self._interrupt_turn()
        else:
            self._unsubscribe()

    def _interrupt_turn(self) -> None:
        self._change(TurnChange.INTERRUPTED)
        params = {"threadId": self._session_id, "turnId": self._turn_id}
        self._requests.send("turn/interrupt", params, self._turn_interrupted)

    def _turn_interrupted(self, _: Message) -> None:
        # An interrupt leaves the agent's shell commands running.
        if self._turn.mode == "agent":
            self._end_commands()
        self._unsubscribe()

    def _end_commands(self) -> None:
        """Requests the end of shell commands, without waiting: the thread can be resumed at once."""
        if self._session_id:
            self._requests.send("thread/backgroundTerminals/clean", {"threadId": self._session_id})

    def _unsubscribe(self) -> None:
        thread, self._session_id = self._session_id, ""
        if thread:
            self._awaits_close = self._turn.stored_session is not None
            self._requests.send("thread/unsubscribe", {"threadId": thread}, self._unsubscribed)

    def _unsubscribed(self, message: Message) -> None:
        if message.error is not None:
            self._awaits_close = False

    # --- messages -------------------------------------------------------------------------------

    def _handle_message(self, message: Message) -> None:
        if message.method is None:
            self._handle_response(message)
        elif message.id is not None:
            self._handle_request(message, message.id)
        elif message.method == "thread/closed":
            self._on_thread_closed()
        elif message.error is not None or message.method in REQUESTS:
            raise UnreadableError("it breaks off, or is a request without an id")
        elif self._state is ACTIVE:
            about_item = item_reader.NOTIFICATIONS.get(message.method)
            if about_item is not None:
                if not self._is_late(message.params):
                    if self._steering and message.method == "item/started":
                        self._note_user_message(message.params)
                    about_item(self._reader, message.params)
                    if message.method in ITEM_METHODS and children_named(message):
                        self._children.on_item(message.params, ended=message.method == "item/completed")
                    if self._asked.kept and message.method == "item/started":
                        self._asked.note_item(message.params)
            elif (handler := NOTIFICATIONS.get(message.method)) is not None:
                handler(self, message.params)

    def _is_late(self, params: Params) -> bool:
        """Whether an item's message is about the turn before this one."""
        return self._previous_turn_id is not None and params.turn_id == self._previous_turn_id

    def _on_unreadable(self, message: Message) -> None:
        """Ends the turn if it or the agent would wait for what is lost, or a part of its text is. Else a `Notice`."""
        if message.method == "turn/completed":
            self._end(TurnEnded.with_failure(BAD_ANSWER), running=False)
        elif message.method == "error":
            self._on_error(message.params)
        elif message.method in NEEDED or self._reader.loses_text(message):
            self._end(TurnEnded.with_failure(BAD_ANSWER))
        else:
            self._events.append(Notice("unreadable_message", message.method or "answer"))

    def _handle_response(self, message: Message) -> None:
        on_response = self._requests.take_handler(str(message.id))
        if on_response is None:
            return
        try:
            on_response(message)
        except UnreadableError:
            if self._state is ACTIVE:
                self._end(TurnEnded.with_failure(BAD_ANSWER))
        if self._state in UNWANTED:
            self._continue_closing()

    def _handle_request(self, message: Message, id: int | str) -> None:
        if self._state is not ACTIVE:
            self._writes.append(refusal(id))
        elif message.method == "item/tool/call" and self._is_expected_call(message.params):
            self._model_items.on_output_requested(self._reader.open_items)
            if not self._parallel_calls:
                self._model_items.end_response()  # its end will not be told
            self._writes.append(self._tool_calls.add_request(message.params.call_id or "", id))
        elif (event := self._asked.question(message, id)) is not None:
            self._questions[event.request_id] = id
            self._events.append(event)
        else:
            self._writes.append(refusal(id))
            self._events.append(Notice("unknown_request", message.method or ""))

    def _is_expected_call(self, params: Params) -> bool:
        call_id = params.call_id or ""
        return (
            self._model_items.has_call(call_id)
            or self._tool_calls.has_call(call_id)
            or self._model_items.add_requested_call(params)
        )

    def _on_thread_closed(self) -> None:
        if self._awaits_close:
            self._awaits_close = False
            self._continue_closing()
        if self._session_id:
            self._session_id = ""
            if self._state is ACTIVE:
                self._end(TurnEnded.with_failure(CONVERSATION_LOST), running=False)

    def _on_raw_item(self, params: Params) -> None:
        if params.turn_id is None or params.turn_id != self._turn_id:
            return  # items that we injected come back under another turn's id
        item = bytes(params.item)  # it may have megabytes, and each copy of them takes milliseconds
        head = decode_read_part(item, RawItemHead)
        if self._turn.subagents != 0:
            self._children.on_raw_item(head, item)
        if self._asked.kept:
            self._asked.note_call(head, item)
        call_id = self._model_items.add_output(head, item)
        if call_id is not None:
            if not self._tool_calls.waiting:
                self._events += self._model_items.take_outputs()
            self._tool_calls.note_agent_answer(call_id)
            return
        if self._model_items.add_item(head, item) and head.id:
            self._reader.seen_messages.add(head.id)

    def _on_response_completed(self, params: Params) -> None:
        if params.turn_id is None:
            raise UnreadableError("it does not say of which turn it is")
        if params.turn_id != self._turn_id:
            return
        usage = decode_usage(params.usage)
        if usage is not None:
            self._usage.add_call(usage)
            self._events.append(UsageReported(self._usage.total, "provider"))
        if self._model_items.end_response():
            self._end_step(usage)

    def _end_step(self, usage: Usage | None) -> None:
        raw, asks = self._model_items.take()
        self._tool_calls.add_calls(ask.request_id for ask in asks)
        self._events += [*raw, *asks, StepCompleted(usage)]

    def _on_tokens_updated(self, params: Params) -> None:
        if self._reopened and params.turn_id != self._turn_id:
            self._usage.set_earlier_turns(decode_part(params.token_usage, ThreadTokenUsage).total.usage())
            return
        # More than the model calls said one by one where one of them broke off, or there are no raw events.
        more = self._usage.set_thread_total(decode_part(params.token_usage, ThreadTokenUsage).total.usage())
        if more or (self._usage.from_provider and not self.can_resume):
            self._usage.from_provider = False
            self._events.append(UsageReported(self._usage.total, "token_count"))

    def _on_error(self, params: Params) -> None:
        if params.will_retry is False:
            return  # turn/completed follows at once and says the same
        try:
            error = decode_part(params.error, TurnError, loosely=True)
            ended, status = failed_end(error), error_kind(error.codex_error_info)[1]
        except UnreadableError:
            ended, status = TurnEnded.with_failure(UNREADABLE_ERROR), None
        if ended.failure is None:  # a stop that the agent takes for a fault
            self._end(ended)
            return
        # Also if only its method could be read: without it the repeated answer would be a second one.
        self._model_items.discard_for_retry()
        self._reader.discard_for_retry()
        self._events.append(retrying_event(ended.failure, status))

    def _turn_completed(self, params: Params) -> None:
        state = decode_part(params.turn, TurnPayload)
        if self._turn_id is not None and state.id != self._turn_id:
            return
        if state.id and state.id == self._previous_turn_id:
            return
        if state.status == "completed":
            self._reader.add_refusals()
        if self._reader.ran_commands:  # one that the agent has not waited for outlives its turn
            self._end_commands()
        ended = turn_end(state)
        if ended.stop == Stop.STOP and self._turn.may_have_subagents and self._children.working:
            self._held_end = ended
        else:
            self._end(ended, running=False)

    # --- taking what was gathered ---------------------------------------------------------------

    def _take_step(self) -> Step:
        if self._model_items.must_request_now and not self._tool_calls.waiting and self._state is ACTIVE:
            self._end_step(None)
        if self._held_end is not None and not self._children.working:
            self._end(self._held_end, running=False)
        if self._state is ACTIVE and not self._tool_calls.waiting:  # else nobody may listen
            self._events += self._children.take()
        return super()._take_step()


REQUESTS = frozenset({"item/tool/call", *QUESTIONS})
NEEDED = frozenset({"", "rawResponse/completed", *REQUESTS})
"""What may be the turn's end or a part of its text, what is followed by the client's calls, and what cannot be answered
because its id is lost.
"""
NOTIFICATIONS: dict[str, Callable[[AppServerTurn, Params], None]] = {
    "rawResponseItem/completed": AppServerTurn._on_raw_item,
    "rawResponse/completed": AppServerTurn._on_response_completed,
    "thread/tokenUsage/updated": AppServerTurn._on_tokens_updated,
    "error": AppServerTurn._on_error,
    "turn/completed": AppServerTurn._turn_completed,
}
