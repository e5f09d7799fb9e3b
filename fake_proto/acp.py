"""An agent that speaks the Agent Client Protocol, with many sessions at once. It calls the tools of the MCP servers
that `session/new` names, asks before each command and change of a file, and reports usage.
"""

from __future__ import annotations

import json
import os

from fake_proto.acp_turn import AcpTurn
from fake_proto.agent import RpcAgent, RpcError
from fake_proto.request import Request
from fake_proto.script import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.acp_tools import McpServer
    from fake_proto.faults import Faults
    from fake_proto.loop import Loop
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

    Params = dict[str, Any]

MODES = [{"id": "default", "name": "Default"}, {"id": "plan", "name": "Plan"}]
AUTH_REQUIRED, NO_METHOD = -32000, -32601


class AcpSession:
    """A session. `items`: the messages so far."""

    def __init__(self, identifier: str, servers: list[McpServer], model: str, folder: str) -> None:
        self.identifier = identifier
        self.folder = folder
        self.servers = servers
        self.model = model
        self.mode = "default"
        self.items: list[Params] = []
        self.cost = 0.0
        self.names = 0
        """The number of ids that messages and calls have so far."""
        self.late: Params | None = None
        """An update of an earlier turn, which is sent when the next one begins."""
        self.turn: AcpTurn | None = None


