"""A fake `codex app-server`: requests in, notifications out."""

from __future__ import annotations

from typing import Any

from tests.fake.child import Child, Message

WEATHER = {"type": "function", "name": "get_weather", "description": "w", "inputSchema": {"type": "object"}}


class AppChild(Child):
    """An app-server that has been initialized."""

    def __init__(self, *opt_out: str, **env: str) -> None:
        super().__init__("app-server", env={f"FAKE_CODEX_{key}": value for key, value in env.items()})
        capabilities = {"experimentalApi": True, "optOutNotificationMethods": list(opt_out)}
        client = {"name": "tests", "version": "1"}
        self.call("initialize", {"clientInfo": client, "capabilities": capabilities})
        self.send({"method": "initialized"})

    def call(self, method: str, params: Any, identifier: int | str = 0) -> Message:
        """The answer to a request."""
        self.send({"id": identifier, "method": method, "params": params})
        return self.read_until(lambda m: m.get("id") == identifier and "method" not in m)[-1]

    def start_thread(self, **params: Any) -> str:
        """A thread with raw events; returns its id."""
        answer = self.call("thread/start", {"ephemeral": True, "experimentalRawEvents": True, **params})
        return str(answer["result"]["thread"]["id"])

    def start_turn(self, thread: str, text: str, **params: Any) -> str:
        """A turn with a prompt, or with an empty input; returns its id."""
        parts = [{"type": "text", "text": text, "text_elements": []}] if text else []
        answer = self.call("turn/start", {"threadId": thread, "input": parts, **params})
        return str(answer["result"]["turn"]["id"])

    def play(self, text: str, **params: Any) -> list[Message]:
        """What a fresh thread says to a prompt, up to the end of the turn."""
        self.start_turn(self.start_thread(**params), text)
        return self.read_until(is_completed)


def is_completed(message: Message) -> bool:
    """Whether a turn ended with this message."""
    return message.get("method") == "turn/completed"


def methods(messages: list[Message]) -> list[str]:
    """The methods, answers as `result` or `error`, a run of the same method once."""
    names = [str(m.get("method") or ("result" if "result" in m else "error")) for m in messages]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def deltas(messages: list[Message]) -> list[str]:
    """The text deltas."""
    return [m["params"]["delta"] for m in messages if m.get("method") == "item/agentMessage/delta"]


def function_calls(messages: list[Message]) -> list[Message]:
    """The raw function calls."""
    items = [m["params"]["item"] for m in messages if m.get("method") == "rawResponseItem/completed"]
    return [item for item in items if item["type"] == "function_call"]
