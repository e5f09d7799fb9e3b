"""A process of `codex exec --json` (0.163): reads a prompt from stdin, writes one turn as lines of whole items, and
ends. It has no client's tools and one choice: of a scenario with calls only the last step is played.
"""

from __future__ import annotations

import json
import sys
import time

from fake_proto.faults import LIFE_S, Faults, StalledError
from fake_proto.request import Request
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fake_proto.script import Step
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

    Action = dict[str, Any]

OPTIONS = (
    *("--json", "--ephemeral", "--skip-git-repo-check", "--sandbox", "--model", "--image"),
    *("--output-schema", "--strict-config"),
)
HELP = "Usage: codex exec [OPTIONS] [PROMPT]\n\nOptions:\n" + "".join(f"      {name}\n" for name in OPTIONS)
NO_PROMPT = "No prompt provided via stdin.\n"
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ExecTurn:
    """Writes the lines of one turn."""

    def __init__(self, settings: Settings, wire: Wire, faults: Faults) -> None:
        self._settings = settings
        self._wire = wire
        self._faults = faults
        self._items = 0
        self._usage = dict.fromkeys(("input", "cached", "output", "reasoning"), 0)

    def run(self, prompt: str, arguments: list[str]) -> int:
        """Writes the turn for `prompt`, and returns the exit status."""
        request = self._request(prompt, arguments)
        script = Script(request, self._settings, self._faults)
        self._faults = script.faults
        self.emit("thread.started", thread_id="thread_1")
        self.emit("turn.started")
        time.sleep(script.first)
        step = script.step(len(script) - 1, [])
        for action in step.actions:
            if action["do"] == "error":
                return self._fail(action["text"])
            if action["do"] in ACTIONS:  # Codex has no line for the others
                ACTIONS[action["do"]](self, action)
            time.sleep(script.delay)
        return self._end(step)

    def emit(self, kind: str, **fields: Any) -> None:
        """Writes one line of the type `kind`, with these fields."""
        self._wire.send({"type": kind, **fields}, self._faults)

    def _request(self, prompt: str, arguments: list[str]) -> Request:
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
        model = _value_of(arguments, "--model") or self._settings.model("gpt-5")
        request = Request("exec", model, [message])
        effort = self._settings.config.get("model_reasoning_effort")
        request.effort = None if effort is None else str(effort)
        schema = _value_of(arguments, "--output-schema")
        if schema:
            with open(schema, encoding="utf-8") as file:
                request.output_schema = json.load(file)
        images = [place for place, word in enumerate(arguments) if word == "--image"]
        request.options = {"images": len(images), "sandbox": _value_of(arguments, "--sandbox")}
        for place in images:
            with open(arguments[place + 1], "rb"):  # the real one reads it, too
                pass
        return request

    def _item(self, kind: str, **fields: Any) -> None:
        self.emit("item.completed", item={"id": self._next_id(), "type": kind, **fields})

    def _next_id(self) -> str:
        self._items += 1
        return f"item_{self._items - 1}"

    def _message(self, action: Action) -> None:
        if not action.get("refusal"):  # of which the real one tells nothing
            self._item("agent_message", text=action["final"])

    def _choices(self, action: Action) -> None:
        self._item("agent_message", text=action["messages"][0]["final"])

    def _reasoning(self, action: Action) -> None:
        parts = ["".join(part) for part in action.get("parts", [])]
        if parts:
            self._item("reasoning", text="\n".join(parts))

    def _command(self, action: Action) -> None:
        code = action["exit_code"]
        item = {"id": self._next_id(), "type": "command_execution", "command": action["command"]}
        begun = {"aggregated_output": "", "exit_code": None, "status": "in_progress"}
        self.emit("item.started", item={**item, **begun})
        ended = {"exit_code": code, "status": "failed" if code else "completed"}
        self.emit("item.completed", item={**item, "aggregated_output": "".join(action["output"]), **ended})

    def _big_line(self, action: Action) -> None:
        self._command({"command": "yes", "output": ["y" * action["bytes"]], "exit_code": 0})

    def _file_change(self, action: Action) -> None:
        changes = [{"path": f"/fake/workspace/{action['path']}", "kind": "add"}]
        self._item("file_change", changes=changes, status="completed")

    def _web_search(self, action: Action) -> None:
        self._item("web_search", query=action["query"])

    def _plan(self, action: Action) -> None:
        steps = [
            {"text": each["step"], "completed": each["status"] == "completed"} for each in action["plan"]
        ]
        self._item("todo_list", items=steps)

    def _retry(self, action: Action) -> None:
        self.emit("error", message=f"Reconnecting... 1/2 ({action['text']})")

    def _fail(self, text: str) -> int:
        self.emit("error", message=text)
        self.emit("turn.failed", error={"message": text})
        self._wire.flush()
        return 1

    def _end(self, step: Step) -> int:
        if step.end in INCOMPLETE:
            return self._fail(f"Incomplete response returned, reason: {INCOMPLETE[step.end]}")
        told = step.usage or self._usage
        usage = {
            "input_tokens": told["input"],
            "cached_input_tokens": told["cached"],
            "output_tokens": told["output"],
            "reasoning_output_tokens": told["reasoning"],
        }
        self.emit("turn.completed", usage=usage)
        self._wire.flush()
        return 0


ACTIONS: dict[str, Callable[[ExecTurn, Action], None]] = {
    "message": ExecTurn._message,
    "choices": ExecTurn._choices,
    "reasoning": ExecTurn._reasoning,
    "command": ExecTurn._command,
    "big_line": ExecTurn._big_line,
    "file_change": ExecTurn._file_change,
    "web_search": ExecTurn._web_search,
    "plan": ExecTurn._plan,
    "retry": ExecTurn._retry,
}
"""How each action of a scenario is played."""


def serve_exec(settings: Settings, wire: Wire, faults: Faults, arguments: list[str]) -> int:
    """Runs `codex exec`, and returns the exit status."""
    if "--help" in arguments:
        sys.stdout.write(HELP)
        return 0
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt.strip():
        sys.stderr.write(NO_PROMPT)
        return 1
    try:
        return ExecTurn(settings, wire, faults).run(prompt, arguments)
    except StalledError:
        time.sleep(LIFE_S)
        return 1


def _value_of(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else ""
