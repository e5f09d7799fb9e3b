"""The dialect of ACP: the turns of one session as messages, and the agent's messages as events. Without IO. A turn is
`session/new`, requests that set mode and model, and `session/prompt`, whose answer ends it; `session/resume` or
`session/load` continue a closed session. The agent calls the client's tools at the session's tool server, and goes on
when a later request brings the outputs. After a turn that failed or was cancelled
the session is closed; a session of the APIs for agents may have it opened again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import Decision, Ended, Step, ToolReply
from codex_proxy.agents.shared.conversation import ChannelRequests, ConversationTurn
from codex_proxy.agents.shared.conversions import call_ids_in
from codex_proxy.agents.shared.failures import BAD_ANSWER
from codex_proxy.agents.shared.forms import FormError
from codex_proxy.core.events import (
    Notice,
    StepCompleted,
    Stop,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem, HistoryOutput
from codex_proxy.core.json_values import object_at
from codex_proxy.core.turn import Turn, without_content
from codex_proxy.parts.acp.calls import ClientCalls
from codex_proxy.parts.acp.content import later_prompt
from codex_proxy.parts.acp.elicitations import (
    ELICITATION,
    FORM,
    FORM_CANCELLED,
    MAX_OPEN,
    form_answer,
    form_of,
)
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.messages import (
    CANCELLED,
    Input,
    Message,
    ModelCallFailed,
    Params,
    RequestId,
    ToolCalled,
    ToolDropped,
    ToolsListed,
    ToolsSettled,
    Update,
    answer,
    decision,
    may_carry_text,
    notification,
    refusal,
    request,
    request_id,
)
from codex_proxy.parts.acp.own_tools import question_of
from codex_proxy.parts.acp.presets import Program
from codex_proxy.parts.acp.reported_calls import ClientTools
from codex_proxy.parts.acp.sessions import SessionOpening
from codex_proxy.parts.acp.turn_end import (
    STATES,
    ContextReader,
    TurnChange,
    TurnState,
    UsageCounter,
    counts_output,
    turn_end,
)
from codex_proxy.parts.acp.updates import UpdateReader

PLAIN_ID: Final = re.compile(r"[\w.:-]{1,200}", re.ASCII)
"""An id that a header and a terminal's command may have. A session of another one is not gone on with."""