class SessionFiles:
    """The sessions that the agent stores, each in a file of this folder; without a folder it stores none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @property
    def are_kept(self) -> bool:
        """Whether there is a folder."""
        return bool(self._folder)

    def write(self, session: AcpSession) -> None:
        """Stores what was said so far."""
        if self._folder:
            with open(self._path(session.identifier), "w", encoding="utf-8") as file:
                json.dump({"folder": session.folder, "model": session.model, "items": session.items}, file)

    def read(self, identifier: str) -> AcpSession | None:
        """Returns a session without MCP servers; None if it is not stored."""
        if not self._folder or not os.path.exists(self._path(identifier)):
            return None
        with open(self._path(identifier), encoding="utf-8") as file:
            stored = json.load(file)
        session = AcpSession(identifier, [], stored["model"], stored["folder"])
        session.items = stored["items"]
        return session

    def delete(self, identifier: str) -> bool:
        """Deletes a session; returns whether it was there."""
        if self.read(identifier) is None:
            return False
        os.unlink(self._path(identifier))
        return True

    def _path(self, identifier: str) -> str:
        return os.path.join(self._folder, os.path.basename(identifier) + ".json")


class AcpAgent(RpcAgent):
    """The agent process, with its sessions."""

    usual_code = -32602

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        super().__init__(settings, wire, loop, faults)
        self._sessions: dict[str, AcpSession] = {}
        self._closed: dict[str, AcpSession] = {}
        self._names = 0
        self.files = SessionFiles(settings.text("SESSIONS"))
        self.asks_user = False
        """Whether the client takes forms."""
        self._servers_of: dict[str, list[McpServer]] = {}
        """The newest MCP servers of each folder, for the fault `shares_tools`."""
        self._methods = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/fork": self._fork,
            "session/set_mode": self._set_mode,
            "session/set_model": self._set_model,
            "session/prompt": self._prompt,
            "session/close": self._close,
            "session/delete": self._delete,
        }

    def handle(self, identifier: Any, method: str, params: Any) -> None:
        """Handles a request of the client."""
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError("Method not found", NO_METHOD)
        handler(identifier, params or {})

    def on_notification(self, method: str, params: Params) -> None:
        """Cancels the turn of a session."""
        if method == "session/cancel":
            session = self._sessions.get(params["sessionId"])
            if session is not None and session.turn is not None:
                session.turn.cancel()

    def send(self, message: Params, faults: Faults | None = None) -> None:
        """Writes one JSON-RPC message as a line. `faults`: as for `Agent.send`."""
        super().send({"jsonrpc": "2.0", **message}, faults)

    def update(self, session: str, update: Params, faults: Faults) -> None:
        """Sends a `session/update` notification about the session with the id `session`."""
        self.send({"method": "session/update", "params": {"sessionId": session, "update": update}}, faults)

    def _initialize(self, identifier: Any, params: Params) -> None:
        able = {
            "loadSession": True,
            "promptCapabilities": {"image": True},
            "mcpCapabilities": {"http": not self.faults.has("stdio_tools")},
            "sessionCapabilities": {"close": {}, "delete": {}, "fork": {}},
        }
        self.asks_user = "elicitation" in params.get("clientCapabilities", {})
        version = 2 if self.faults.has("other_version") else params["protocolVersion"]
        info = {"name": "fake", "title": "Fake", "version": "0.0.0"}
        self.answer(identifier, {"protocolVersion": version, "agentCapabilities": able, "agentInfo": info})

    def _new(self, identifier: Any, params: Params) -> None:
        if self.faults.has("signed_out"):
            raise RpcError("Authentication required", AUTH_REQUIRED)
        name = self._new_name()
        servers = self._connect(params["mcpServers"])
        session = AcpSession(name, servers, self.settings.model("fake-model"), params["cwd"])
        self._servers_of[session.folder] = servers or self._servers_of.get(session.folder, [])
        self._sessions[session.identifier] = session
        self.answer(identifier, {"sessionId": session.identifier, **self._offer(session)})

    def _load(self, identifier: Any, params: Params) -> None:
        """Opens a closed session again, after updates with its earlier messages. As with other programs, the session
        is in its default mode again, and the answer does not have its id.
        """
        name = params["sessionId"]
        session = self._closed.pop(name, None) or self.files.read(name)
        if session is None or self.faults.has("forgets"):
            raise RpcError("no such session")
        session.servers, session.mode = self._connect(params["mcpServers"]), "default"
        self._sessions[session.identifier] = session
        for item in session.items:
            kind = "user_message_chunk" if item["role"] == "user" else "agent_message_chunk"
            for part in item["content"]:
                content = {"type": "text", "text": part.get("text", "")}
                self.update(session.identifier, {"sessionUpdate": kind, "content": content}, self.faults)
        self.answer(identifier, self._offer(session))

    def _fork(self, identifier: Any, params: Params) -> None:
        """Copies a session, and opens the copy."""
        name = params["sessionId"]
        source = self._sessions.get(name) or self._closed.get(name) or self.files.read(name)
        if source is None or self.faults.has("forgets"):
            raise RpcError("no such session")
        copy = AcpSession(self._new_name(), self._connect(params["mcpServers"]), source.model, params["cwd"])
        copy.items = list(source.items)
        self.files.write(copy)
        self._sessions[copy.identifier] = copy
        self.answer(identifier, {"sessionId": copy.identifier, **self._offer(copy)})

    def _delete(self, identifier: Any, params: Params) -> None:
        closed = self._closed.pop(params["sessionId"], None)
        if not self.files.delete(params["sessionId"]) and closed is None:
            raise RpcError("no such session")
        self.answer(identifier, {})

    def _new_name(self) -> str:
        self._names += 1
        return f"session_{os.getpid()}_{self._names}" if self.files.are_kept else f"session_{self._names}"

    def _connect(self, entries: list[Params]) -> list[McpServer]:
        if not entries:
            return []
        from fake_proto.acp_tools import McpServer  # what it needs takes as long to import as all the rest

        servers = [McpServer(entry, dict(self.settings.env)) for entry in entries]
        for server in servers:
            if not self.faults.has("lists_never"):
                server.connect()
        return servers

    def servers_of(self, session: AcpSession) -> list[McpServer]:
        """Returns a session's MCP servers; with the fault `shares_tools` those that were last named for its folder."""
        shared = self._servers_of.get(session.folder, []) if self.faults.has("shares_tools") else []
        return shared or session.servers

    def _offer(self, session: AcpSession) -> Params:
        result: Params = {}
        if not self.faults.has("no_modes"):
            result["modes"] = {"currentModeId": session.mode, "availableModes": MODES}
        if not self.faults.has("no_models"):
            models = [{"modelId": "fake-model", "name": "Fake"}, {"modelId": "fake-other", "name": "Other"}]
            result["models"] = {"currentModelId": session.model, "availableModels": models}
        return result

    def _session(self, params: Params) -> AcpSession:
        session = self._sessions.get(params["sessionId"])
        if session is None:
            raise RpcError(f"session not found: {params['sessionId']}")
        return session

    def _set_mode(self, identifier: Any, params: Params) -> None:
        if self.faults.has("keeps_mode"):
            raise RpcError("the mode cannot be set")
        self._session(params).mode = params["modeId"]
        self.answer(identifier, {})

    def _set_model(self, identifier: Any, params: Params) -> None:
        self._session(params).model = params["modelId"]
        self.answer(identifier, {})

    def _close(self, identifier: Any, params: Params) -> None:
        session = self._sessions.pop(params["sessionId"], None)
        if session is not None:
            self._closed[session.identifier] = session
            if session.turn is not None:
                session.turn.cancel()
        self.answer(identifier, {})

    def _prompt(self, identifier: Any, params: Params) -> None:
        session = self._session(params)
        if session.turn is not None:
            raise RpcError("two prompts at a time on one session")
        content = [
            {"type": "input_text", "text": block["text"]}
            if block["type"] == "text"
            else {"type": "input_image"}
            for block in params["prompt"]
        ]
        session.items.append({"type": "message", "role": "user", "content": content})
        self.files.write(session)
        request = Request("acp", session.model, session.items)
        request.offered = [tool for server in self.servers_of(session) for tool in server.tools]
        request.tools = [str(tool["name"]) for tool in request.offered]
        request.options = {"mode": session.mode}
        script = Script(request, self.settings, self.faults)
        if session.late is not None:
            self.update(session.identifier, session.late, script.faults)
            session.late = None
        session.turn = AcpTurn(self, session, identifier, script)
        session.turn.start()
