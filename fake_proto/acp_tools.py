"""A client of MCP servers, for the fake ACP agent: over streamable HTTP, or the stdio of a program. Each call has its
own thread, since its output may take minutes.
"""

from __future__ import annotations

import json
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

    Message = dict[str, Any]

SECONDS = 600.0
OPENING: list[Message] = [
    {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}}},
    {"id": 1, "method": "tools/list", "params": {}},
]


class McpServer:
    """An MCP server. `tools`: what it offers, after `connect`."""

    def __init__(self, entry: Message, env: dict[str, str]) -> None:
        self._entry = entry
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None
        self._next = len(OPENING)
        self.tools: list[Message] = []

    def connect(self) -> None:
        """Initializes the connection, and reads the list of tools into `tools`."""
        self._request(OPENING[0])
        for tool in self._request(OPENING[1])["result"]["tools"]:
            self.tools.append({"type": "function", **tool, "parameters": tool["inputSchema"]})

    def call(self, name: str, arguments: str) -> Call:
        """Calls a tool in a thread. `arguments`: JSON text."""
        self._next += 1
        params = {"name": name, "arguments": json.loads(arguments), "_meta": {"progressToken": self._next}}
        return Call(self, {"id": self._next, "method": "tools/call", "params": params})

    def _request(self, message: Message) -> Message:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return self._by_http(line) if "url" in self._entry else self._by_stdio(line, message["id"])

    def _by_http(self, line: bytes) -> Message:
        import http.client
        import urllib.parse

        url = urllib.parse.urlsplit(self._entry["url"])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=SECONDS)
        headers = {header["name"]: header["value"] for header in self._entry["headers"]}
        try:
            connection.request("POST", url.path, line, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            if not (answer.getheader("Content-Type") or "").startswith("text/event-stream"):
                return dict(json.loads(answer.read()))
            for each in answer:
                if each.startswith(b"data:") and "id" in (message := json.loads(each[5:])):
                    return dict(message)
            raise ConnectionError("the stream ended without a result")
        finally:
            connection.close()

    def _by_stdio(self, line: bytes, identifier: int) -> Message:
        if self._child is None:
            import subprocess

            env = {**self._env, **{each["name"]: each["value"] for each in self._entry["env"]}}
            argv = [self._entry["command"], *self._entry["args"]]
            self._child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(line + b"\n")
        self._child.stdin.flush()
        for each in self._child.stdout:
            message = json.loads(each)
            if message.get("id") == identifier:
                return dict(message)
        raise ConnectionError("the server has ended")


class Call:
    """A running tool call. `output`: the result's text, None until it has come."""

    def __init__(self, server: McpServer, message: Message) -> None:
        self.output: str | None = None
        self._server = server
        threading.Thread(target=self._run, args=(message,), daemon=True).start()

    def _run(self, message: Message) -> None:
        try:
            result = self._server._request(message)["result"]
            self.output = "".join(part.get("text", "") for part in result["content"])
        except (OSError, KeyError, ValueError) as error:
            self.output = f"the call failed: {error}"