class AcpTurn(ConversationTurn[TurnState, TurnChange, tuple[RequestId, Any]]):
    """Reads the messages of one channel of an `AcpConnection`, and the tool server's events. The agent's questions
    are requests for permission: request id and options.
    """

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
        """`alone`: the process serves only this session. `servers` and `ahead`: see `SessionOpening`."""
        self._reader = UpdateReader(new_id, program.preset)
        super().__init__(STATES, self._reader.events)
        self.program = program
        self.stores_sessions = bool(program.reopen_method)
        self._new_id = new_id
        self._requests: ChannelRequests[int, Message] = ChannelRequests(
            self._writes, lambda number: request_id(channel, number), request
        )
        self._opening = SessionOpening(self._requests, program, servers, ahead=ahead)
        self._usage = UsageCounter(program.preset.usage)
        self._context = ContextReader()
        self.calls = ClientCalls(new_id, self._reader, self._writes, preset=program.preset, alone=alone)
        self._has_started = False
        """Whether it was told that the session has taken its first prompt."""
        self._rejected = False
        """Whether a permission was rejected in this turn, after which some agents end it."""

    # --- the dialect ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._state is TurnState.DONE

    @property
    def session(self) -> str:
        return self._opening.session

    @property
    def is_tested(self) -> bool:
        """Whether the program was tested, so that it is known when it requests the client's tools."""
        return bool(self.program.preset.tested_release)

    @property
    def is_reusable(self) -> bool:
        return self._state is TurnState.REUSABLE

    @property
    def reopen_id(self) -> str:
        return self.session if self.is_reusable and self.program.reopen_method else ""

    @property
    def lost(self) -> bool:
        return self._opening.is_lost

    @property
    def can_resume(self) -> bool:
        if self._state is TurnState.REUSABLE:
            return True
        return self._state is TurnState.PROMPTING and self.calls.is_waiting and not self.calls.is_broken

    def begin(self, turn: Turn) -> Step:
        self._prepare(turn)
        self._opening.open_new(turn)
        return self._take_step()

    def reopen(self, turn: Turn, reopen_id: str, new_items: Sequence[HistoryItem]) -> Step:
        self._prepare(turn)
        self._context.reopened = True
        self._opening.reopen(turn, reopen_id, new_items)
        self._continue_opening()
        return self._take_step()

    def _prepare(self, turn: Turn) -> None:
        self._turn = without_content(turn)
        self.calls.tools = ClientTools(turn.tools)
        self.calls.known_ids = set(call_ids_in(turn.history))
        self._reader.toolset = turn.toolset
        self._reader.start_turn(self.calls.tools)

    def receive(self, lines: Sequence[Input]) -> Step:
        active = self._state is TurnState.PROMPTING
        for message in lines:
            if (
                active
                and not self._has_started
                and not (isinstance(message, Message) and message.method is None)
            ):
                self._tell_start()
            if isinstance(message, Message):
                update = message.params.update
                is_update = message.method == "session/update" and message.error is None
                if is_update and update is not None and update.session_update:
                    if active:
                        self._read_update(update)
                    elif self.is_reusable and not self._reader.note_late_text(update):
                        self._change(TurnChange.ENDED_BADLY)
                    continue
                self._handle(message)
            elif isinstance(message, ModelCallFailed):
                if active:
                    self._reader.retry(message.text)
            else:
                self._handle_tool_server(message)
            active = self._state is TurnState.PROMPTING
        return self._take_step()

    def interrupt(self) -> Step:
        self._opening.cancel()
        if self._state in STATES.client_waits:
            self._close_items()
            self._events.append(TurnEnded(Stop.INTERRUPTED))
        if self._state is TurnState.PROMPTING:
            for id, options in self._questions.values():
                self._writes.append(answer(id, FORM_CANCELLED if options is FORM else CANCELLED))
            self._questions.clear()
            self._writes.append(notification("session/cancel", {"sessionId": self.session}))
            self.calls.clear()
        if self._state is not TurnState.CANCELLING:
            self._change(TurnChange.UNWANTED)
            if self._state is TurnState.DONE:
                self._opening.close(self.session)
            else:
                self._stop_if_answered()
        return self._take_step()

    def eof(self, ended: Ended) -> Step:
        self._requests.clear()
        return super().eof(ended)

    # --- prompts --------------------------------------------------------------------------------

    def _continue_opening(self) -> None:
        if self._state is not TurnState.OPENING:
            return
        match self._opening.take_result():
            case Failure() as failure:
                self._fail(failure)
            case list() as blocks:
                self._session_id, self._model_name = self.session, self._opening.model
                self.stores_sessions = self.stores_sessions and bool(PLAIN_ID.fullmatch(self.session))
                if self._turn.stored_session is None:
                    self._tell_start()
                self._send_prompt(blocks)

    def _tell_start(self) -> None:
        """Tells that the session has taken the first prompt: if the next turn goes on with a stored session, it sends
        nothing of this one again, so that the program must have begun with it.
        """
        if not self._has_started:
            self._has_started = True
            self._note_start(self._model_name)

    def _start_again(self, turn: Turn, new_items: Sequence[HistoryItem]) -> None:
        self._reader.start_turn(self.calls.tools)
        self._usage.start_turn()
        self._rejected = self.calls.is_broken = False
        self._send_prompt(later_prompt(new_items).blocks)

    def _take_outputs(self, outputs: Sequence[HistoryOutput]) -> None:
        self._usage.start_request()
        self._reader.start_request()
        for output in outputs:
            self._give_output(output.call_id, ToolReply(output.parts))
        self.calls.ask_client()

    def _give_output(self, call_id: str, reply: ToolReply) -> None:
        self.calls.give_output(call_id, reply)

    def _send_prompt(self, blocks: list[dict[str, Any]]) -> None:
        self._change(TurnChange.PROMPTED)
        params = {"sessionId": self.session, "prompt": blocks}
        self._requests.send("session/prompt", params, self._on_prompt_answer)

    # --- what the agent says --------------------------------------------------------------------

    def _read_update(self, update: Update) -> None:
        if update.session_update == "usage_update":
            reported = self._context.read(update)
            self._events += [] if reported is None else [reported]
            return
        self._reader.read(update)
        if self._reader.calls_model_again:
            self._usage.add_model_call()
        if update.tool_call_id:
            self.calls.on_update()
        usage = self._usage.read_update(update.meta)
        if usage is not None:
            self._events.append(UsageReported(usage, "provider"))

    def _handle(self, message: Message) -> None:
        if message.method is not None:
            if message.id is not None:
                self._handle_request(message, message.id)
            elif message.error is not None or message.method in ("", "session/update"):
                self._on_broken_line(message)
        elif (handler := self._requests.take_handler(message.id)) is not None:
            handler(message)
            self._continue_opening()
            self._stop_if_answered()

    def _on_broken_line(self, message: Message) -> None:
        """Fails the turn if a part of the answer's text is lost, or may be."""
        if self._state is not TurnState.PROMPTING:
            return
        if may_carry_text(message):
            self._writes.append(notification("session/cancel", {"sessionId": self.session}))
            self._fail(BAD_ANSWER)
        else:
            self._events.append(Notice("unreadable_message", message.method or ""))

    def _handle_request(self, message: Message, id: RequestId) -> None:
        if message.method == ELICITATION:
            self._ask_user(message.params, id)
            return
        if message.method != "session/request_permission":
            self._writes.append(refusal(id))
            return
        call, options = message.params.tool_call, message.params.options
        if self._state is not TurnState.PROMPTING or call is None:
            self._writes.append(answer(id, CANCELLED))
            return
        if self.program.preset.titles_name_tools:
            call = msgspec.structs.replace(call, name=call.title)
        reported = self._reader.open_calls_with_id(call)
        known = self._reader.add_call(call)
        turn = self._turn
        decides = turn.approvals == "ask" or turn.toolset is not None
        free = self.program.allows_all(turn.sandbox) and not decides
        if free or self.calls.tools.may_be_allowed(call, reported):
            self._writes.append(answer(id, decision(options, allow=True)))
            return
        name = self._new_id("ask_")
        self._questions[name] = (id, options)
        item, confined = self._reader.item_of(call), self.program.confined
        self._events.append(question_of(name, call, known, turn, confined=confined, item_id=item))

    def _ask_user(self, params: Params, id: RequestId) -> None:
        if self._state is not TurnState.PROMPTING:
            self._writes.append(answer(id, FORM_CANCELLED))
            return
        name = self._new_id("ask_")
        try:
            if sum(options is FORM for _, options in self._questions.values()) >= MAX_OPEN:
                raise FormError(f"{MAX_OPEN} forms are open already")
            asked = form_of(name, params)
        except FormError as error:
            self._events.append(Notice("form_refused", str(error)))
            self._writes.append(answer(id, form_answer(Decision())))
            return
        self._questions[name] = (id, FORM)
        self._events.append(asked)

    def _write_answer(self, request_id: str, question: tuple[RequestId, Any], reply: Decision) -> None:
        id, options = question
        if options is FORM:
            self._writes.append(answer(id, form_answer(reply)))
            return
        if not reply.approve:
            self._rejected, self._reader.spoke = True, False
        self._writes.append(answer(id, decision(options, allow=reply.approve)))

    def _handle_tool_server(self, message: ToolsListed | ToolCalled | ToolsSettled | ToolDropped) -> None:
        match message:
            case ToolsListed():
                if self._opening.awaits_tools and not message.in_time:
                    self._events.append(Notice("tools_not_listed"))
                self._opening.on_tools_listed(message)
                self._continue_opening()
            case ToolCalled() if self._state is TurnState.PROMPTING:
                self._usage.add_model_call()
                self.calls.add(message)
            case ToolCalled():
                self.calls.refuse(message)
            case ToolsSettled():
                self.calls.on_tools_settled(message)
            case ToolDropped():
                self.calls.drop(message.key)

    # --- the end --------------------------------------------------------------------------------

    def _on_prompt_answer(self, message: Message) -> None:
        if self._state is not TurnState.PROMPTING:
            return
        if message.error is not None:
            self._reader.drop_held()
            self._fail(failure_of_error(message.error, self.program.preset))
            return
        self._tell_start()
        self._reader.release_doubtful()
        result = object_at(message.result)
        counted = self._usage.counts_turn(result)
        end = turn_end(result, self._reader, self.program.preset, rejected=self._rejected, counted=counted)
        usage = None if isinstance(end, Failure) else self._usage.read_result(result)
        if usage is not None:
            self._events.append(UsageReported(usage, "provider"))
        if counts_output(result):  # it may count more than this request, but shows that the model was asked
            self._events.append(StepCompleted())
        if isinstance(end, Failure):
            self._fail(end)
        else:
            self._end(end, well=end.stop is not Stop.INTERRUPTED)

    def _fail(self, failure: Failure) -> None:
        self._end(TurnEnded.with_failure(failure))

    def _end(self, ended: TurnEnded, *, well: bool = False) -> None:
        """Ends the client's turn when the agent is not working on it. `well`: the session can be reused."""
        self._close_items()
        self._events.append(ended)
        self.calls.clear()
        self._questions.clear()
        if self._state in STATES.client_waits or self._state is TurnState.REUSABLE:
            self._change(TurnChange.ENDED_WELL if well else TurnChange.ENDED_BADLY)

    def _close_items(self) -> None:
        if self._state is TurnState.PROMPTING:
            self._reader.end_texts()

    def _stop_if_answered(self) -> None:
        if self._state is TurnState.CANCELLING and not self._requests:
            self._change(TurnChange.STOPPED)
            self._opening.close(self.session)
