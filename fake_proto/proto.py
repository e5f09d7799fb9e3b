"""An agent that speaks `codex proto` 0.42: submissions `{"id","op"}` in, events `{"id","msg"}` out. README.md describes
additional fields for the client's tools, finish reasons and choices.
"""

from __future__ import annotations

import json
import sys

from fake_proto.agent import Agent
from fake_proto.faults import Faults
from fake_proto.proto_turn import ProtoTurn
from fake_proto.request import Request
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.loop import Loop, Task
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

SILENT_OPS = frozenset(
    (
        "add_to_history",
        "compact",
        "get_history_entry_request",
        "get_path",
        "list_custom_prompts",
        "list_mcp_tools",
        "review",
    )
)
ECHOED_FIELDS = ("tool_choice", "parallel_tool_calls", "choices")
LEGACY_PREFIX = "codex/event/"
STRANGER = {"id": "no submission", "msg": {"type": "agent_message_delta", "delta": "stranger"}}
UNKNOWN_EVENT = {"type": "event_of_a_later_version", "value": {"nested": [1, 2, 3]}}


class ProtoAgent(Agent):
    """The process: its conversation, its token total, and the running task, if any."""

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        super().__init__(settings, wire, loop, faults)
        self._current_faults = faults
        self.model = settings.model("gpt-5")
        self.effort: str | None = None
        self.summary: str | None = None
        self.history: list[dict[str, Any]] = []
        self.total: dict[str, int] | None = None
        self.last: dict[str, int] | None = None
        self.decision: str | None = None
        self._task: Task | None = None
        self._task_id = ""
        self._shut_down = False
        self.emit(
            "",
            "session_configured",
            session_id="session_1",
            model=self.model,
            history_log_id=0,
            history_entry_count=0,
            rollout_path="/fake/sessions/rollout-session_1.jsonl",
        )

    def emit(self, submission: str, kind: str, **fields: Any) -> None:
        """Writes an event for a submission, in the form that the current faults ask for."""
        faults = self._current_faults
        msg = {"type": kind, **fields}
        if not faults.touches_lines:
            self.send({"id": submission, "msg": msg}, faults)
            return
        if faults.has("legacy_shape"):
            self.send(msg, faults)
        elif faults.has("prefixed"):
            self.send({"id": submission, "msg": {**msg, "type": LEGACY_PREFIX + kind}}, faults)
        else:
            self.send({"id": submission, "msg": msg}, faults)
        if faults.has("duplicate"):
            self.send({"id": submission, "msg": {**msg, "type": LEGACY_PREFIX + kind}}, faults)
        if faults.has("unknown_events"):
            self.send({"id": submission, "msg": UNKNOWN_EVENT}, faults)
        if faults.has("strangers"):
            self.send(STRANGER, faults)

    def receive(self, line: bytes) -> None:
        """Handles one submission. An invalid line only causes a message on stderr, as with Codex."""
        try:
            submission = json.loads(line)
            identifier, op = submission["id"], submission["op"]
            kind = op["type"]
        except (ValueError, KeyError, TypeError) as error:
            _complain(f"invalid submission: {error!r}")
            return
        if kind in ("user_input", "user_turn"):
            self._begin(identifier, op)
        elif kind == "interrupt":
            self._abort("interrupted")
        elif kind == "shutdown":
            self._shut_down = True
            self._abort("interrupted")
            self.emit(identifier, "shutdown_complete")
        elif kind in ("exec_approval", "patch_approval"):
            self._decide(str(op.get("id")), str(op.get("decision")))
        elif kind == "override_turn_context":
            self.model = op.get("model") or self.model
            self.effort = op.get("effort", self.effort)
            self.summary = op.get("summary", self.summary)
        elif kind not in SILENT_OPS:
            _complain(f"invalid submission: unknown variant `{kind}`")

    def end_of_input(self) -> int | None:
        """Returns the exit status after a `shutdown`; otherwise None: Codex keeps running without stdin."""
        return 0 if self._shut_down else None

    def _begin(self, submission: str, op: dict[str, Any]) -> None:
        if self._task is not None:
            return
        self.model = op.get("model") or self.model
        self.effort = op.get("effort") or self.effort
        self.history.extend(op.get("history") or ())
        if op.get("items"):
            self.history.append(
                {"type": "message", "role": "user", "content": [_input_part(item) for item in op["items"]]}
            )
        request = Request("proto", self.model, list(self.history))
        request.effort = self.effort
        request.summary = op.get("summary") or self.summary
        request.output_schema = op.get("final_output_json_schema")
        request.offered = list(op.get("tools") or ())
        request.tools = [str(tool.get("name")) for tool in request.offered]
        request.options = {name: op[name] for name in ECHOED_FIELDS if name in op}
        script = Script(request, self.settings, self.faults)
        self._current_faults = script.faults
        self.responses = max(self.responses, request.highest_response())
        self.decision = None
        self._task_id = submission
        self._task = self.loop.start(ProtoTurn(self, submission, script, request.outputs()).run())

    def on_turn_end(self) -> None:
        """Called by the task after its last event."""
        self._task = None
        self._current_faults = self.faults

    def _abort(self, reason: str) -> None:
        if self._task is None:
            return
        self._task.cancelled = True
        self._task = None
        self._current_faults = Faults()
        self.emit(self._task_id, "turn_aborted", reason=reason)
        self._current_faults = self.faults

    def _decide(self, submission: str, decision: str) -> None:
        if self._task is None or submission != self._task_id:
            return
        if decision == "abort":
            self._abort("interrupted")
            return
        self.decision = decision
        self.loop.wake(self._task)


def _input_part(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "text":
        return {"type": "input_text", "text": item.get("text")}
    return {"type": "input_image", "image_url": item.get("image_url")}


def _complain(text: str) -> None:
    sys.stderr.write(f"ERROR codex_cli::proto: {text}\n")
    sys.stderr.flush()
