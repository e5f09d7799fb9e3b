"""One task of `codex proto`: writes a script's steps as events of release 0.42, in Codex's order."""

from __future__ import annotations

import binascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.proto import ProtoAgent
    from fake_proto.script import Script, Step

    Action = dict[str, Any]
    Waits = Iterator[float | None]

CONTEXT_WINDOW = 272000
NO_RATE_LIMITS: Action = {"primary": None, "secondary": None}
CWD = "/fake/workspace"


class ProtoTurn:
    """Writes the events of one submission."""

    def __init__(self, agent: ProtoAgent, submission: str, script: Script, outputs: list[str]) -> None:
        self._agent = agent
        self._submission = submission
        self._script = script
        self._outputs = outputs
        self._last_message: str | None = None
        self._response = 0
        self._index = 0

    def emit(self, kind: str, **fields: Any) -> None:
        self._agent.emit(self._submission, kind, **fields)

    def run(self) -> Waits:
        """Writes all events. Yields the seconds to wait, as the tasks of `loop.Loop` do."""
        script = self._script
        self.emit("task_started", model_context_window=CONTEXT_WINDOW)
        if script.first:
            yield script.first
        for number in range(script.start, len(script)):
            step = script.step(number, self._outputs)
            self._begin_response(refused=any(action.get("refused") for action in step.actions))
            for action in step.actions:
                if action["do"] == "error":
                    yield from self._error(action)
                    return
                yield from ACTIONS[action["do"]](self, action)
            self._report_usage(step)
            if any(action["do"] == "calls" for action in step.actions):
                break
        self._complete(step)

    def _begin_response(self, *, refused: bool = False) -> None:
        """Notes an answer, whose headers have rate limits unless the request was refused."""
        agent = self._agent
        agent.responses += 1
        self._response = agent.responses
        self._index = 0
        if not refused:
            self.emit("token_count", info=self._usage_info(), rate_limits=self._rate_limits())

    def _rate_limits(self) -> Action:
        if not self._script.limits:
            return NO_RATE_LIMITS
        window = {"used_percent": float(self._script.limits), "window_minutes": 300, "resets_in_seconds": 60}
        return {**NO_RATE_LIMITS, "primary": window}

    def _next_id(self, prefix: str) -> str:
        identifier = f"{prefix}_{self._response}_{self._index}"
        self._index += 1
        return identifier

    def _usage_info(self) -> Action | None:
        if self._agent.total is None or self._agent.last is None:
            return None
        return {
            "total_token_usage": _wire_usage(self._agent.total),
            "last_token_usage": _wire_usage(self._agent.last),
            "model_context_window": CONTEXT_WINDOW,
        }

    def _report_usage(self, step: Step) -> None:
        agent = self._agent
        if step.usage is not None:
            agent.last = step.usage
            old = agent.total or dict.fromkeys(step.usage, 0)
            agent.total = {key: old[key] + value for key, value in step.usage.items()}
        extra = {"finish_reason": step.end} if step.end_on == "token_count" and step.end != "stop" else {}
        self.emit(
            "token_count",
            info=self._usage_info() if step.usage is not None else None,
            rate_limits=self._rate_limits(),
            **extra,
        )

    def _complete(self, step: Step) -> None:
        if step.end == "interrupted":
            self.emit("turn_aborted", reason="interrupted")
            self._agent.on_turn_end()
            return
        extra: Action = {}
        if step.end != "stop" and step.end_on == "task_complete":
            extra["finish_reason"] = step.end
        if step.choice_ends is not None:
            extra["choice_finish_reasons"] = step.choice_ends
        if self._last_message is not None:
            content = [{"type": "output_text", "text": self._last_message}]
            self._agent.history.append({"type": "message", "role": "assistant", "content": content})
        self.emit("task_complete", last_agent_message=self._last_message, **extra)
        self._agent.on_turn_end()

    def _message(self, action: Action) -> Waits:
        if action.get("refusal"):
            if self._script.extended:  # the real child says nothing
                self.emit("agent_message", message=None, refusal=action["final"])
            return
        for delta in action["deltas"]:
            self.emit("agent_message_delta", delta=delta)
            yield from self._script.pause()
        if not action.get("open"):
            self._last_message = action["final"]
            self.emit("agent_message", message=action["final"])

    def _choices(self, action: Action) -> Waits:
        messages = action["messages"]
        for position in range(max(len(message["deltas"]) for message in messages)):
            for index, message in enumerate(messages):
                if position < len(message["deltas"]):
                    self.emit("agent_message_delta", delta=message["deltas"][position], choice_index=index)
                    yield from self._script.pause()
        for index, message in enumerate(messages):
            self.emit("agent_message", message=message["final"], choice_index=index)
        self._last_message = messages[0]["final"]

    def _reasoning(self, action: Action) -> Waits:
        parts, raw = action.get("parts", []), action.get("raw", [])
        for part in parts:
            self.emit("agent_reasoning_section_break")
            for delta in part:
                self.emit("agent_reasoning_delta", delta=delta)
                yield from self._script.pause()
        for delta in raw:
            self.emit("agent_reasoning_raw_content_delta", delta=delta)
            yield from self._script.pause()
        for part in parts:
            self.emit("agent_reasoning", text="".join(part))
        if raw:
            self.emit("agent_reasoning_raw_content", text="".join(raw))

    def _calls(self, action: Action) -> Waits:
        calls = [{**call, "id": self._next_id("call")} for call in action["calls"]]
        form = action.get("form", "deltas")
        if action.get("legacy"):
            yield from self._function_call(calls[0], form)
            return
        if form != "whole":
            for fragment in _fragments(calls, interleaved=form == "interleaved"):
                self.emit("tool_calls_delta", choice_index=0, tool_calls=[fragment])
                yield from self._script.pause()
        if form in ("whole", "deltas_and_whole"):
            extra = {"parallel_tool_calls": False} if form == "whole" else {}
            whole = [_whole(call) for call in calls]
            self.emit("agent_message", message=None, tool_calls=whole, **extra)

    def _function_call(self, call: Action, form: str) -> Waits:
        arguments = "".join(call["arguments"])
        if form == "whole":
            whole = {"name": call["name"], "arguments": arguments}
            self.emit("agent_message", message=None, function_call=whole)
            return
        self.emit("function_call_delta", function_call={"name": call["name"], "arguments": ""})
        yield from self._script.pause()
        for fragment in call["arguments"]:
            self.emit("function_call_delta", function_call={"arguments": fragment})
            yield from self._script.pause()

    def _retry(self, action: Action) -> Waits:
        message = f"stream error: {action['text']}; retrying 1/2 in 200ms…"
        self.emit("stream_error", message=message)
        yield self._script.delay
        self._begin_response()

    def _error(self, action: Action) -> Waits:
        retries = action["retries"]
        for i in range(retries):
            self.emit(
                "stream_error",
                message=f"stream error: {action['text']}; retrying {i + 1}/{retries} in 200ms…",
            )
            yield self._script.delay
        self.emit("error", message=action["text"])
        self.emit("task_complete", last_agent_message=None)
        self._agent.on_turn_end()

    def _command(self, action: Action) -> Waits:
        identifier = self._next_id("call")
        command = action["command"]
        self.emit(
            "exec_command_begin",
            call_id=identifier,
            command=["bash", "-lc", command],
            cwd=CWD,
            parsed_cmd=[{"type": "unknown", "cmd": command}],
        )
        for text in action["output"]:
            chunk = binascii.b2a_base64(text.encode(), newline=False).decode()
            self.emit("exec_command_output_delta", call_id=identifier, stream="stdout", chunk=chunk)
            yield from self._script.pause()
        self._command_end(identifier, "".join(action["output"]), action["exit_code"])

    def _command_end(self, identifier: str, output: str, exit_code: int) -> None:
        self.emit(
            "exec_command_end",
            call_id=identifier,
            stdout=output,
            stderr="",
            aggregated_output=output,
            exit_code=exit_code,
            duration={"secs": 0, "nanos": 0},
            formatted_output=output,
        )

    def _big_line(self, action: Action) -> Waits:
        identifier = self._next_id("call")
        self.emit(
            "exec_command_begin", call_id=identifier, command=["bash", "-lc", "yes"], cwd=CWD, parsed_cmd=[]
        )
        self._command_end(identifier, "y" * action["bytes"], 0)
        yield self._script.delay

    def _approval(self, action: Action) -> Waits:
        command = ["bash", "-lc", action["command"]]
        identifier = self._next_id("call")
        self.emit(
            "exec_approval_request", call_id=identifier, command=command, cwd=CWD, reason=action["reason"]
        )
        while self._agent.decision is None:
            yield None
        if self._agent.decision.startswith("approved"):
            self.emit("exec_command_begin", call_id=identifier, command=command, cwd=CWD, parsed_cmd=[])
            self._command_end(identifier, "ok\n", 0)

    def _file_change(self, action: Action) -> Waits:
        identifier = self._next_id("call")
        changes = {f"{CWD}/{action['path']}": {"add": {"content": action["content"]}}}
        self.emit("patch_apply_begin", call_id=identifier, auto_approved=True, changes=changes)
        yield self._script.delay
        self.emit("patch_apply_end", call_id=identifier, stdout="Success.", stderr="", success=True)

    def _web_search(self, action: Action) -> Waits:
        identifier = self._next_id("ws")
        self.emit("web_search_begin", call_id=identifier)
        yield self._script.delay
        self.emit("web_search_end", call_id=identifier, query=action["query"])

    def _plan(self, action: Action) -> Waits:
        self.emit("plan_update", explanation=action["explanation"], plan=action["plan"])
        yield self._script.delay

    def _subagent(self, action: Action) -> Waits:
        """This dialect tells nothing of subagents."""
        yield self._script.delay

    def _unknown_request(self, action: Action) -> Waits:
        """This dialect has no requests of the child: nothing happens."""
        yield from ()


