"""One turn of Claude Code: sends a script's steps as Anthropic's stream events, then a `result`."""

from __future__ import annotations

import json

from fake_proto.request import output_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.claude import ClaudeAgent
    from fake_proto.loop import Task
    from fake_proto.script import Script, Step

    Action = dict[str, Any]
    Waits = Iterator[float | None]

STOPS = {"length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
ERRORS: dict[int | None, str] = {
    None: "unknown",
    400: "invalid_request",
    401: "authentication_failed",
    404: "model_not_found",
    429: "rate_limit",
    500: "server_error",
    503: "overloaded",
}
CODES = {
    "contextWindowExceeded": 400,
    "modelNotFound": 404,
    "rateLimitExceeded": 429,
    "serverOverloaded": 503,
    "unauthorized": 401,
    "usageLimitExceeded": 429,
    "internalServerError": 500,
}
"""The HTTP status of the model provider for each `codexErrorInfo` that a scenario's error has."""


class ClaudeTurn:
    """One turn. `ACTIONS` has the method that writes the lines of each action."""

    def __init__(self, agent: ClaudeAgent, script: Script, outputs: list[str], *, structured: bool) -> None:
        self._agent = agent
        self._script = script
        self._structured = structured
        self._task: Task | None = None
        self._outputs = outputs
        self._running: list[tuple[str, str, bool]] = []
        """The commands that take their time: the call's id, the output, and whether they have failed."""
        self._waiting: dict[str, str] = {}
        """The calls without an output: the call's id by the id of the request for its output."""
        self._asked: dict[str, tuple[str, str, bool]] = {}
        """The calls for which permission is asked, by the id of the request: the call's id, its output if it is
        allowed, and whether it fails then.
        """
        self._to_ask: list[tuple[Action, tuple[str, str, bool]]] = []
        """The calls of the step that are to be asked for, one after the other: the request, and the same."""
        self._parents: dict[str, str] = {}
        """The calls that tasks have made, with the call of each task."""
        self._message = ""
        self._index = 0
        self._answer: Any = None
        self._text = ""
        self._usage = dict.fromkeys(("input", "cached", "output", "reasoning"), 0)

    def start(self) -> None:
        """Starts the turn as a task of the loop."""
        self._task = self._agent.loop.start(self._run())

    def abort(self) -> None:
        """Stops the interrupted turn, and writes a `result` that says so."""
        if self._task is not None:
            self._task.cancelled = True
        self._result(is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming")

    def on_answer(self, request_id: str, response: Action) -> None:
        """Takes the client's answer to a request, and continues the turn."""
        call, asked = self._waiting.pop(request_id, None), self._asked.pop(request_id, None)
        if self._task is None or self._task.cancelled:
            return
        if asked is not None:
            answer = response.get("response", {})
            call_id, output, failed = asked
            if answer.get("behavior") == "allow":
                self._output(call_id, output, is_error=failed)
            else:
                self._output(call_id, answer.get("message", ""), is_error=True)
        if call is not None:
            content = response["response"]["mcp_response"]["result"]["content"]
            self._output(call, content)
        self._agent.loop.wake(self._task)

    def _output(self, call: str, content: Any, **more: Any) -> None:
        self._outputs.append(output_text(content))
        self._agent.items.append({"type": "function_call_output", "call_id": call, "output": content})
        block = {"type": "tool_result", "tool_use_id": call, "content": content, **more}
        message = {"role": "user", "content": [block]}
        self._send({"type": "user", "message": message, "parent_tool_use_id": self._parents.get(call)})

    # --- the steps ------------------------------------------------------------------------------------

    def _run(self) -> Waits:
        if not self._agent.signed_in:
            self._fail("Not logged in · Please run /login", None, "authentication_failed")
            return
        number = self._script.start
        if self._script.first:
            yield self._script.first
        while number < len(self._script):
            step = self._script.step(number, self._outputs)
            number += 1
            self._begin(step)
            for action in step.actions:
                if action["do"] == "error":
                    self._error(action)
                    return
                yield from ACTIONS[action["do"]](self, action)
            acted = bool(self._waiting or self._running or self._to_ask)
            self._end_step(step)
            while self._to_ask:
                wanted, asked = self._to_ask.pop(0)
                self._asked[self._agent.ask("permission", wanted, self._script.faults)] = asked
                while self._asked:
                    yield None
            while self._running:
                yield from self._script.pause()
                call_id, output, failed = self._running.pop(0)
                self._output(call_id, output, is_error=failed)
            while self._waiting:
                yield None
            if acted and self._agent.take_queue():
                self._script, self._outputs = self._agent.script()
                number = self._script.start
                continue
            if step.end in ("length", "content_filter"):
                self._result(stop_reason=STOPS[step.end])
                return
            if step.end == "interrupted":
                self.abort()
                return
        self._result(stop_reason="end_turn")

    def _begin(self, step: Step) -> None:
        self._agent.responses += 1
        self._message, self._index = f"msg_{self._agent.responses}", 0
        head = {"id": self._message, "model": "fake-model", "usage": _tokens(step.usage)}
        self._event("message_start", message=head)

    def _end_step(self, step: Step) -> None:
        if step.usage is not None:
            self._usage = {part: self._usage[part] + step.usage[part] for part in self._usage}
        calls = self._waiting or self._running or self._to_ask
        stop = "tool_use" if calls else STOPS.get(step.end, "end_turn")
        self._event("message_delta", delta={"stop_reason": stop}, usage=_tokens(step.usage))
        self._event("message_stop")

    # --- actions --------------------------------------------------------------------------------------

    def play_message(self, action: Action) -> Waits:
        """Writes a text block; a call of `StructuredOutput` if the turn has a schema and the text is JSON."""
        text = action["final"]
        if self._structured and _is_json(text):
            self._answer = json.loads(text)
            yield from self._call("answer_1", "StructuredOutput", [text])
            self._output("answer_1", "Structured output provided successfully")
        else:
            self._text = text
            yield from self._block("text", "text", action["deltas"] or [text])

    def play_choices(self, action: Action) -> Waits:
        """Writes the first choice: Claude Code has only one."""
        yield from self.play_message({"final": "".join(action["messages"][0]["deltas"]), "deltas": []})

    def play_reasoning(self, action: Action) -> Waits:
        """Writes a `thinking` block for each part."""
        for part in action.get("parts", []) or [action.get("raw", [])]:
            yield from self._block("thinking", "thinking", part)

    def play_calls(self, action: Action) -> Waits:
        """Writes calls of the client's tools, and asks for the outputs."""
        for number, call in enumerate(action["calls"]):
            call_id = f"toolu_{self._agent.responses}_{number}"
            arguments = "".join(call["arguments"])
            self._agent.items.append(
                {"type": "function_call", "call_id": call_id, "name": call["name"], "arguments": arguments}
            )
            yield from self._call(call_id, f"mcp__client__{call['name']}", call["arguments"])
            params = {
                "name": call["name"],
                "arguments": json.loads(arguments) if _is_json(arguments) else {},
                "_meta": {"claudecode/toolUseId": call_id},
            }
            request = self._agent.mcp("tools/call", params, self._script.faults)
            self._waiting[request] = call_id

    def play_command(self, action: Action) -> Waits:
        given, output = {"command": action["command"]}, "".join(action["output"])
        if action.get("takes_time") and "Bash" not in self._agent.settings.asks:
            call_id = f"toolu_{self._agent.responses}_own_{self._index}"
            self._running.append((call_id, output, bool(action["exit_code"])))
            yield from self._call(call_id, "Bash", [json.dumps(given)], pauses=False)
        else:
            yield from self._own("Bash", given, output, failed=bool(action["exit_code"]))

    def play_file_change(self, action: Action) -> Waits:
        """Writes a call of `Write`. No file is changed."""
        yield from self._own("Write", {"file_path": action["path"], "content": action["content"]}, "written")

    def play_web_search(self, action: Action) -> Waits:
        yield from self._own("WebSearch", {"query": action["query"]}, "nothing found")

    def play_plan(self, action: Action) -> Waits:
        """Writes a call of `TodoWrite`; with `tasks` of `TaskCreate` and `TaskUpdate` for each step."""
        if "tasks" in self._script.options:
            for number, each in enumerate(action["plan"], 1):
                given = {"subject": each["step"], "description": each["step"]}
                made = f"Task #{number} created successfully: {each['step']}"
                yield from self._own("TaskCreate", given, made)
                change = {"taskId": str(number), "status": each["status"]}
                yield from self._own("TaskUpdate", change, f"Updated task #{number} status")
            return
        todos = [
            {"content": each["step"], "status": each["status"], "activeForm": each["step"]}
            for each in action["plan"]
        ]
        yield from self._own("TodoWrite", {"todos": todos}, "noted")

    def play_big_line(self, action: Action) -> Waits:
        yield from self._own("Bash", {"command": "yes"}, "y" * action["bytes"])

    def play_subagent(self, action: Action) -> Waits:
        """Writes a call of `Agent` and the lines of its task. What else is done with subagents this program lacks."""
        if action["does"] != "make":
            yield self._script.delay
            return
        call_id, task = f"toolu_{self._agent.responses}_own_{self._index}", f"task_{self._agent.responses}"
        prompt = self._script.options.get("args") or action["task"]
        given = {"description": "Ada", "prompt": prompt}
        yield from self._call(call_id, "Agent", [json.dumps(given)])
        about = {"type": "system", "task_id": task, "tool_use_id": call_id, "task_type": "local_agent"}
        self._send({**about, "subtype": "task_started", **given})
        answer = {"id": task, "role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        self._send({"type": "assistant", "message": answer, "parent_tool_use_id": call_id})
        yield self._script.delay
        if prompt == "[[fake:approval]]":
            yield from self._ask_in(task, call_id)
        self._send({**about, "subtype": "task_notification", "status": "completed", "summary": "Hello."})
        self._output(call_id, "Hello.")

    def _ask_in(self, task: str, parent: str) -> Waits:
        """Asks for the permission to run a command of a task, which the call `parent` has begun."""
        call_id, given = f"{parent}_asked", {"command": "make three"}
        self._parents[call_id] = parent
        block = {"type": "tool_use", "id": call_id, "name": "Bash", "input": given}
        message = {"id": f"{task}_asks", "role": "assistant", "content": [block]}
        self._send({"type": "assistant", "message": message, "parent_tool_use_id": parent})
        wanted = _permission(call_id, "Bash", given) | {"agent_id": task}
        self._asked[self._agent.ask("permission", wanted, self._script.faults)] = (call_id, "ok", False)
        while self._asked:
            yield None

    def play_unknown_request(self, action: Action) -> Waits:
        """Sends a control request that no client knows, and takes any answer."""
        self._agent.ask("unknown", {"subtype": "later_version"}, self._script.faults)
        yield None

    def play_approval(self, action: Action) -> Waits:
        """Asks for the permission to run a command, and those in `also` at the same time; or to write a file."""
        calls = [("Bash", {"command": text}) for text in (action["command"], *action.get("also", ()))]
        if "patch" in action:
            patch = action["patch"]
            calls = [("Write", {"file_path": patch["path"], "content": patch["content"]})]
        for number, (name, given) in enumerate(calls):
            call_id = f"toolu_{self._agent.responses}_asked{number or ''}"
            yield from self._call(call_id, name, [json.dumps(given)])
            wanted = _permission(call_id, name, given)
            self._asked[self._agent.ask("permission", wanted, self._script.faults)] = (call_id, "ok", False)
        while self._asked:
            yield None

    def play_retry(self, action: Action) -> Waits:
        """Writes that the model call is repeated, and begins a message for it."""
        self._send({"type": "system", "subtype": "api_retry", "error_status": None, "error": "unknown"})
        self._agent.responses += 1
        self._message, self._index = f"msg_{self._agent.responses}", 0
        head = {"id": self._message, "model": "fake-model", "usage": {}}
        self._event("message_start", message=head)
        yield 0

    def _own(self, name: str, given: Action, output: str, *, failed: bool = False) -> Waits:
        call_id = f"toolu_{self._agent.responses}_own_{self._index}"
        yield from self._call(call_id, name, [json.dumps(given)])
        if name in self._agent.settings.asks:
            self._to_ask.append((_permission(call_id, name, given), (call_id, output, failed)))
        else:
            self._output(call_id, output, is_error=failed)

    def _block(self, kind: str, field: str, deltas: list[str]) -> Waits:
        self._event("content_block_start", index=self._index, content_block={"type": kind, field: ""})
        for delta in deltas:
            change = {"type": f"{field}_delta", field: delta}
            self._event("content_block_delta", index=self._index, delta=change)
            yield from self._script.pause()
        self._event("content_block_stop", index=self._index)
        self._index += 1

    def _call(self, call_id: str, name: str, fragments: list[str], *, pauses: bool = True) -> Waits:
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        self._event("content_block_start", index=self._index, content_block=block)
        for fragment in fragments:
            change = {"type": "input_json_delta", "partial_json": fragment}
            self._event("content_block_delta", index=self._index, delta=change)
            if pauses:
                yield from self._script.pause()
        text = "".join(fragments)
        whole = {**block, "input": json.loads(text) if _is_json(text) else {}}
        message = {"id": self._message, "model": "fake-model", "role": "assistant", "content": [whole]}
        self._send({"type": "assistant", "message": message})
        self._event("content_block_stop", index=self._index)
        self._index += 1

    # --- the end --------------------------------------------------------------------------------------

    def _error(self, action: Action) -> None:
        kind = action.get("kind")
        status: int | None = None
        if isinstance(kind, dict):
            detail = next(iter(kind.values()))
            status = detail.get("httpStatusCode") if isinstance(detail, dict) else None
        else:
            status = CODES.get(str(kind))
        self._fail(action["text"], status, ERRORS.get(status, "server_error"))

    def _fail(self, text: str, status: int | None, code: str) -> None:
        """Writes an error as Claude Code does: a message of the model `<synthetic>`, then a failed result."""
        content = [{"type": "text", "text": text}]
        message = {"id": "synthetic", "model": "<synthetic>", "role": "assistant", "content": content}
        self._send({"type": "assistant", "message": message, "error": code})
        reason = "prompt_too_long" if "context" in text else "api_error"
        self._result(is_error=True, result=text, api_error_status=status, terminal_reason=reason)

    def _result(self, **fields: Any) -> None:
        structured = {} if self._answer is None else {"structured_output": self._answer}
        usage = _tokens(self._usage)
        self._agent.result(
            {"num_turns": 1, "result": self._text, "usage": usage, **structured, **fields},
            self._script.faults,
        )
        self._agent.turn_ended()

    def _event(self, kind: str, **fields: Any) -> None:
        self._send({"type": "stream_event", "event": {"type": kind, **fields}, "parent_tool_use_id": None})

    def _send(self, value: Action) -> None:
        faults = self._script.faults
        self._agent.send(value, faults)
        if faults.touches_lines:
            if faults.has("unknown_events"):
                self._agent.send({"type": "system", "subtype": "later_version", "nested": [1, 2, 3]}, faults)
            if faults.has("strangers"):
                change = {"type": "text_delta", "text": "stranger"}
                event = {"type": "content_block_delta", "index": 0, "delta": change}
                stranger = {"type": "stream_event", "event": event, "parent_tool_use_id": "toolu_of_nobody"}
                self._agent.send(stranger, faults)


ACTIONS: dict[str, Callable[[ClaudeTurn, Action], Waits]] = {
    "message": ClaudeTurn.play_message,
    "choices": ClaudeTurn.play_choices,
    "reasoning": ClaudeTurn.play_reasoning,
    "calls": ClaudeTurn.play_calls,
    "command": ClaudeTurn.play_command,
    "file_change": ClaudeTurn.play_file_change,
    "web_search": ClaudeTurn.play_web_search,
    "plan": ClaudeTurn.play_plan,
    "big_line": ClaudeTurn.play_big_line,
    "unknown_request": ClaudeTurn.play_unknown_request,
    "subagent": ClaudeTurn.play_subagent,
    "approval": ClaudeTurn.play_approval,
    "retry": ClaudeTurn.play_retry,
}
"""How each action of a scenario is played."""


def _permission(call_id: str, name: str, given: Action) -> Action:
    """Returns the request for the permission to run a call."""
    return {"subtype": "can_use_tool", "tool_name": name, "tool_use_id": call_id, "input": given}


def _tokens(usage: Action | None) -> Action:
    """Returns token counts as Anthropic has them: cached ones are not in the input."""
    if usage is None:
        return {}
    return {
        "input_tokens": usage["input"] - usage["cached"],
        "cache_read_input_tokens": usage["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": usage["output"],
        "output_tokens_details": {"thinking_tokens": usage["reasoning"]},
    }


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
