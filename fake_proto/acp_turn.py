"""One turn of the Agent Client Protocol: sends a script's steps as session updates, then answers the prompt."""

from __future__ import annotations

import json
import os

from fake_proto.faults import POLL_S, Faults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fake_proto.acp import AcpAgent, AcpSession
    from fake_proto.loop import Task
    from fake_proto.script import Script

    Action = dict[str, Any]
    Waits = Iterator[float | None]

STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "interrupted": "cancelled"}
OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]
SERVER = "client"


class AcpTurn:
    """One turn, with its requests for permission and its calls of tools."""

    def __init__(self, agent: AcpAgent, session: AcpSession, identifier: Any, script: Script) -> None:
        self._agent = agent
        self._session = session
        self._identifier = identifier
        self._script = script
        self._task: Task | None = None
        self._reply: Action | None = None
        self._outputs: list[str] = []
        self._said: list[str] = []
        self._late: Action | None = None
        """The last piece of text, which the fault `late_text` sends behind the turn's end."""
        self._usage = dict.fromkeys(("input", "cached", "output", "reasoning"), 0)
        self._told_usage = True

    def start(self) -> None:
        """Starts the turn as a task of the loop."""
        self._task = self._agent.loop.start(self._run())

    def cancel(self) -> None:
        """Stops the turn and answers its prompt with `cancelled`. Does nothing with the fault `ignore_interrupt`."""
        if self._task is not None and not self._script.faults.has("ignore_interrupt"):
            self._task.cancelled = True
            self._script.faults = Faults()
            self._end("cancelled")

    def on_answer(self, message: Action) -> None:
        """Takes the client's answer to a request of this turn, and continues the turn."""
        self._reply = message
        if self._task is not None:
            self._agent.loop.wake(self._task)

    def _run(self) -> Waits:
        script = self._script
        yield script.first
        if "form" in script.options:
            yield from self._form(script.options["form"])
        for number in range(script.start, len(script)):
            step = script.step(number, self._outputs)
            for action in step.actions:
                if action["do"] == "error":
                    self._fail(action)
                    return
                yield from ACTIONS[action["do"]](self, action)
            if step.usage is None:
                self._told_usage = False
            else:
                self._usage = {part: count + step.usage[part] for part, count in self._usage.items()}
        self._end(STOPS.get(step.end, "end_turn"))

    def _tell_context(self) -> None:
        """Tells how full the model's window is and, where the fault has a number, what the session has cost."""
        told = self._script.options.get("cost", "")
        self._session.cost += float(told or 0)
        used = self._usage["input"] + self._usage["output"] or 1
        cost = {"cost": {"amount": self._session.cost, "currency": "USD"}} if told else {}
        self._update("usage_update", used=used, size=200_000, **cost)

    def _end(self, stop: str) -> None:
        usage = self._usage
        if "cost" in self._script.options:
            self._tell_context()
        result: Action = {"stopReason": stop}
        if self._told_usage and stop != "cancelled":
            result["usage"] = {
                "inputTokens": usage["input"] - usage["cached"],
                "cachedReadTokens": usage["cached"],
                "outputTokens": usage["output"],
                "thoughtTokens": usage["reasoning"],
                "totalTokens": usage["input"] + usage["output"],
            }
        text = [{"type": "output_text", "text": "".join(self._said)}]
        self._session.items.append({"type": "message", "role": "assistant", "content": text})
        self._agent.files.write(self._session)
        self._session.turn = None
        self._agent.answer(self._identifier, result, self._script.faults)
        when = self._script.options.get("late", "0")
        if self._late is not None and when == "next":
            self._session.late = self._late
        elif self._late is not None:
            self._agent.loop.start(self._send_late(self._late, float(when) / 1000))

    def _send_late(self, update: Action, seconds: float) -> Waits:
        if seconds:
            yield seconds
        self._agent.update(self._session.identifier, update, self._script.faults)

    def _fail(self, action: Action) -> None:
        self._session.turn = None
        self._agent.fail(self._identifier, action["text"], -32603, self._script.faults)

    def _next_name(self, kind: str) -> str:
        self._session.names += 1
        return f"{self._session.identifier}_{kind}_{self._session.names}"

    def _update(self, what: str, **fields: Any) -> None:
        update = {"sessionUpdate": what, **fields}
        self._agent.update(self._session.identifier, update, self._script.faults)

    def _chunk(self, kind: str, text: str, name: str) -> None:
        named = {} if self._script.faults.has("no_ids") else {"messageId": name}
        self._update(kind, content={"type": "text", "text": text}, **named)

    def _message(self, action: Action) -> Waits:
        name = self._next_name("message")
        pieces = action["deltas"] or [action["final"]]
        late = [pieces[-1]] if self._script.faults.has("late_text") else []
        for piece in pieces[: len(pieces) - len(late)]:
            self._chunk("agent_message_chunk", piece, name)
            self._said.append(piece)
            yield self._script.delay
        for piece in late:
            self._late = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": piece}}
            self._late |= {} if self._script.faults.has("no_ids") else {"messageId": name}
            self._said.append(piece)

    def _choices(self, action: Action) -> Waits:
        yield from self._message(action["messages"][0])

    def _reasoning(self, action: Action) -> Waits:
        name = self._next_name("thought")
        for part in (*action.get("parts", []), *action.get("raw", [])):
            for piece in part:
                self._chunk("agent_thought_chunk", piece, name)
                yield self._script.delay

    def _tool(self, kind: str, title: str, **fields: Any) -> str:
        name = self._next_name("tool")
        self._update("tool_call", toolCallId=name, kind=kind, title=title, status="pending", **fields)
        return name

    def _end_tool(self, name: str, text: str = "", status: str = "completed") -> None:
        content = [{"type": "content", "content": {"type": "text", "text": text}}] if text else []
        self._update("tool_call_update", toolCallId=name, status=status, content=content)

    def _ask_permission(self, name: str, kind: str, title: str, **more: Any) -> Iterator[float | None]:
        """Asks the client; afterwards `_reply` has its answer."""
        self._reply = None
        call = {"toolCallId": name, "kind": kind, "title": title, **more}
        params = {"sessionId": self._session.identifier, "toolCall": call, "options": OPTIONS}
        self._agent.ask(self, "session/request_permission", params, self._script.faults)
        while self._reply is None:
            yield None

    @property
    def _is_allowed(self) -> bool:
        outcome = (self._reply or {}).get("result", {}).get("outcome", {})
        return bool(outcome.get("optionId") == "yes")

    def _form(self, asked: str) -> Waits:
        """Asks the user for a form, or to open a page, as the JSON `asked` says; says what came of it."""
        if not self._agent.asks_user:
            yield from self._message({"deltas": [], "final": "nobody to ask "})
            return
        self._reply = None
        params = {"sessionId": self._session.identifier, **json.loads(asked)}
        self._agent.ask(self, "elicitation/create", params, self._script.faults)
        while self._reply is None:
            yield None
        said = json.dumps(self._reply.get("result", self._reply.get("error")), sort_keys=True)
        yield from self._message({"deltas": [], "final": said + " "})

    def _command(self, action: Action) -> Waits:
        name = self._tool("execute", action["command"], rawInput={"command": action["command"]})
        yield from self._ask_permission(name, "execute", action["command"])
        if not self._is_allowed:
            self._end_tool(name, "rejected", "failed")
            return
        self._end_tool(name, "".join(action["output"]), "failed" if action["exit_code"] else "completed")

    def _approval(self, action: Action) -> Waits:
        yield from self._command({**action, "output": ["removed\n"], "exit_code": 0})

    def _file_change(self, action: Action) -> Waits:
        if self._script.faults.has("unasked"):
            self._write_unasked(self._script.options.get("path") or action["path"], action["content"])
            return
        name = self._tool("edit", f"Write {action['path']}")
        path = os.path.join(self._session.folder, action["path"])
        diff = {"type": "diff", "path": path, "oldText": None, "newText": action["content"]}
        yield from self._ask_permission(name, "edit", f"Write {action['path']}", content=[diff])
        self._end_tool(name, status="completed" if self._is_allowed else "failed")

    def _write_unasked(self, path: str, content: str) -> None:
        """Really writes the file."""
        name = self._tool("edit", f"Write {path}")
        try:
            with open(os.path.join(self._session.folder, path), "w", encoding="utf-8") as file:
                file.write(content)
        except OSError as error:
            self._end_tool(name, str(error.strerror), "failed")
        else:
            self._end_tool(name)

    def _web_search(self, action: Action) -> Waits:
        self._end_tool(self._tool("fetch", action["query"]))
        yield 0

    def _plan(self, action: Action) -> Waits:
        entries = [{"content": each["step"], "status": each["status"]} for each in action["plan"]]
        self._update("plan", entries=entries)
        yield 0

    def _calls_of_step(self, action: Action) -> Waits:
        begun = []
        for call in action["calls"]:
            server = next((each for each in self._agent.servers_of(self._session) if each.tools), None)
            if server is None:
                self._outputs.append("there is no such tool")
                continue
            title = f"mcp__{SERVER}__{call['name']}"
            name = self._tool("other", title, rawInput={})
            begun.append((name, server.call(call["name"], "".join(call["arguments"]))))
        for name, waiting in begun:
            while waiting.output is None:
                yield POLL_S
            self._outputs.append(waiting.output)
            self._end_tool(name, waiting.output)

    def _retry(self, action: Action) -> Waits:
        meta = {
            "jetbrains": {"air": {"sessionFailure": {"severity": "warning", "title": "Retrying, attempt 1."}}}
        }
        self._update("session_info_update", _meta=meta)
        yield 0

    def _unknown_request(self, action: Action) -> Waits:
        self._reply = None
        params = {"sessionId": self._session.identifier}
        self._agent.ask(self, "fake/unknown", params, self._script.faults)
        while self._reply is None:
            yield None

    def _subagent(self, action: Action) -> Waits:
        """This protocol tells nothing of subagents."""
        yield 0

    def _big_line(self, action: Action) -> Waits:
        self._update("available_commands_update", availableCommands=["y" * action["bytes"]])
        yield 0


ACTIONS: dict[str, Callable[[AcpTurn, Action], Waits]] = {
    "message": AcpTurn._message,
    "choices": AcpTurn._choices,
    "reasoning": AcpTurn._reasoning,
    "command": AcpTurn._command,
    "approval": AcpTurn._approval,
    "file_change": AcpTurn._file_change,
    "web_search": AcpTurn._web_search,
    "plan": AcpTurn._plan,
    "calls": AcpTurn._calls_of_step,
    "retry": AcpTurn._retry,
    "unknown_request": AcpTurn._unknown_request,
    "subagent": AcpTurn._subagent,
    "big_line": AcpTurn._big_line,
}
"""How each action of a scenario is played."""
