"""An agent that speaks the JSON lines of `claude -p --input-format stream-json --output-format stream-json` (2.1.330).
A process has one conversation.
"""

from __future__ import annotations

import json

from fake_proto.agent import Agent
from fake_proto.claude_turn import ClaudeTurn
from fake_proto.request import Request
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.faults import Faults
    from fake_proto.loop import Loop
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

    Action = dict[str, Any]

VERSION = "2.1.330 (Claude Code)"
SESSION = "session_1"
PREFIX = "mcp__client__"
MODELS = [
    {"value": "default", "displayName": "Default", "supportedEffortLevels": ["low", "medium", "high"]},
    {"value": "fake-model", "displayName": "Fake", "supportedEffortLevels": ["low", "medium", "high"]},
]
NO_TOKENS = {"input": 0, "cached": 0, "output": 0, "reasoning": 0}


class ClaudeAgent(Agent):
    """The process: its conversation, the client's tools, and its unanswered requests."""

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        super().__init__(settings, wire, loop, faults)
        self.items: list[Action] = []
        self.tools: list[Action] = []
        self.signed_in = settings.text("ACCOUNT") != "none"
        self._schema: Any = None
        self._system = ""
        self._model = settings.model("fake-model")
        self._effort: str | None = None
        self._requests = 0
        self._asked: dict[str, str] = {}
        """The method of each control request that has no answer yet, by the id of the request."""
        self._turn: ClaudeTurn | None = None
        self._queue: list[tuple[str, list[Action]]] = []
        """What the user has said while a turn runs: the ids of the lines, and the items."""

    # --- stdin --------------------------------------------------------------------------------------

    def receive(self, line: bytes) -> None:
        """Handles a line: a message, a control request, or the answer to one of the agent."""
        message = json.loads(line)
        kind = message["type"]
        if kind == "control_request":
            self._control(message["request_id"], message["request"])
        elif kind == "control_response":
            self._on_control_response(message["response"])
        elif kind == "assistant":
            self.items += _items("assistant", message["message"]["content"])
        elif kind == "user":
            items = _items("user", message["message"]["content"])
            if _is_command(items) and not message.get("text_not_typed"):
                self._run_command()
                return
            if message.get("shouldQuery", True):
                self._queue.append((message.get("uuid", ""), items))
                self._tell("queued", message.get("uuid", ""))
                if self._turn is None:
                    self._begin()
            else:
                self.items += items
                self.init()
                self.result({"num_turns": 0, "result": ""})

    def _control(self, request_id: str, request: Action) -> None:
        answer: Action = {}
        subtype = request["subtype"]
        if subtype == "initialize":
            self._system = request.get("systemPrompt") or request.get("appendSystemPrompt") or ""
            self._schema = request.get("jsonSchema")
            source = "FAKE_KEY" if self.signed_in else "none"
            answer = {"models": MODELS, "account": {"tokenSource": "none", "apiKeySource": source}}
            if request.get("sdkMcpServers"):
                self.mcp("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        elif subtype == "apply_flag_settings":
            self._model = request["settings"].get("model", self._model)
            self._effort = request["settings"].get("effortLevel")
        elif subtype == "interrupt" and self._turn is not None:
            self._turn.abort()
        response = {"subtype": "success", "request_id": request_id, "response": answer}
        self.send({"type": "control_response", "response": response})

    def _on_control_response(self, response: Action) -> None:
        method = self._asked.pop(response["request_id"], "")
        if method == "initialize":
            self.mcp("notifications/initialized", None)
            self.mcp("tools/list", None)
        elif method == "tools/list":
            self.tools = response["response"]["mcp_response"]["result"]["tools"]
        elif self._turn is not None:
            self._turn.on_answer(response["request_id"], response)

    # --- turns --------------------------------------------------------------------------------------

    def _tell(self, state: str, uuid: str) -> None:
        if uuid:
            self.send({"type": "command_lifecycle", "command_uuid": uuid, "state": state})

    def take_queue(self) -> bool:
        """Adds what the user has said to the conversation. Returns whether there was anything."""
        taken, self._queue = self._queue, []
        for uuid, items in taken:
            self._tell("started", uuid)
            self.items += items
        return bool(taken)

    def script(self) -> tuple[Script, list[str]]:
        """Returns the script of the model's answer to the conversation, and the outputs since the user's last word."""
        request = Request("claude", self._model, self.items)
        request.instructions = [self._system] if self._system else []
        request.tools = [tool["name"] for tool in self.tools]
        request.offered = [
            {"type": "function", "parameters": tool["inputSchema"], **tool} for tool in self.tools
        ]
        request.effort, request.output_schema = self._effort, self._schema
        return Script(request, self.settings, self.faults), request.outputs()

    def _begin(self) -> None:
        self.take_queue()
        script, outputs = self.script()
        self.init(script.faults)
        self._turn = ClaudeTurn(self, script, outputs, structured=self._schema is not None)
        self._turn.start()

    def _run_command(self) -> None:
        """Answers a typed command, as the program does: without its model."""
        self.init()
        text = {"type": "text", "text": "(no command of the fake agent)"}
        self.send({"type": "assistant", "message": {"model": "<synthetic>", "content": [text]}})
        self.result({"num_turns": 0, "result": ""})

    def turn_ended(self) -> None:
        """Records that no turn runs any more, and begins the next one with what the user has said. Called by the
        turn.
        """
        self._turn = None
        if self._queue:
            self._begin()

    # --- stdout -------------------------------------------------------------------------------------

    def init(self, faults: Faults | None = None) -> None:
        """Writes `system/init`, which precedes each turn. `faults`: as for `send`."""
        head = {"type": "system", "subtype": "init", "session_id": SESSION, "model": self._model}
        self.send({**head, "capabilities": ["msg_lifecycle_v1"]}, faults)

    def result(self, fields: Action, faults: Faults | None = None) -> None:
        """Writes `result`, which ends each turn, with these fields. `faults`: as for `send`."""
        head = {"type": "result", "subtype": "success", "is_error": False, "session_id": SESSION}
        self.send({**head, **fields}, faults)

    def ask(self, what: str, request: Action, faults: Faults | None = None) -> str:
        """Sends a control request, and returns its id. `what` is a name for its answer. `faults`: as for `send`."""
        self._requests += 1
        request_id = f"request_{self._requests}"
        self._asked[request_id] = what
        self.send({"type": "control_request", "request_id": request_id, "request": request}, faults)
        return request_id

    def mcp(self, method: str, params: Action | None, faults: Faults | None = None) -> str:
        """Sends a JSON-RPC request or notification to the client's MCP server, in a control request, whose id it
        returns. `faults`: as for `send`.
        """
        message: Action = {"jsonrpc": "2.0", "method": method}
        if not method.startswith("notifications/"):
            message["id"] = self._requests
        if params is not None:
            message["params"] = params
        request = {"subtype": "mcp_message", "server_name": "client", "message": message}
        return self.ask(method, request, faults)


def _is_command(items: list[Action]) -> bool:
    parts: list[Action] = items[-1].get("content", []) if items else []
    return bool(parts) and str(parts[0].get("text", "")).startswith("/")


def _items(role: str, content: Any) -> list[Action]:
    """Returns a message as Responses items."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    found: list[Action] = []
    parts: list[Action] = []
    for block in content:
        if block["type"] == "tool_use":
            name = block["name"].removeprefix(PREFIX)
            arguments = json.dumps(block["input"])
            call = {"type": "function_call", "call_id": block["id"], "name": name, "arguments": arguments}
            found.append(call)
        elif block["type"] == "tool_result":
            output = {"type": "function_call_output", "call_id": block["tool_use_id"]}
            found.append({**output, "output": block["content"]})
        elif block["type"] == "text":
            parts.append({"type": "text", "text": block["text"]})
        else:
            parts.append({"type": "input_image"})
    message = {"type": "message", "role": role, "content": parts}
    return (
        ([message] if parts and role == "assistant" else [])
        + found
        + ([message] if parts and role == "user" else [])
    )
