"""One turn of `codex app-server`: sends a script's steps as notifications, in Codex's order."""

from __future__ import annotations

from collections import deque

from fake_proto import app_shapes as shapes
from fake_proto.app_activity import ACTIVITIES, change_files_of
from fake_proto.app_subagents import SUBAGENTS
from fake_proto.app_thread import input_items
from fake_proto.faults import Faults
from fake_proto.request import output_text
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.app_server import AppServerAgent
    from fake_proto.app_thread import AppThread
    from fake_proto.loop import Task
    from fake_proto.script import Step

    Action = dict[str, Any]
    Waits = Iterator[float | None]

INCOMPLETE = "Incomplete response returned, reason: "
DISCONNECTED = "stream disconnected before completion: "
NO_TOKENS = {"input": 0, "cached": 0, "output": 0, "reasoning": 0}


class AppTurn:
    """One turn, with its requests for approvals and outputs of the client's tools."""

    def __init__(
        self, agent: AppServerAgent, thread: AppThread, identifier: str, script: Script, outputs: list[str]
    ) -> None:
        self.identifier = identifier
        self.script = script
        self._agent = agent
        self._thread = thread
        self._outputs = outputs
        self._task: Task | None = None
        self._step: Step | None = None
        self._response = 0
        self._index = 0
        self._last_message: Action | None = None
        self._calls_waiting: deque[Action] = deque()
        self._calls_asked: dict[int, Action] = {}
        self.replies: list[Action] = []
        self._replies: dict[int, Action] = {}
        """The answers to requests for permission so far."""
        self.inputs: list[tuple[str | None, list[Action]]] = []
        """What the user has said since the model was last asked: the client's ids, and the parts."""

    @property
    def agent(self) -> AppServerAgent:
        return self._agent

    @property
    def thread(self) -> AppThread:
        return self._thread

    def start(self, parts: list[Action]) -> None:
        """Sends `turn/started` and the user's message (`parts`: the input of `turn/start`), and starts the turn as a
        task.
        """
        thread = self._thread
        self._status("active", activeFlags=[])
        started = shapes.turn(self.identifier, "inProgress")
        self._notify("turn/started", {"threadId": thread.identifier, "turn": started})
        if parts:
            self._user_message(self.identifier, None, parts)
        self._task = self._agent.loop.start(self._run())

    def _user_message(self, name: str, client_id: str | None, parts: list[Action]) -> None:
        """Sends the user's message that is last in the thread, whose ids have this name."""
        content = self._thread.items[-1]["content"]
        self.raw({"type": "message", "id": f"user_{name}", "role": "user", "content": content})
        item = {"type": "userMessage", "id": f"item_{name}", "clientId": client_id, "content": parts}
        self.item("started", item)
        self.item("completed", item)

    def _take_inputs(self) -> None:
        """Adds what the user has said to the thread, and makes the script of the model's answer to it."""
        for client_id, parts in self.inputs:
            self._thread.items.extend(input_items(parts))
            self._user_message(f"{self.identifier}_{len(self._thread.items)}", client_id, parts)
        self.inputs.clear()
        request = self._thread.request()
        self.script = Script(request, self._agent.settings, self._agent.faults)
        self._outputs = request.outputs()

    def cut(self) -> None:
        """Stops the task and sends nothing: another `turn/start` continues the turn."""
        if self._task is not None:
            self._task.cancelled = True

    def abort(self) -> None:
        """Stops the turn and sends what Codex sends before it answers an interrupt: the failure of open calls, and an
        item about it for the history.
        """
        self.cut()
        self.script.faults = Faults()
        asked = list(self._calls_asked.values())
        for call in asked:
            self.item("completed", shapes.dynamic_call(call, "failed", [], False))
        for call in asked:
            self.output(call, "dynamic tool call was cancelled before receiving a response")
        for call in self._calls_waiting:
            self.output(call, "aborted by user after 0.1s")
        if asked and self._step is not None:
            self._report_usage(self._step)
        note = [{"type": "input_text", "text": shapes.ABORTED_TEXT}]
        item = {"type": "message", "role": "user", "content": note}
        self._thread.items.append(item)
        self.raw({**item, "id": f"aborted_{self.identifier}"})

    def end(self, status: str, error: Action | None = None) -> None:
        """Sends the turn's last notifications: the thread's status, the `error`, if any, and `turn/completed`."""
        self._status("systemError" if status == "failed" else "idle")
        if error is not None:
            self._error_line(error, will_retry=False)
        items = [self._last_message] if self._last_message and status == "completed" else None
        turn = shapes.turn(self.identifier, status, items, error)
        self._notify("turn/completed", {"threadId": self._thread.identifier, "turn": turn})
        self._thread.turn = None
        self._agent.unload_if_left(self._thread)

    def ask_and_wait(self, method: str, *requests: Action) -> Iterator[None]:
        """Sends requests, and yields None until `replies` are the client's answers to them."""
        self._replies = {}
        asked = [self._ask(method, params) for params in requests]
        while len(self._replies) < len(asked):
            yield None
        self.replies = [self._replies[id] for id in asked]

    def _ask(self, method: str, params: Action) -> int:
        ids = {"threadId": self._thread.identifier, "turnId": self.identifier}
        return self._agent.ask(self, method, {**ids, **params}, self.script.faults)

    def on_answer(self, message: Action) -> None:
        """Takes the client's answer to a request of this turn, and continues the turn."""
        if self._task is None or self._task.cancelled:
            return
        call = self._calls_asked.pop(message["id"], None)
        if call is None:
            self._replies[message["id"]] = message
        else:
            content, success, output = shapes.tool_answer(message)
            status = "completed" if success else "failed"
            self.item("completed", shapes.dynamic_call(call, status, content, success))
            self.output(call, output)
            if not self._calls_asked:
                self._ask_next_call()
        self._agent.loop.wake(self._task)

    def _notify(self, method: str, params: Action) -> None:
        if not self._thread.subscribed and method != "turn/completed":
            return
        faults = self.script.faults
        self._agent.notify(method, params, faults)
        if faults.touches_lines:
            if faults.has("unknown_events"):
                self._agent.notify("thread/laterVersion/changed", {"nested": [1, 2, 3]}, faults)
            if faults.has("strangers"):
                stranger = {
                    "threadId": "no thread",
                    "turnId": "no turn",
                    "itemId": "no item",
                    "delta": "stranger",
                }
                self._agent.notify("item/agentMessage/delta", stranger, faults)
                self._agent.send({"id": "no request", "result": {}}, faults)
            if faults.has("duplicate") and method == "item/agentMessage/delta":
                msg = {"type": "agent_message_delta", "delta": params["delta"]}
                legacy = {"id": self.identifier, "msg": msg, "conversationId": self._thread.identifier}
                self._agent.notify("codex/event/agent_message_delta", legacy, faults)

    def notify_turn(self, method: str, **params: Any) -> None:
        """Sends a notification with the ids of thread and turn."""
        self._notify(method, {"threadId": self._thread.identifier, "turnId": self.identifier, **params})

    def item(self, stage: str, item: Action) -> None:
        """Sends `item/started` or `item/completed`; `stage` is the second word."""
        params = {"item": item, "threadId": self._thread.identifier, "turnId": self.identifier}
        self._notify(f"item/{stage}", {**params, f"{stage}AtMs": 0})

    def raw(self, item: Action) -> None:
        """Sends a Responses item in `rawResponseItem/completed`, if the client wants these."""
        if self._thread.raw:
            self.notify_turn("rawResponseItem/completed", item=shapes.raw(self.identifier, item))

    def _status(self, kind: str, **more: Any) -> None:
        status = {"threadId": self._thread.identifier, "status": {"type": kind, **more}}
        self._notify("thread/status/changed", status)

    def _error_line(self, error: Action, *, will_retry: bool) -> None:
        params = {"error": error, "willRetry": will_retry}
        self._notify("error", {**params, "threadId": self._thread.identifier, "turnId": self.identifier})

    def _rate_limits(self) -> None:
        self._notify("account/rateLimits/updated", {"rateLimits": shapes.rate_limits(self.script.limits)})

    def _run(self) -> Waits:
        number = self.script.start
        if self.script.first:
            yield self.script.first
        if "files" in self.script.options:
            yield from change_files_of(self)
        while number < len(self.script):
            step = self._step = self.script.step(number, self._outputs)
            number += 1
            self._begin_response()
            for action in step.actions:
                if action["do"] == "error":
                    yield from self._error(action)
                    return
                yield from ACTIONS[action["do"]](self, action)
                if self.inputs and action["do"] == "message":  # it was cut
                    break
            else:
                yield from self._end_step(step)
                if self._thread.turn is None:
                    return
            if self.inputs:
                self._take_inputs()
                number = self.script.start
        self.end("completed")

    def _end_step(self, step: Step) -> Waits:
        """Ends the model's response, and waits for the outputs of its calls; or ends the turn."""
        if step.end in ("length", "content_filter"):
            yield from self._incomplete(step)
            return
        if self._thread.raw:
            self._response_completed(step)
        while self._calls_waiting or self._calls_asked:
            yield None
        self._report_usage(step)
        if step.end == "interrupted":
            self.end("interrupted")

    def _begin_response(self) -> None:
        self._agent.responses += 1
        self._response = self._agent.responses
        self._index = 0

    def next_id(self, prefix: str) -> str:
        """Returns the id of the next item of the model's current response."""
        identifier = f"{prefix}_{self._response}_{self._index}"
        self._index += 1
        return identifier

    def _response_completed(self, step: Step) -> None:
        usage = None if step.usage is None else shapes.usage(step.usage)
        metadata = None if step.usage is None else shapes.raw_usage(step.usage)
        response = f"resp_{self._response}"
        self.notify_turn("rawResponse/completed", responseId=response, usage=usage, usageMetadata=metadata)

    def _report_usage(self, step: Step) -> None:
        if step.usage is not None:
            total = self._thread.total
            self._thread.total = {key: total[key] + value for key, value in step.usage.items()}
            self._token_usage(shapes.usage(self._thread.total), shapes.usage(step.usage))
        self._rate_limits()

    def _token_usage(self, total: Action, last: Action) -> None:
        usage = {"total": total, "last": last, "modelContextWindow": shapes.CONTEXT_WINDOW}
        self.notify_turn("thread/tokenUsage/updated", tokenUsage=usage)

    def _incomplete(self, step: Step) -> Waits:
        """Fails the turn, as the agent does for a cut answer. Usage is an estimate, without that answer."""
        yield self.script.delay
        if step.end == "length":
            guess = step.usage or NO_TOKENS
            self._token_usage(shapes.usage(guess), shapes.usage(NO_TOKENS))
            self._rate_limits()
            self.end("failed", shapes.failure(INCOMPLETE + "max_output_tokens", "other"))
        else:
            self._rate_limits()
            text = DISCONNECTED + INCOMPLETE + "content_filter"
            retries = int(self.script.options.get("retries", "0"))
            for i in range(retries):
                self._reconnecting(text, i + 1, retries)
            self.end("failed", shapes.failure(text, "other"))

    def _reconnecting(self, text: str, attempt: int, attempts: int) -> None:
        kind = {"responseStreamDisconnected": {"httpStatusCode": None}}
        error = shapes.failure(f"Reconnecting... {attempt}/{attempts}", kind, text)
        self._error_line(error, will_retry=True)

    def _message(self, action: Action) -> Waits:
        identifier = self.next_id("msg")
        self.item("started", shapes.agent_message(identifier, ""))
        if action.get("refusal"):
            return
        for delta in action["deltas"]:
            self.notify_turn("item/agentMessage/delta", itemId=identifier, delta=delta)
            for wait in self.script.pause():
                yield wait
                if self.inputs:  # it is not completed
                    return
        if action.get("open"):
            return
        text = action["final"]
        item = shapes.agent_message(identifier, text)
        self._last_message = item if text else None
        self.item("completed", item)
        raw = shapes.raw_message(identifier, text)
        self._thread.items.append(raw)
        self.raw(raw)

    def _choices(self, action: Action) -> Waits:
        """This dialect has one choice: the first."""
        yield from self._message(action["messages"][0])

    def _reasoning(self, action: Action) -> Waits:
        identifier = self.next_id("rs")
        parts, raw = action.get("parts", []), action.get("raw", [])
        self.item("started", {"type": "reasoning", "id": identifier, "summary": [], "content": []})
        for index, part in enumerate(parts):
            self.notify_turn("item/reasoning/summaryPartAdded", itemId=identifier, summaryIndex=index)
            for delta in part:
                self.notify_turn(
                    "item/reasoning/summaryTextDelta", itemId=identifier, delta=delta, summaryIndex=index
                )
                yield from self.script.pause()
        for delta in raw:
            self.notify_turn("item/reasoning/textDelta", itemId=identifier, delta=delta, contentIndex=0)
            yield from self.script.pause()
        summary = ["".join(part) for part in parts]
        content = ["".join(raw)] if raw else []
        self.item(
            "completed", {"type": "reasoning", "id": identifier, "summary": summary, "content": content}
        )
        self.raw(
            {
                "type": "reasoning",
                "id": identifier,
                "summary": [{"type": "summary_text", "text": text} for text in summary],
                "content": [{"type": "reasoning_text", "text": text} for text in content] or None,
                "encrypted_content": f"encrypted_{identifier}",
            }
        )

    def _calls(self, action: Action) -> Waits:
        """Sends each call as a raw item, and asks for one output after the other (0.163)."""
        for call in action["calls"]:
            arguments = "".join(call["arguments"])
            identifier = f"fc_{self._response}_{self._index}"
            call["id"] = self.next_id("call")
            namespace, _, call["tool"] = call["name"].rpartition(".")
            call["namespace"] = namespace or None
            call["parsed"] = shapes.parsed_arguments(arguments)
            item = shapes.raw_call(identifier, call["id"], call["tool"], arguments)
            if namespace:
                item["namespace"] = namespace
            self._thread.items.append(item)
            self.raw(item)
            if call["name"] not in self._thread.tools:
                self.output(call, f"unsupported call: {call['name']}")
            elif call["parsed"] is None:
                self.output(call, "failed to parse function arguments: expected value at line 1 column 1")
            else:
                self._calls_waiting.append(call)
                if not self._calls_asked:
                    self._ask_next_call()
            yield self.script.delay

    def _ask_next_call(self) -> None:
        if not self._calls_waiting:
            return
        call = self._calls_waiting.popleft()
        self.item("started", shapes.dynamic_call(call, "inProgress", None, None))
        named = {"callId": call["id"], "namespace": call["namespace"], "tool": call["tool"]}
        params = {**named, "arguments": call["parsed"]}
        self._calls_asked[self._ask("item/tool/call", params)] = call

    def output(self, call: Action, output: Any) -> None:
        """Adds a call's output to the model's history, and sends it as a raw item."""
        item = shapes.raw_output(call["id"], output)
        self._thread.items.append(item)
        self._outputs.append(output_text(output))
        self.raw(item)

    def _retry(self, action: Action) -> Waits:
        self._rate_limits()
        self._reconnecting(action["text"], 1, 2)
        yield self.script.delay
        self._begin_response()

    def _error(self, action: Action) -> Waits:
        for i in range(action["retries"]):
            self._reconnecting(action["text"], i + 1, action["retries"])
            yield self.script.delay
        if action["kind"] == "contextWindowExceeded":
            full = {**shapes.usage(NO_TOKENS), "totalTokens": shapes.CONTEXT_WINDOW}
            self._token_usage(full, full)
        self._rate_limits()
        self.end("failed", shapes.failure(action["text"], action["kind"]))


ACTIONS: dict[str, Callable[[AppTurn, Action], Waits]] = {
    **ACTIVITIES,
    **SUBAGENTS,
    "message": AppTurn._message,
    "choices": AppTurn._choices,
    "reasoning": AppTurn._reasoning,
    "calls": AppTurn._calls,
    "retry": AppTurn._retry,
}
"""How each action of a scenario is played."""