ACTIONS: dict[str, Callable[[ProtoTurn, Action], Waits]] = {
    "message": ProtoTurn._message,
    "choices": ProtoTurn._choices,
    "reasoning": ProtoTurn._reasoning,
    "calls": ProtoTurn._calls,
    "retry": ProtoTurn._retry,
    "command": ProtoTurn._command,
    "big_line": ProtoTurn._big_line,
    "approval": ProtoTurn._approval,
    "file_change": ProtoTurn._file_change,
    "web_search": ProtoTurn._web_search,
    "plan": ProtoTurn._plan,
    "unknown_request": ProtoTurn._unknown_request,
    "subagent": ProtoTurn._subagent,
}
"""How each action of a scenario is played."""


def _wire_usage(usage: dict[str, int]) -> dict[str, int]:
    return {
        "input_tokens": usage["input"],
        "cached_input_tokens": usage["cached"],
        "output_tokens": usage["output"],
        "reasoning_output_tokens": usage["reasoning"],
        "total_tokens": usage["input"] + usage["output"],
    }


def _whole(call: Action) -> Action:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": _kind(call), "function": function}


def _kind(call: Action) -> str:
    return "custom" if call.get("custom") else "function"


def _fragments(calls: list[Action], *, interleaved: bool) -> list[Action]:
    """Returns the increments of the calls: the first has id and name, the others arguments."""
    columns = [
        [
            {
                "index": i,
                "id": call["id"],
                "type": _kind(call),
                "function": {"name": call["name"], "arguments": ""},
            },
            *(
                {"index": i, "type": _kind(call), "function": {"arguments": text}}
                for text in call["arguments"]
            ),
        ]
        for i, call in enumerate(calls)
    ]
    if not interleaved:
        return [fragment for column in columns for fragment in column]
    longest = max(map(len, columns))
    return [column[row] for row in range(longest) for column in columns if row < len(column)]
